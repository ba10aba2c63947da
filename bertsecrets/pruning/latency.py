"""Measured latency of a smaller model and the whole one, in turns."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

WARM_UP = 2
"""Rounds before those that are timed."""


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
        whole_times, times = in_turns([partial(whole, **inputs), partial(smaller, **inputs)], rounds, device)
        low, middle, high = statistics.quantiles(times, n=4)
        latencies[size] = Latency(statistics.median(whole_times), middle, low, high)
    return latencies


def in_turns(
    calls: Sequence[Callable[[], object]],
    rounds: int,
    device: torch.device,
    advance: Callable[[int], object] | None = None,
) -> list[list[float]]:
    """Milliseconds of each call in so many rounds, after :data:`WARM_UP` more; the calls take turns, so that a busy machine slows
    all alike.

    Args:
        calls: What is timed.
        rounds: Timed rounds.
        device: Where the calls compute.
        advance: Called with 1 after each round.
    """
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + WARM_UP):
        for call, spent in zip(calls, times, strict=True):
            started = time.perf_counter()
            call()
            if device.type != "cpu":
                # An accelerator works on after the call returns.
                torch.accelerator.synchronize(device)
            if turn >= WARM_UP:
                spent.append(1000 * (time.perf_counter() - started))
        if advance is not None:
            advance(1)
    return times
