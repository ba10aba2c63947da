"""Record the encoder inputs of any LightningModule in validation steps."""

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from lightning_fabric.utilities import move_data_to_device
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedTokenizerBase

from bertsecrets.ablation.own_outcome import NOT_INPUTS
from bertsecrets.attention.hooks import eager_execution
from bertsecrets.data.batch import Batch, BatchSpec, gathered, rank_and_world_size
from bertsecrets.data.recorded import EncoderInputs, RecordedSplit
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder

MAX_BYTES = 1 << 30
"""Memory limit for recorded batches and inputs per process."""

_STEP = "validation_step"


@dataclass(frozen=True)
class RecordedStep:
    """A validation step.

    Args:
        dataloader: Number of the batch's data loader.
        number: Its number among the steps.
        batch: The batch, on the CPU.
        index_B: The number of each example, if known; -1 for a repeated example, which does not count.
        calls: The inputs of each call of the encoder; only the first of identical ones.
    """

    dataloader: int
    number: int
    batch: Any
    index_B: Tensor | None
    calls: list[EncoderInputs] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Memory size of the tensors."""
        tensors = [leaf for leaf in tree_leaves(self.batch) if isinstance(leaf, Tensor)]
        return sum(tensor.nbytes for tensor in tensors) + sum(call.nbytes for call in self.calls)


class Recorder:
    """The validation steps of a module, shared by all callbacks that replay them.

    Only calls within ``validation_step`` are recorded, not passes run by callbacks. If the steps do not fit in memory,
    a random sample is kept.

    Args:
        encoder: The encoder in the module.
        max_bytes: Memory limit.
    """

    def __init__(self, encoder: Encoder, max_bytes: int = MAX_BYTES) -> None:
        self.encoder, self.max_bytes = encoder, max_bytes
        self.steps: list[RecordedStep] = []
        self.seen = 0
        """Number of steps, including dropped ones."""
        self._users: set[int] = set()
        self._bytes = 0

    def start(self, module: nn.Module, user: object) -> None:
        """Record the steps of the starting validation, for one more user; earlier recordings are dropped."""
        if id(user) in self._users or not self._users:
            self.clear()
            recorders = _listening[module][1] if module in _listening else _listen_to_steps(module)
            if self not in recorders:
                recorders.append(self)
        self._users.add(id(user))

    def pause(self, module: nn.Module) -> None:
        """Restore the module, because it may be copied after a validation."""
        hidden, recorders = _listening.get(module, ({}, []))
        if self not in recorders:
            return
        recorders.remove(self)
        if not recorders:
            del _listening[module]
            del vars(module)[_STEP]
            vars(module).update(hidden)

    def clear(self) -> None:
        """Drop the recording."""
        self.steps, self.seen, self._bytes = [], 0, 0
        self._users.clear()

    @contextmanager
    def recording(self, batch: Any, dataloader: int = 0, index_B: Tensor | None = None) -> Iterator[None]:
        """Record the inputs of the encoder's calls while open, as those of a batch.

        Args:
            batch: The batch.
            dataloader: Which data loader it is from.
            index_B: The number of each example, where the batch does not have it.
        """
        own_index_B = _index(batch)
        step = RecordedStep(dataloader, self.seen, on_cpu(batch), index_B if own_index_B is None else own_index_B)
        with listening_to(self.encoder, step.calls):
            yield
        step.calls[:] = _distinct(step.calls)
        self.seen += 1
        self.steps.append(step)
        self._bytes += step.nbytes
        while self._bytes > self.max_bytes and len(self.steps) > 1:
            # Keep steps by independent random numbers, so that the kept steps are a random sample.
            left_out = max(self.steps, key=lambda step: random.Random(step.number).random())
            self.steps.remove(left_out)
            self._bytes -= left_out.nbytes


_recorders: WeakKeyDictionary[nn.Module, dict[int, Recorder]] = WeakKeyDictionary()

_listening: WeakKeyDictionary[nn.Module, tuple[dict[str, Any], list[Recorder]]] = WeakKeyDictionary()
"""Modules whose steps are recorded: the attribute hidden by the recording step, if any, and the recorders."""


def recorder_of(module: nn.Module, encoder: Encoder) -> Recorder:
    """The recorder shared by all callbacks for one encoder of a module."""
    return _recorders.setdefault(module, {}).setdefault(id(encoder.base), Recorder(encoder))


def _listen_to_steps(module: nn.Module) -> list[Recorder]:
    """Wrap a module's validation step once for all recorders of its encoders."""
    step: Any = getattr(module, _STEP)
    recorders: list[Recorder] = []

    @wraps(step)
    def recorded(batch: Any, *args: Any, **options: Any) -> Any:
        # After the batch come its number and its loader's number, if the step accepts them.
        loader = options.get("dataloader_idx", args[1] if len(args) > 1 else 0)
        with ExitStack() as stack:
            for recorder in recorders:
                stack.enter_context(recorder.recording(batch, loader))
            return step(batch, *args, **options)

    # An attribute of the object hides the method of its class; a compiled module has its own.
    _listening[module] = {name: value for name, value in vars(module).items() if name == _STEP}, recorders
    vars(module)[_STEP] = recorded
    return recorders


