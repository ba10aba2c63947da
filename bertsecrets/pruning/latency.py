"""Measured latency of a smaller model and the whole one, in turns."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

_WARM_UP = 2


@dataclass(frozen=True)
class Latency:
    """Milliseconds of a forward pass: the median over the rounds, and the middle half of the smaller model's.

    Args:
        whole: Median of the whole model.
        smaller: Median of the smaller one.
        low, high: Quartiles of the smaller one.
    """

    whole: float
    smaller: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        return {name: round(value, 3) for name, value in asdict(self).items()}


@torch.no_grad()
def compare_latency(
    whole: PreTrainedModel, smaller: Callable[..., Any], length: int, batch_sizes: Sequence[int], rounds: int
) -> dict[int, Latency]:
    """The latencies of two models by batch size, without padding.

    The models take turns, so that a busy machine slows both alike.

    Args:
        whole, smaller: The models, in evaluation mode on one device; the smaller one may be an exported one.
        length: Tokens of each example.
        batch_sizes: Examples of a batch.
        rounds: Timed passes of each model, from 2; two more come before them.
    """
    device = next(whole.parameters()).device
    latencies = {}
    for size in batch_sizes:
        inputs = {
            "input_ids": torch.full((size, length), 5, device=device),
            "attention_mask": torch.ones(size, length, dtype=torch.long, device=device),
        }
        models: tuple[Callable[..., Any], ...] = (whole, smaller)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds + _WARM_UP):
            for model, own in zip(models, times, strict=True):
                own.append(_milliseconds(model, inputs))
        low, middle, high = statistics.quantiles(times[1][_WARM_UP:], n=4)
        latencies[size] = Latency(statistics.median(times[0][_WARM_UP:]), middle, low, high)
    return latencies


def _milliseconds(model: Callable[..., Any], inputs: dict[str, Tensor]) -> float:
    started = time.perf_counter()
    logits_BC: Tensor = model(**inputs).logits
    if logits_BC.device.type != "cpu":
        # An accelerator works on after the call returns; a copy waits for it.
        logits_BC.cpu()
    return 1000 * (time.perf_counter() - started)
