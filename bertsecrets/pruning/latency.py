"""Measured latency of a smaller model and the whole one, in turns."""

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

_log = logging.getLogger(__name__)

WARM_UP = 2
"""Rounds before those that are timed."""

_SCATTER = 0.2
"""Excess of the median over the fastest time that is reported; on a machine without other work it is below 0.1."""


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
    all alike. On one thread of the CPU it is processor time, which leaves out when other programs ran instead.

    Args:
        calls: What is timed.
        rounds: Timed rounds.
        device: Where the calls compute.
        advance: Called with 1 after each round.
    """
    times: list[list[float]] = [[] for _ in calls]
    clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    for turn in range(rounds + WARM_UP):
        for call, spent in zip(calls, times, strict=True):
            started = clock()
            call()
            if device.type != "cpu":
                # An accelerator works on after the call returns.
                torch.accelerator.synchronize(device)
            if turn >= WARM_UP:
                spent.append(1000 * (clock() - started))
        if advance is not None:
            advance(1)
    return times


def warn_of_scatter(times: Sequence[float]) -> None:
    """Say so where repeated times of one call scatter too much for a plan to rest on them."""
    excess = statistics.median(times) / min(times) - 1
    if excess > _SCATTER:
        _log.warning(
            f"Times scatter: half of the passes took {excess:.0%} longer than the fastest, so speed-ups may differ from what is planned. "
            "Repeat it when nothing else runs, with more rounds (shrink.latency_rounds) or on one thread (OMP_NUM_THREADS=1)."
        )
