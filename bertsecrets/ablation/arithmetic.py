"""How a sweep computes: linear layers in fp32 by PyTorch or oneDNN, and clear pairs of a screened sweep in bf16.

The processor and the size of the model decide. Timing would depend on the load of the machine, and the same command
could then give different numbers.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bertsecrets.ablation.settings import BF16, FP32, Precision
from bertsecrets.analysis import Autocast
from bertsecrets.models.encoder import Encoder

_WIDE = 256
"""Smallest hidden size for which bf16 and oneDNN are used.

all-MiniLM-L6-v2 (384) on two cores of an AMD EPYC (Zen 5), batches of 8 to 64 texts of 32 or 64 tokens: 190 GFLOP/s by
PyTorch's choice in fp32, 270 to 350 by oneDNN, 520 to 560 in bf16. A tiny model ran at .6 of its fp32 speed in bf16.
The exact limit, GPUs and Intel processors were not measured.
"""

_ROWS = 64
"""oneDNN gets multiples of so many rows: it compiles code for each number of rows, and keeps it."""


@dataclass(frozen=True)
class Arithmetic:
    """How linear layers in fp32 are computed, and in what precision a screened sweep evaluates clear pairs.

    Args:
        precision: ``bf16-mixed``, or ``32-true``: no pass in another precision than the trainer's.
        reason: Why bf16 passes beside the trainer's are out of the question, as a part of a sentence; None if they are
            not.
        onednn: Whether linear layers in fp32 are computed by oneDNN.
    """

    precision: Precision = FP32
    reason: str | None = None
    onednn: bool = False


def preferred(encoder: Encoder) -> tuple[Precision, bool]:
    """The precision of a screened sweep's clear pairs, and whether oneDNN computes fp32 linear layers.

    A GPU or an x86 processor with instructions for bf16 takes bf16. oneDNN is for processors with AVX-512 of other
    makers than Intel, on which PyTorch's MKL does not choose its AVX-512 kernels.
    """
    device = next(encoder.base.parameters()).device
    if encoder.model.config.hidden_size < _WIDE:
        return FP32, False
    if device.type == "cuda":
        return (BF16 if torch.cuda.is_bf16_supported(including_emulation=False) else FP32), False
    if device.type != "cpu" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return FP32, False
    return (BF16 if torch.cpu._is_avx512_bf16_supported() else FP32), not _is_by_intel()


def _is_by_intel() -> bool:
    # platform.processor() is empty on most Linux systems.
    listed = Path("/proc/cpuinfo")
    return "GenuineIntel" in (listed.read_text("utf-8") if listed.is_file() else platform.processor())


def why_not_bf16(encoder: Encoder, autocast: Autocast, unscreened: str | None = None) -> str | None:
    """Why passes in bf16 beside those of the trainer are out of the question; None if they are not.

    Args:
        encoder: The model, on its device.
        autocast: Context manager of the trainer's passes.
        unscreened: Why the sweep cannot be screened, as a part of a sentence; None if it can.
    """
    if unscreened is not None:
        return f"the sweep cannot be screened: {unscreened}"
    weight = next(encoder.base.parameters())
    if weight.dtype != torch.float32:
        return f"the model's weights are {str(weight.dtype).removeprefix('torch.')}"
    with autocast():
        if torch.is_autocast_enabled(weight.device.type):
            return (
                "the trainer's passes are "
                f"{str(torch.get_autocast_dtype(weight.device.type)).removeprefix('torch.')} already"
            )
    if weight.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    return None if weight.device.type == "cpu" else "this accelerator has no bf16"


def in_bf16(autocast: Autocast, device: str) -> Autocast:
    """The context of a pass in bf16 on this type of device: weights and inputs of products are rounded, the rest is
    fp32.
    """
    return _within(autocast, lambda: torch.autocast(device, torch.bfloat16))


def by_onednn(autocast: Autocast) -> Autocast:
    """The context of a pass with linear layers in fp32 by oneDNN, except where gradients are needed."""
    return _within(autocast, OneDnnLinear)


def can_use_onednn(encoder: Encoder, autocast: Autocast) -> bool:
    """Whether the trainer's passes have linear layers in fp32 that oneDNN can compute."""
    with autocast():
        autocasts = torch.is_autocast_enabled("cpu")
    # An operator without a public name: another version of PyTorch may lack it.
    available = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return available and not autocasts and _is_plain_fp32(next(encoder.base.parameters()))


def _within(autocast: Autocast, inner: Autocast) -> Autocast:
    @contextmanager
    def both() -> Iterator[None]:
        with autocast(), inner():
            yield

    return both


class OneDnnLinear(TorchFunctionMode):
    """Computes linear layers in fp32 on a CPU by oneDNN, outside of autocast; both libraries round to fp32, in another
    order.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # The operator has no gradient, which slopes need.
        if func is F.linear and not kwargs and not torch.is_grad_enabled() and _fits(*args):
            return _product(*args)
        return func(*args, **(kwargs or {}))


def _product(input_XD: Tensor, weight_ED: Tensor, bias_E: Tensor | None = None) -> Tensor:
    rows = input_XD.numel() // input_XD.shape[-1]
    # Rows of zeros: what is padded does not change the others.
    filled_RD = F.pad(input_XD.reshape(rows, -1), (0, 0, 0, -rows % _ROWS))
    output_RE: Tensor = torch.ops.mkldnn._linear_pointwise(filled_RD, weight_ED, bias_E, "none", [], "")
    return output_RE[:rows].view(*input_XD.shape[:-1], len(weight_ED))


def _fits(input_XD: Tensor, weight_ED: Tensor, bias_E: Tensor | None = None) -> bool:
    """Whether the operator gives PyTorch's result: it does not check that its inputs are plain arrays of matching
    shapes.
    """
    tensors = [input_XD, weight_ED, *([] if bias_E is None else [bias_E])]
    return (
        not torch.is_autocast_enabled("cpu")
        and all(type(tensor) in (Tensor, nn.Parameter) and _is_plain_fp32(tensor) for tensor in tensors)
        and input_XD.numel() > 0
        and input_XD.dim() > 1
        and weight_ED.dim() == 2
        and (bias_E is None or (bias_E.shape == weight_ED.shape[:1] and bias_E.is_contiguous()))
    )


def _is_plain_fp32(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.layout == torch.strided
