"""Measures: one number per head from attention maps, streamed over any number of examples and processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Concatenate, ParamSpec, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torchmetrics import Metric

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.results.experiment import INITIAL, Experiment
from bertsecrets.settings import LONGEST, SHORTEST, typed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bertsecrets.data.module import TaskData
    from bertsecrets.data.tokenization import EncodedSplit

MaxExamples = Annotated[int | None, Field(ge=1, description="a whole number from 1, or null for all")]
"""Size of a random sample of a measure's examples; None for all."""

Count = Annotated[int, Field(ge=1, description="a whole number from 1")]

Length = Annotated[int, Field(ge=SHORTEST, le=LONGEST, description=f"a whole number from {SHORTEST} to {LONGEST}")]
"""A number of tokens of a sequence, special tokens included."""


class Need(Enum):
    """What a measure needs besides the model's own maps."""

    REFERENCE = "reference"
    ANNOTATION = "annotation"
    MASKED_LM = "masked_lm"
    VALUES = "values"
    GRADIENT = "gradient"
    """The gradient of each example's own loss with respect to the maps."""
    OUTPUTS = "outputs"
    """The heads' outputs, and the gradient of each example's own loss with respect to them."""
    WEIGHTS = "weights"
    """The norms of the gradient of each example's own loss with respect to the heads' weights."""


OF_LOSS = frozenset({Need.GRADIENT, Need.OUTPUTS, Need.WEIGHTS})
"""Gradients of the task's loss, which require labels."""

BACKWARD = OF_LOSS | {Need.MASKED_LM}
"""Needs that require a backward pass."""


_MISSING: Any = None
"""Of type Any, so that a measure need not check the fields it requires."""


@dataclass(frozen=True)
class Passed:
    """The data of one layer and one batch in a pass, in float32 or wider; fields that the measure does not need are
    missing.

    Args:
        layer, batch: The layer and the batch.
        attention_BHQK: The maps.
        reference_BHQK: The maps of the model to compare with; None without one.
        gradient_BHQK: The gradient of each example's own loss with respect to its map; undefined for padding.
        value_BHKd: The values that attention averages; ``attention @ value`` is a head's output.
        weights_HDd: The columns of the output projection that belong to each head.
        output_BSHd, slope_BSHd: The heads' outputs before the gate, also of padding, and the gradient of each example's
            own loss with respect to the outputs after the gate.
        mean_Hd: The heads' mean outputs over training examples; None if not given.
        norms_BH3: Frobenius norms of the gradients of each example's own loss with respect to a head's weights: query,
            key, value.
        values_BHC: The numbers, if the pass computes them, such as sums over gates; None if the measure does.
    """

    layer: int
    batch: Batch
    attention_BHQK: Tensor = _MISSING
    reference_BHQK: Tensor | None = None
    gradient_BHQK: Tensor = _MISSING
    value_BHKd: Tensor = _MISSING
    weights_HDd: Tensor = _MISSING
    output_BSHd: Tensor = _MISSING
    slope_BSHd: Tensor = _MISSING
    mean_Hd: Tensor | None = None
    norms_BH3: Tensor = _MISSING
    values_BHC: Tensor | None = None


@dataclass(frozen=True)
class Feed:
    """How a measure's examples are sampled and padded, if different from the evaluation's batches.

    Args:
        max_examples: A random sample of this many examples, drawn with ``seed``; None for all.
        max_length: Truncate to this many tokens; None for the task's.
        pad_to: Pad every batch to this many tokens; None for the longest of the batch.

    Raises:
        UserError: If ``max_examples`` is below 1 or ``max_length`` below 8.
    """

    max_examples: int | None = None
    max_length: int | None = None
    pad_to: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"max_examples": (self.max_examples, 1), "max_length": (self.max_length, SHORTEST)}
        for name, (value, lowest) in least.items():
            if value is not None and (type(value) is not int or value < lowest):
                raise UserError(f"{name} of a measure is {value!r}; expected a whole number from {lowest}, or null.")


@dataclass(frozen=True)
class Differentiated:
    """The inputs of a gradient pass.

    Args:
        model: The model.
        batch: Its examples.
        loss: Maps logits to a scalar, the sum of the examples' losses, so that each example gets its own gradient.
    """

    model: nn.Module
    batch: Batch
    loss: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Added:
    """The numbers that a measure last added.

    Args:
        layer, batch: The layer and batch of the numbers.
        values_BHC: One number for each example, head and column; None if no example of the batch counts.
    """

    layer: int
    batch: Batch
    values_BHC: Tensor | None


_P = ParamSpec("_P")
_Kind = TypeVar("_Kind", bound="Measure")
_Result = TypeVar("_Result")


