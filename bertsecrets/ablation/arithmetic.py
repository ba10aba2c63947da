"""Faster arithmetic for sweeps: bf16 for clear-cut pairs of a screened sweep, and oneDNN for linear layers in fp32.

Both choices depend on the processor and the size of the model. A choice by timing would depend on the load of the
machine, so the same command could give different numbers.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bertsecrets.models.encoder import Autocast, Encoder

WIDE = 256
"""Smallest hidden size for which bf16 and oneDNN are used.

all-MiniLM-L6-v2 (384) on two cores of an AMD EPYC (Zen 5): 190 GFLOP/s in fp32, 520 to 560 in bf16. A tiny model ran
at .6 of its fp32 speed in bf16. The exact limit, GPUs and Intel processors were not measured.
"""


def prefers_bf16(encoder: Encoder) -> bool:
    """Whether bf16 is used by default: on a GPU, and on an x86 processor with bf16 instructions."""
    device = next(encoder.base.parameters()).device.type
    if encoder.num_heads * encoder.head_dim < WIDE or device not in ("cpu", "cuda"):
        return False
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.cpu._is_avx512_bf16_supported()


def why_not_bf16(encoder: Encoder, autocast: Autocast, unscreened: str | None = None) -> str | None:
    """Why passes in bf16 in addition to the trainer's are not possible; None if they are.

    Args:
        encoder: The model, on its device.
        autocast: Context manager for the trainer's passes.
        unscreened: Why the sweep cannot be screened, as a clause; None if it can.
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
    return None if weight.device.type == "cpu" else "this accelerator does not support bf16"


def in_bf16(autocast: Autocast, device: str) -> Autocast:
    """Context of a pass in bf16 on a type of device: weights and inputs of products are rounded, the rest is fp32."""
    return within(autocast, lambda: torch.autocast(device, torch.bfloat16))


def within(autocast: Autocast, inner: Autocast) -> Autocast:
    """Nest one context in another."""

    @contextmanager
    def both() -> Iterator[None]:
        with autocast(), inner():
            yield

    return both


_ROWS = 64
"""oneDNN gets multiples of this many rows, because it compiles code for each number of rows and keeps it."""


def by_onednn(encoder: Encoder, autocast: Autocast) -> Autocast | None:
    """The context of a pass whose fp32 linear layers oneDNN computes; None where PyTorch is as fast.

    MKL leaves AVX-512 unused on processors that are not made by Intel.
    """
    # platform.processor() is empty on most Linux systems.
    listed = Path("/proc/cpuinfo")
    processor = listed.read_text("utf-8") if listed.is_file() else platform.processor()
    gains = torch.backends.cpu.get_cpu_capability() == "AVX512" and "GenuineIntel" not in processor
    # An operator without a public name, which other versions of PyTorch may lack.
    available = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    with autocast():
        fits = _is_plain_fp32(next(encoder.base.parameters()))
    uses = gains and available and fits and encoder.num_heads * encoder.head_dim >= WIDE
    return within(autocast, OneDnnLinear) if uses else None


class OneDnnLinear(TorchFunctionMode):
    """Compute fp32 linear layers on a CPU by oneDNN, outside autocast and where no gradient is needed; both libraries
    round to fp32, in a different order.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # The operator has no gradient, but slopes need one.
        if func is F.linear and not kwargs and not torch.is_grad_enabled() and _fits(*args):
            return _product(*args)
        return func(*args, **(kwargs or {}))


def _product(input_XD: Tensor, weight_ED: Tensor, bias_E: Tensor | None = None) -> Tensor:
    rows = input_XD.numel() // input_XD.shape[-1]
    # Rows of zeros; padding does not change the other rows.
    filled_RD = F.pad(input_XD.reshape(rows, -1), (0, 0, 0, -rows % _ROWS))
    output_RE: Tensor = torch.ops.mkldnn._linear_pointwise(filled_RD, weight_ED, bias_E, "none", [], "")
    return output_RE[:rows].view(*input_XD.shape[:-1], len(weight_ED))


def _fits(input_XD: Tensor, weight_ED: Tensor, bias_E: Tensor | None = None) -> bool:
    """Whether the operator gives PyTorch's result; it does not check arrays and shapes."""
    tensors = [input_XD, weight_ED, *([] if bias_E is None else [bias_E])]
    return (
        all(type(tensor) in (Tensor, nn.Parameter) and _is_plain_fp32(tensor) for tensor in tensors)
        and input_XD.numel() > 0
        and input_XD.dim() > 1
        and weight_ED.dim() == 2
        and (bias_E is None or (bias_E.shape == weight_ED.shape[:1] and bias_E.is_contiguous()))
    )


def _is_plain_fp32(tensor: Tensor) -> bool:
    plain = tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.layout == torch.strided
    return plain and not torch.is_autocast_enabled("cpu")
