"""Linear layers in fp32 by oneDNN, on processors where PyTorch's own library does not use AVX-512.

all-MiniLM-L6-v2 on two cores of an AMD EPYC (Zen 5), batches of 8 to 64 texts of 32 or 64 tokens: 190 GFLOP/s by
PyTorch's choice, 270 to 350 by oneDNN; an exact sweep without it takes 1.45 times the processor time.
"""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bertsecrets.ablation.arithmetic import WIDE, within
from bertsecrets.models.encoder import Autocast, Encoder

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
