"""Linear layers in fp32 by oneDNN, on processors where PyTorch's own library does not use AVX-512.

all-MiniLM-L6-v2 on two cores of an AMD EPYC (Zen 5), batches of 8 to 64 texts of 32 or 64 tokens: 190 GFLOP/s by
PyTorch's choice, 270 to 350 by oneDNN.
"""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_ROWS = 64
"""oneDNN gets multiples of this many rows, because it compiles code for each number of rows and keeps it."""


def prefers_onednn() -> bool:
    """Whether this processor has AVX-512 but is not made by Intel: PyTorch's MKL then leaves AVX-512 unused."""
    # platform.processor() is empty on most Linux systems.
    listed = Path("/proc/cpuinfo")
    processor = listed.read_text("utf-8") if listed.is_file() else platform.processor()
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and "GenuineIntel" not in processor


def can_use_onednn(weight: Tensor) -> bool:
    """Whether oneDNN can compute the linear layers of passes with such weights in the current context."""
    # An operator without a public name, which other versions of PyTorch may lack.
    available = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return available and not torch.is_autocast_enabled("cpu") and _is_plain_fp32(weight)


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
        not torch.is_autocast_enabled("cpu")
        and all(type(tensor) in (Tensor, nn.Parameter) and _is_plain_fp32(tensor) for tensor in tensors)
        and input_XD.numel() > 0
        and input_XD.dim() > 1
        and weight_ED.dim() == 2
        and (bias_E is None or (bias_E.shape == weight_ED.shape[:1] and bias_E.is_contiguous()))
    )


def _is_plain_fp32(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.layout == torch.strided
