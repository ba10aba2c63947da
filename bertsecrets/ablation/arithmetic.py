"""The arithmetic of a screened sweep's passes: fp32, by the faster library for linear layers, or bf16 where that is faster."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Encoder

Precision = Literal["32-true", "bf16-mixed"]
FP32: Precision = "32-true"
BF16: Precision = "bf16-mixed"

FASTER = 1.3
"""Without a choice, bf16 is taken if its passes are at least so many times as fast as those in fp32; and so is oneDNN in fp32."""

_ROWS, _WIDTH = 256, 768
_TURNS = 5


@dataclass(frozen=True)
class Arithmetic:
    """In what precision a screened sweep evaluates pairs that are far from a change of prediction.

    Args:
        precision: ``bf16-mixed``, or ``32-true``: no pass in another precision than the trainer's.
        speedup: How many times as fast as in fp32 a pass in bf16 is, measured; None if it was not measured.
        reason: Why bf16 passes beside the trainer's are out of the question, as a part of a sentence; None if they are not.
        onednn: How many times as fast as by PyTorch's choice a linear layer in fp32 is by oneDNN, measured, which the sweep then
            uses; None if it does not.
    """

    precision: Precision = FP32
    speedup: float | None = None
    reason: str | None = None
    onednn: float | None = None


def why_not_bf16(
    encoder: Encoder, context: Callable[[], AbstractContextManager[Any]], unscreened: str | None = None
) -> str | None:
    """Why passes in bf16 beside those of the trainer are out of the question; None if they are not.

    Args:
        encoder: The model, on its device.
        context: Context manager of the trainer's passes.
        unscreened: Why the sweep cannot be screened, as a part of a sentence; None if it can.
    """
    if unscreened is not None:
        return f"the sweep cannot be screened: {unscreened}"
    weight = next(encoder.base.parameters())
    if weight.dtype != torch.float32:
        return f"the model's weights are {str(weight.dtype).removeprefix('torch.')}"
    with context():
        if torch.is_autocast_enabled(weight.device.type):
            return f"the trainer's passes are {str(torch.get_autocast_dtype(weight.device.type)).removeprefix('torch.')} already"
    if weight.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    return None if weight.device.type == "cpu" else "this accelerator has no bf16"


def choose(wish: Precision | None, speedup: float | None, reason: str | None) -> Arithmetic:
    """The arithmetic that was wished for, else the faster one; fp32 where bf16 is out of the question.

    Raises:
        UserError: If bf16 was wished for and is out of the question.
    """
    if reason is not None:
        if wish == BF16:
            raise UserError(
                f"Passes in {BF16} are out of the question, as {reason}; set ablation.precision={FP32}, with which all passes are "
                "as trainer.precision says."
            )
        return Arithmetic(FP32, None, reason)
    by_time = BF16 if speedup is not None and speedup >= FASTER else FP32
    return Arithmetic(wish or by_time, speedup)


def in_bf16(
    context: Callable[[], AbstractContextManager[Any]], device: str
) -> Callable[[], AbstractContextManager[Any]]:
    """The context of a pass in bf16: weights and inputs of products are rounded, sums and normalisation are fp32.

    Args:
        context: Context manager of the trainer's passes.
        device: Type of the device.
    """

    @contextmanager
    def both() -> Iterator[None]:
        with context(), torch.autocast(device, torch.bfloat16):
            yield

    return both


class OneDnnLinear(TorchFunctionMode):
    """Computes linear layers in fp32 on a CPU by oneDNN; passes that autocast or autograd take part in stay as they are.

    Both libraries round to float32, in another order. PyTorch gives such products to MKL, which does not choose its AVX-512
    kernels on processors of other makers.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and not kwargs and _is_plain_fp32(args):
            input_BSD, weight_ED, *bias = args
            return torch.ops.mkldnn._linear_pointwise(input_BSD, weight_ED, bias[0] if bias else None, "none", [], "")
        return func(*args, **(kwargs or {}))


def _is_plain_fp32(args: tuple[Any, ...]) -> bool:
    """Whether all tensors are fp32 on the CPU, in a pass without autograd and autocast."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    return (
        not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    )


def by_onednn(context: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    """The context of a pass with linear layers in fp32 by oneDNN.

    Args:
        context: Context manager of the trainer's passes.
    """

    @contextmanager
    def both() -> Iterator[None]:
        with context(), OneDnnLinear():
            yield

    return both


def can_use_onednn(encoder: Encoder, context: Callable[[], AbstractContextManager[Any]]) -> bool:
    """Whether the trainer's passes have linear layers in fp32 that oneDNN can compute.

    Args:
        encoder: The model, on its device.
        context: Context manager of the trainer's passes.
    """
    weight = next(encoder.base.parameters())
    with context(), torch.no_grad():
        return (
            torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
            and _is_plain_fp32((weight,))
        )


@torch.no_grad()
def seconds_of_linear() -> tuple[float, float]:
    """The shortest times of a linear layer in fp32 on this processor: by PyTorch's choice, and by oneDNN."""
    input_BD, weight_ED = torch.ones(_ROWS, _WIDTH), torch.ones(_WIDTH, _WIDTH)
    best = [math.inf, math.inf]
    for _ in range(_TURNS):
        for way, context in enumerate((nullcontext, by_onednn(nullcontext))):
            with context():
                started = time.perf_counter()
                F.linear(input_BD, weight_ED)
                best[way] = min(best[way], time.perf_counter() - started)
    return best[0], best[1]
