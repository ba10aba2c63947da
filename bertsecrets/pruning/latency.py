"""Latency of a smaller and the original model, measured alternately."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from bertsecrets.pruning.rows import Timing

WARM_UP = 2
"""Warm-up rounds before the timed ones."""


def processor_name(device: torch.device) -> str:
    """The processor name of a device, such as ``AMD EPYC 7763 64-Core Processor``."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    # platform.processor() is empty on most Linux systems.
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text("utf-8").splitlines() if listed.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@torch.no_grad()
def compare_latency(
    whole: PreTrainedModel,
    smaller: Callable[..., Any],
    length: int,
    batch_sizes: Sequence[int],
    rounds: int,
    attempt: int = 0,
) -> list[Timing]:
    """The latencies of two models at each batch size, without padding.

    Args:
        whole, smaller: The original and the smaller model, in evaluation mode on one device; the smaller one may be
            exported.
        rounds: Timed passes of each model, at least 2, after two warm-up passes.
    """
    device = next(whole.parameters()).device
    timings = []
    for size in batch_sizes:
        inputs = {
            "input_ids": torch.full((size, length), 5, device=device),
            "attention_mask": torch.ones(size, length, dtype=torch.long, device=device),
        }
        whole_times, times = in_turns([partial(whole, **inputs), partial(smaller, **inputs)], rounds, device)
        low, middle, high = statistics.quantiles(times, n=4)
        timings.append(Timing(attempt, size, statistics.median(whole_times), middle, low, high))
    return timings


def in_turns(
    calls: Sequence[Callable[[], object]],
    rounds: int,
    device: torch.device,
    advance: Callable[[int], object] | None = None,
) -> list[list[float]]:
    """Milliseconds of each call in this many rounds, after :data:`WARM_UP` others. The calls alternate, so that other
    load affects them equally. On one CPU thread, processor time is used, which excludes time of other programs.
    """
    times: list[list[float]] = [[] for _ in calls]
    clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    for turn in range(rounds + WARM_UP):
        for call, spent in zip(calls, times, strict=True):
            started = clock()
            call()
            if device.type != "cpu":
                # An accelerator is still busy after the call returns.
                torch.accelerator.synchronize(device)
            if turn >= WARM_UP:
                spent.append(1000 * (clock() - started))
        if advance is not None:
            advance(1)
    return times
