"""Record the encoder inputs of any LightningModule in validation steps."""

import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bertsecrets.ablation.own_outcome import NOT_INPUTS
from bertsecrets.attention.hooks import eager_execution
from bertsecrets.data.recorded import EncoderInputs
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