def _distinct(calls: list[EncoderInputs]) -> list[EncoderInputs]:
    kept: list[EncoderInputs] = []
    for call in calls:
        inputs = call.tensors
        if not any(
            inputs.keys() == other.tensors.keys()
            and all(torch.equal(value, other.tensors[name]) for name, value in inputs.items())
            for other in kept
        ):
            kept.append(call)
    return kept


@contextmanager
def listening_to(encoder: Encoder, calls: list[EncoderInputs]) -> Iterator[None]:
    """Append the inputs of every call of an encoder while open; compiled code runs eagerly inside."""
    signature = inspect.signature(type(encoder.base).forward)

    def listen(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        arguments = signature.bind_partial(module, *args, **options).arguments
        whole = {**arguments.pop("kwargs", {}), **arguments}
        # A library model hands on what it does not know.
        calls.append(EncoderInputs.of_call({name: value for name, value in whole.items() if name not in NOT_INPUTS}))

    handle = encoder.base.register_forward_pre_hook(listen, with_kwargs=True)
    try:
        with eager_execution():
            yield
    finally:
        handle.remove()


def on_cpu(batch: Any) -> Any:
    """A copy of a batch on the CPU; everything except tensors, in any containers, is unchanged."""
    # Outside inference mode, whose tensors cannot take part in a backward pass.
    with torch.inference_mode(False):
        return apply_to_collection(batch, Tensor, lambda tensor: tensor.detach().cpu().clone())


def _index(batch: Any) -> Tensor | None:
    index = batch.get("index") if isinstance(batch, Mapping) else getattr(batch, "index_B", None)
    return index.detach().cpu().clone() if isinstance(index, Tensor) and index.dim() == 1 else None


Key = tuple[int, ...]
"""Identifies an example: by its index, or by its step, its row in the batch and its process."""


REPEATED: Key = (-1,)
"""An example that another one repeats, to give every process as many."""


def keys_of(step: RecordedStep, count: int) -> list[Key]:
    """A key for each of the examples of a step.

    Examples without an index are in the order of a set that is dealt out one by one to the processes.
    """
    if step.index_B is not None and len(step.index_B) == count:
        return [(int(index),) for index in step.index_B]
    return [(step.number, row, rank_and_world_size()[0]) for row in range(count)]


def recorded_inputs(
    steps: Sequence[RecordedStep],
    tokenizer: PreTrainedTokenizerBase | None,
    pad_id: int,
    label_N: Tensor | None = None,
    group_N: Tensor | None = None,
) -> RecordedSplit:
    """All inputs of the encoder, on all processes, with the labels and groups of the texts in order.

    Raises:
        UserError: If it was not called.
    """
    mine: list[tuple[Key, dict[str, Tensor]]] = []
    for step in steps:
        for number, call in enumerate(step.calls):
            rows = call.rows()
            keys = keys_of(step, len(rows))
            mine += [((*key, number), row) for key, row in zip(keys, rows, strict=True) if key != REPEATED]
    by_key: dict[Key, dict[str, Tensor]] = {}
    for part in gathered(mine):
        for key, row in part:
            by_key.setdefault(key, row)
    if not by_key:
        raise UserError(
            "The encoder was not called in validation; call it in validation_step, or choose the encoder that is "
            "called with encoder='<its attribute in the module>'."
        )
    order = sorted(by_key)
    return RecordedSplit([by_key[key] for key in order], range(len(order)), tokenizer, pad_id, label_N, group_N)


class OutcomeBatch(Batch):
    """Some examples of a user's batch.

    Args:
        whole: The batch.
        row_R: The examples.
        index_B, label_B, group_B: Their positions in the set, their labels and their groups.
    """

    def __init__(
        self, whole: Any, row_R: Tensor, index_B: Tensor, label_B: Tensor, group_B: Tensor | None = None
    ) -> None:
        none_B0 = torch.zeros(len(index_B), 0, dtype=torch.int64, device=index_B.device)
        super().__init__(none_B0, none_B0, None, none_B0.bool(), none_B0, index_B, label_B, group_B=group_B)
        self.whole, self.row_R = whole, row_R

    def inputs(self) -> dict[str, Any]:
        return {"batch": self.whole, "rows": self.row_R}

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "OutcomeBatch":
        parts = (self.whole, self.row_R, self.index_B, self.label_B, self.group_B)
        return OutcomeBatch(*(move_data_to_device(part, torch.device(device)) for part in parts))


@dataclass(frozen=True)
class _Scored:
    """A step of this process, its predictions, labels and groups, and the position of each example in the set (-1 if
    another step has it).
    """

    step: RecordedStep
    answers_BC: Tensor
    label_B: Tensor
    group_B: Tensor | None
    position_B: Tensor


class OutcomeExamples:
    """The examples of recorded steps, scored by an outcome, for :class:`~bertsecrets.analysis.Context`.

    Args:
        steps: The steps of this process.
        score: Maps a batch on the CPU and its number of examples (None if unknown) to predictions and labels.
        groups: Maps a step and its number of examples to the group of each; None where examples are independent.
    """

    def __init__(
        self,
        steps: Sequence[RecordedStep],
        score: Callable[[Any, int | None], tuple[Tensor, Tensor]],
        groups: Callable[[RecordedStep, int], Tensor | None] = lambda step, count: None,
    ) -> None:
        answered = []
        for step in steps:
            count = None if step.index_B is None else len(step.index_B)
            answers_BC, label_B = score(step.batch, count)
            parts = (step, answers_BC.cpu(), label_B.cpu(), groups(step, len(label_B)))
            answered.append((*parts, keys_of(step, len(label_B))))
        lists = gathered([key for *_, keys in answered for key in keys])
        owners: dict[Key, int] = {}
        for rank, keys in enumerate(lists):
            for key in keys:
                owners.setdefault(key, rank)
        owners.pop(REPEATED, None)
        positions = {key: position for position, key in enumerate(sorted(owners))}
        self.count = len(positions)
        rank, taken = rank_and_world_size()[0], set[Key]()
        self.scored = []
        for step, answers_BC, label_B, group_B, keys in answered:
            position_B = torch.full((len(keys),), -1)
            for row, key in enumerate(keys):
                if owners.get(key) == rank and key not in taken:
                    taken.add(key)
                    position_B[row] = positions[key]
            self.scored.append(_Scored(step, answers_BC, label_B, group_B, position_B))

    def __len__(self) -> int:
        return self.count

    def collected(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Predictions ``[N, C]``, labels ``[N]`` and groups ``[N]`` of all processes, in order; no groups if an example
        has none.
        """
        mine: list[Any] = [(part.position_B, part.answers_BC, part.label_B, part.group_B) for part in self.scored]
        parts = [part for of_rank in gathered(mine) for part in of_rank]
        position_N, answers_NC, label_N = (torch.cat([part[place] for part in parts]) for place in range(3))
        order_N = position_N.argsort()[int((position_N < 0).sum()) :]
        groups = [group_B for *_, group_B in parts if group_B is not None]
        group_N = torch.cat(groups)[order_N] if len(groups) == len(parts) else None
        return answers_NC[order_N], label_N[order_N], group_N

    def load(self, positions: Sequence[int]) -> "OutcomeBatches":
        """This process's batches of some positions."""
        return OutcomeBatches(self.scored, set(positions))


class OutcomeBatches:
    """Batches of scored steps.

    Args:
        scored: The steps of this process.
        positions: The positions to use.
    """

    def __init__(self, scored: Sequence[_Scored], positions: set[int]) -> None:
        self.scored, self.positions = scored, positions

    def _rows(self, part: _Scored) -> Tensor:
        used = [row for row, position in enumerate(part.position_B.tolist()) if position in self.positions]
        return torch.tensor(used, dtype=torch.int64)

    @property
    def sampler(self) -> list[BatchSpec]:
        return [BatchSpec(tuple(part.position_B[self._rows(part)].tolist())) for part in self.scored]

    def __len__(self) -> int:
        return len(self.scored)

    def __iter__(self) -> Iterator[OutcomeBatch]:
        # Include steps without a used example, because every process must take part in gathering outcomes.
        for part in self.scored:
            row_R = self._rows(part)
            group_R = None if part.group_B is None else part.group_B[row_R]
            yield OutcomeBatch(part.step.batch, row_R, part.position_B[row_R], part.label_B[row_R], group_R)
