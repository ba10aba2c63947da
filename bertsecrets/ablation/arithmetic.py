"""Arithmetic of a sweep: fp32 linear layers by PyTorch or oneDNN, and clear-cut pairs of a screened sweep in bf16.

The choice depends on the processor and the size of the model. A choice by timing would depend on the load of the
machine, so the same command could give different numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from bertsecrets.ablation.onednn import OneDnnLinear, prefers_onednn
from bertsecrets.ablation.settings import BF16, FP32, Precision
from bertsecrets.models.encoder import Autocast, Encoder

_WIDE = 256
"""Smallest hidden size for which bf16 and oneDNN are used.

all-MiniLM-L6-v2 (384) on two cores of an AMD EPYC (Zen 5): 190 GFLOP/s in fp32, 520 to 560 in bf16. A tiny model ran
at .6 of its fp32 speed in bf16. The exact limit, GPUs and Intel processors were not measured.
"""


@dataclass(frozen=True)
class Arithmetic:
    """How linear layers in fp32 are computed, and the precision in which a screened sweep evaluates clear-cut pairs.

    Args:
        precision: ``bf16-mixed``, or ``32-true``: all passes are in the trainer's precision.
        reason: Why passes in bf16 are not possible, as a part of a sentence; None if they are possible.
        onednn: Whether linear layers in fp32 are computed by oneDNN.
    """

    precision: Precision = FP32
    reason: str | None = None
    onednn: bool = False


def preferred(encoder: Encoder) -> tuple[Precision, bool]:
    """The precision of a screened sweep's clear-cut pairs, and whether oneDNN computes fp32 linear layers.

    bf16 is used on a GPU, and on an x86 processor with bf16 instructions.
    """
    device = next(encoder.base.parameters()).device
    if encoder.model.config.hidden_size < _WIDE:
        return FP32, False
    if device.type == "cuda":
        return (BF16 if torch.cuda.is_bf16_supported(including_emulation=False) else FP32), False
    if device.type != "cpu" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return FP32, False
    return (BF16 if torch.cpu._is_avx512_bf16_supported() else FP32), prefers_onednn()


def why_not_bf16(encoder: Encoder, autocast: Autocast, unscreened: str | None = None) -> str | None:
    """Why passes in bf16 in addition to the trainer's are not possible; None if they are.

    Args:
        encoder: The model, on its device.
        autocast: Context manager for the trainer's passes.
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
    return None if weight.device.type == "cpu" else "this accelerator does not support bf16"


def in_bf16(autocast: Autocast, device: str) -> Autocast:
    """Context of a pass in bf16 on a type of device: weights and inputs of products are rounded, the rest is fp32."""
    return _within(autocast, lambda: torch.autocast(device, torch.bfloat16))


def by_onednn(autocast: Autocast) -> Autocast:
    """Context of a pass whose fp32 linear layers are computed by oneDNN, except where gradients are needed."""
    return _within(autocast, OneDnnLinear)


def _within(autocast: Autocast, inner: Autocast) -> Autocast:
    @contextmanager
    def both() -> Iterator[None]:
        with autocast(), inner():
            yield

    return both