def once_per_batch(
    method: Callable[Concatenate[_Kind, Batch, _P], _Result],
) -> Callable[Concatenate[_Kind, Batch, _P], _Result]:
    """Cache a measure's method result for a batch, as it is the same for every layer.

    Further arguments are only used in the first call.
    """
    name = method.__name__

    @wraps(method)
    def kept(self: _Kind, batch: Batch, /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        if name not in self.of_batch or self.of_batch[name][0] is not batch:
            self.of_batch[name] = batch, method(self, batch, *args, **kwargs)
        result: _Result = self.of_batch[name][1]
        return result

    return kept


class Measure(Experiment, Metric):
    """Mean over examples of numbers computed from each example's maps; all examples have equal weight.

    A subclass sets ``name``, ``title``, ``columns`` and ``needs``, and implements ``per_example``, or ``values`` to
    read more of a pass than maps; an example whose number is NaN does not count. The state is three sums, so the grid
    does not depend on the number of processes. Columns with the role ``p_value`` are not averaged; a subclass adds them
    in ``compute``.

    Args:
        num_layers, num_heads: Size of the grid.
        max_examples: Size of a random sample of examples; None for the value in ``feed``.

    Raises:
        UserError: If the class has no name, title or columns, or two columns share a name.
    """

    full_state_update = False
    needs: frozenset[Need] = frozenset()
    own_examples: bool = False
    """Whether it may use its own examples, so that the task's need not meet its needs."""

    feed: Feed = Feed()
    reference: str = INITIAL
    """With ``Need.REFERENCE``, the model to compare with."""
    tracked: ClassVar[tuple[str, ...] | None] = None
    """Columns logged to W&B as a scalar for each head (``drift/cosine/l11h03``); None for the first column."""
    gates: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """With ``Need.OUTPUTS``, pairs of a gate, which multiplies every head's output in a pass, and a weight: an
    example's numbers are the weighted sum over gates.
    """
    reference_examples: int = 0
    """With ``Need.OUTPUTS``, number of training examples for the heads' mean outputs; 0 if not needed."""

    total_LHC: Tensor
    squares_LHC: Tensor
    count_LHC: Tensor

    added: Added | None = None
    """The most recently added numbers, for differences in a paired comparison."""

    @typed
    def __init__(self, num_layers: int, num_heads: int, max_examples: MaxExamples = None) -> None:
        super().__init__()
        self.of_batch: dict[str, tuple[Batch, Any]] = {}
        # None keeps the size that a subclass has set in feed.
        if max_examples is not None:
            self.feed = replace(self.feed, max_examples=max_examples)
        self.check_declaration()
        if not self.columns:
            raise UserError(f"{type(self).__name__} has no columns; set columns to a tuple of Column(name, label).")
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"Measure {self.name} has two columns called '{name}'; rename one of them.")
        self.averaged = tuple(column for column in self.columns if column.role != "p_value")
        self._add_sums(num_layers, num_heads)

    def _add_sums(self, num_layers: int, num_heads: int, device: torch.device | None = None) -> None:
        """Add the three sums of the averaged columns as states."""
        for name, dtype in (("total_LHC", torch.float64), ("squares_LHC", torch.float64), ("count_LHC", torch.int64)):
            zeros = torch.zeros((num_layers, num_heads, len(self.averaged)), dtype=dtype, device=device)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def dataset(self, data: "TaskData", progress: bool = False) -> "EncodedSplit | None":
        """The measure's own examples; None for the evaluation set.

        Args:
            data: The task's data.
            progress: Whether to show a progress bar while reading them.
        """
        return None

    def inapplicable(self, data: "TaskData") -> str | None:
        """Why the measure is skipped for these data, as a sentence; None to compute it."""
        if not self.needs & OF_LOSS or data.task.is_labelled:
            return None
        return (
            f"{self.title}: skipped, because task '{data.task.name}' has no labels and hence no loss; choose a "
            "labelled task."
        )

    def differentiated(self, model: "PreTrainedModel", batch: Batch) -> Differentiated | None:
        """With ``Need.GRADIENT``: what to run for the gradients; None for a shared pass with the model and the task's
        loss.
        """
        return None

    def add_losses(self, gate: float, loss_B: Tensor) -> None:
        """With ``Need.OUTPUTS``: receive each example's loss in the pass of one gate."""

    def take_head(self, masked_lm: "PreTrainedModel") -> None:
        """With ``Need.MASKED_LM``: predict words with this pre-trained model's head on the measured encoder."""

    def compares_with(self, name: str) -> None:
        """With ``Need.REFERENCE``: name the reference model in labels if it is not the model before fine-tuning.

        Raises:
            UserError: If the measure only supports the model before fine-tuning, which is the default.
        """
        raise UserError(
            f"Measure '{self.name}' only compares with the model before fine-tuning, but reference is '{name}'; "
            "remove one of them."
        )

    def prepare(self, split: "EncodedSplit") -> None:
        """Inspect all examples before the first batch; raise UserError if they do not fit."""

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        """The numbers ``[B, H, C]`` of one layer, for the averaged columns; NaN where an example does not count."""
        raise NotImplementedError(f"{type(self).__name__} has neither per_example nor values")

    def values(self, passed: Passed) -> Tensor:
        """:meth:`per_example` from the data of a pass; a measure that needs more than maps implements this instead."""
        return self.per_example(passed.attention_BHQK, passed.batch, passed.reference_BHQK)

    @property
    def passes(self) -> tuple[int, int]:
        """Number of forward and backward passes over each example that only this measure needs."""
        if Need.OUTPUTS in self.needs:
            return len(self.gates), len(self.gates)
        return 1, int(bool(self.needs & BACKWARD))

    def findings(self, grid: HeadGrid, model: nn.Module) -> Sequence[object]:
        """Results besides the grid: rows of any frozen dataclasses, see :mod:`bertsecrets.results.rows`; called in
        every process.

        Args:
            grid: The measure's grid of ``model``.
            model: The model, in evaluation mode and on its device.
        """
        return ()

    def found(self, grid: HeadGrid, model: nn.Module) -> Sequence[object]:
        """:meth:`findings` over the examples of all processes; call it in every process."""
        # When ``compute`` returns, torchmetrics has discarded the other processes' state.
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            return self.findings(grid, model)

    def update(self, passed: Passed) -> None:
        """Add one layer of one batch.

        Raises:
            UserError: Unless there is one number for each example, head and averaged column.
        """
        self.add(passed.layer, passed.batch, self.values(passed) if passed.values_BHC is None else passed.values_BHC)

    def add(self, layer: int, batch: Batch, values_BHC: Tensor | None) -> None:
        """Add the numbers of one layer of one batch, None if no example of the batch counts; raises as
        :meth:`update`.
        """
        if isinstance(values_BHC, Tensor) and batch.size < len(values_BHC) == batch.parts * batch.size:
            # Each row of an example adds to its loss.
            values_BHC = batch.summed(values_BHC)
        self.added = Added(layer, batch, values_BHC)
        if values_BHC is None:
            return
        expected = (batch.size, *self.total_LHC.shape[1:])
        if not isinstance(values_BHC, Tensor) or values_BHC.shape != expected:
            shape = list(values_BHC.shape) if isinstance(values_BHC, Tensor) else type(values_BHC).__name__
            raise UserError(
                f"The numbers of {type(self).__name__} are {shape}; expected {list(expected)}: one for each example, "
                "head and column."
            )
        # Moved before the conversion: MPS has no float64, so the state stays on the CPU there.
        values_BHC = values_BHC.to(self.total_LHC.device).to(torch.float64)
        self.total_LHC[layer] += values_BHC.nansum(0)
        # Sums can be added across processes; in float64 the variance from squares stays accurate.
        self.squares_LHC[layer] += values_BHC.square().nansum(0)
        self.count_LHC[layer] += values_BHC.isnan().logical_not().sum(0)

    def compute(self) -> HeadGrid:
        """Mean, standard error and count, reduced over all processes."""
        return HeadGrid.from_sums(self.name, self.averaged, self.total_LHC, self.squares_LHC, self.count_LHC)

    def with_p_values(self, grid: HeadGrid, p_LHC: Tensor, count_LH: Tensor) -> HeadGrid:
        """A grid of the averaged columns with p-values for the others, which have no standard errors.

        Args:
            grid: From :meth:`compute`.
            p_LHC: The p-values, on the CPU.
            count_LH: Number of examples; one number, or one per head.
        """
        return HeadGrid(
            self.name,
            self.columns,
            torch.cat((grid.value_LHC, p_LHC), -1),
            torch.cat((grid.stderr_LHC, torch.full_like(p_LHC, torch.nan)), -1),
            torch.cat((grid.count_LHC, count_LH[..., None].expand_as(p_LHC)), -1),
        )

    def reset(self) -> None:
        """Forget all examples."""
        super().reset()
        self.added = None
        self.of_batch = {}

    def __getstate__(self) -> dict[str, Any]:
        # Batch data can be large, and sparse tensors cannot be copied.
        return {**super().__getstate__(), "added": None, "of_batch": {}}
