"""bf16 for clear-cut pairs of a screened sweep: when it is used, and when it cannot be.

The choice depends on the processor and the size of the model. A choice by timing would depend on the load of the
machine, so the same command could give different numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
