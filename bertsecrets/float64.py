"""Double precision on every device: Apple GPUs have no float64."""

import torch
from torch import Tensor


def float64_device(device: torch.device) -> torch.device:
    """The device on which float64 tensors of work on ``device`` are kept: the CPU for an Apple GPU, else itself."""
    return torch.device("cpu") if device.type == "mps" else device


def to_float64(tensor: Tensor) -> Tensor:
    """A tensor in float64, moved to :func:`float64_device` before it is converted.

    Examples:
        >>> to_float64(torch.tensor([0.5])).dtype
        torch.float64
    """
    return tensor.to(float64_device(tensor.device)).to(torch.float64)
