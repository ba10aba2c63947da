"""A measure: one number per head from attention maps, streamed over any number of examples and processes."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import SHORTEST
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid


class Need(Enum):
    """What a measure needs besides the model's own maps."""

    REFERENCE = "reference"
    ANNOTATION = "annotation"


@dataclass(frozen=True)
class Feed:
    """How a measure wants its examples fed, where that differs from the evaluation's own batches.

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


class Measure(Metric):
    """Mean over examples of numbers computed from each example's maps; every example weighs the same.

    A subclass names its ``columns`` (``p_*`` for p-values and ``*uniform`` for what uniform attention gives, which are not
    averaged or compared between models), says what it ``needs`` and computes ``per_example``; an example whose number is NaN
    does not count. The state is three sums, so that any number of processes gives the grid that one process gives.

    Args:
        num_layers, num_heads: Size of the grid.
    """

    full_state_update = False
    name: ClassVar[str]
    columns: tuple[str, ...]
    needs: frozenset[Need] = frozenset()
    feed: Feed = Feed()

    total_LHC: Tensor
    squares_LHC: Tensor
    count_LHC: Tensor

    added_BHC: Tensor | None = None
    """The numbers that were added last, example by example: what a paired comparison takes its differences from."""

    def __init__(self, num_layers: int, num_heads: int) -> None:
        super().__init__()
        shape = (num_layers, num_heads, len(self.columns))
        self.add_state("total_LHC", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("squares_LHC", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count_LHC", torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    def prepare(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> None:
        """Looks at all examples of the evaluation set before the first batch; raises UserError if they do not fit."""

    @abstractmethod
    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        """The numbers ``[B, H, C]`` of one layer; NaN where an example does not count."""

    def update(self, layer: int, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None = None) -> None:
        """Adds one layer's maps of one batch; ``attention_BHQK`` and ``reference_BHQK`` are float32 or wider."""
        self._add(layer, self.per_example(attention_BHQK, batch, reference_BHQK))

    def _add(self, layer: int, values_BHC: Tensor) -> None:
        self.added_BHC = values_BHC
        # The device first: MPS has no float64, and there the state stays on the CPU.
        values_BHC = values_BHC.to(self.total_LHC.device).to(torch.float64)
        self.total_LHC[layer] += values_BHC.nansum(0)
        self.squares_LHC[layer] += values_BHC.square().nansum(0)
        self.count_LHC[layer] += values_BHC.isnan().logical_not().sum(0)

    def compute(self) -> HeadGrid:
        """Mean, standard error and count, reduced over all processes."""
        return HeadGrid.from_sums(self.name, self.columns, self.total_LHC, self.squares_LHC, self.count_LHC)

    def reset(self) -> None:
        """Back to no examples."""
        super().reset()
        self.added_BHC = None
