"""Latency of a model on this machine: milliseconds per pass by the heads and neurons that its layers keep."""

import copy
import logging
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from torch import nn

from bertsecrets.ablation.partial_passes import clean_pass
from bertsecrets.models.encoder import describe, evaluating
from bertsecrets.pruning.latency import in_turns, processor_name
from bertsecrets.pruning.removal import Kept, check_removable, narrow_layer
from bertsecrets.results.formatting import percentage

_log = logging.getLogger(__name__)

Array = NDArray[np.float64]

_WIDTHS = 16
"""How many neuron counts to time, evenly spaced; more would differ by less than the noise."""

_CALIBRATED = 0.2
"""Lower limit for scaling the table by a measured model, because a single delayed pass is unreliable."""

_LEAST = 0.02
"""Least fixed share of a pass; layers timed separately may take longer than in the model."""

_SCATTER = 0.2
"""Excess of the median over the fastest time above which a warning is given; below 0.1 on an idle machine."""


@dataclass(frozen=True)
class LatencyTable:
    """Milliseconds of a pass by the parts a layer keeps; times of heads and neurons add up.

    Args:
        heads_H: Additional time of a layer's attention with 0, 1, ... heads; ``[heads + 1]``, ascending.
        widths: Numbers of neurons, ascending from 0.
        neurons_W: Additional time of its feed-forward part with these numbers; ascending.
        fixed: Time of everything else: embeddings, normalisations, the task head.
        layers: Number of layers.
        batch_size, length, threads, device, processor: Conditions of the measurement.
    """

    heads_H: Array
    widths: tuple[int, ...]
    neurons_W: Array
    fixed: float
    layers: int
    batch_size: int
    length: int
    threads: int
    device: str
    processor: str

    @property
    def whole(self) -> float:
        """Milliseconds of the original model."""
        return self.fixed + self.layers * float(self.heads_H[-1] + self.neurons_W[-1])

    @property
    def fastest(self) -> float:
        """The largest possible speed-up: one head in one layer, and nothing else."""
        return self.whole / (self.fixed + float(self.heads_H[1]))

    def predict(self, kept: Kept) -> float:
        """Milliseconds of a model with these heads and neurons."""
        milliseconds = self.fixed + sum(float(self.heads_H[len(heads)]) for heads in kept.layers)
        if kept.neurons is None:
            return milliseconds + self.layers * float(self.neurons_W[-1])
        counts = [len(neurons) for neurons in kept.neurons]
        return milliseconds + float(np.interp(counts, self.widths, self.neurons_W).sum())

    def calibrated(self, kept: Kept, speedup: float) -> "LatencyTable":
        """The table with the times of heads and neurons rescaled to predict the measured speed-up of a smaller model.

        A layer timed separately finds its weights in the cache, unlike in a model.

        Args:
            kept: The parts the model keeps.
            speedup: Its measured speed-up.
        """
        saved, cut = self.whole * (1 - 1 / speedup), self.whole - self.fixed
        # Some time is always fixed.
        scale = float(np.clip(saved / (self.whole - self.predict(kept)), _CALIBRATED, (1 - _LEAST) * self.whole / cut))
        return replace(
            self, heads_H=scale * self.heads_H, neurons_W=scale * self.neurons_W, fixed=self.whole - scale * cut
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LatencyTable":
        """The table from :meth:`as_dict`."""
        arrays = {name: np.array(values[name], np.float64) for name in ("heads_H", "neurons_W")}
        return cls(**{**values, **arrays, "widths": tuple(values["widths"])})

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a file."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(self).items()
        }


@torch.no_grad()
def measure_latency(
    model: nn.Module,
    *,
    batch_size: int,
    length: int,
    rounds: int,
    advance: Callable[[int], object] | None = None,
) -> LatencyTable:
    """Time one layer with every number of heads and several numbers of neurons, alternately, and the original model.

    One layer represents all, as they have equal shapes. Times that decrease as more is kept are noise, which isotonic
    regression smooths.

    Args:
        rounds: Timed passes of each shape, after two warm-up passes.

    Raises:
        UserError: If heads of this family cannot be removed.
    """
    encoder = describe(model)
    check_removable(encoder)
    assert encoder.family is not None
    device = next(encoder.model.parameters()).device
    inputs = {
        "input_ids": torch.full((batch_size, length), 5, device=device),
        "attention_mask": torch.ones(batch_size, length, dtype=torch.long, device=device),
    }
    total, heads = encoder.family.feed_forward(encoder.layers[0]).output.in_features, encoder.num_heads
    widths = sorted({round(total * step / _WIDTHS) for step in range(_WIDTHS + 1)})
    shapes = [(count, total) for count in range(heads + 1)] + [(heads, count) for count in widths[:-1]]
    with evaluating(encoder.model):
        _, (first, *_) = clean_pass(encoder, inputs)
        calls: list[Callable[[], Any]] = [partial(encoder.model, **inputs)]
        for head_count, neuron_count in shapes:
            layer = copy.deepcopy(encoder.layers[0])
            narrow_layer(encoder.family, layer, heads, range(head_count), range(neuron_count))
            calls.append(partial(layer, first.hidden_BSD, **first.arguments))
        times = in_turns(calls, rounds, device, advance)
    excess = statistics.median(times[0]) / min(times[0]) - 1
    if excess > _SCATTER:
        _log.warning(
            f"Noisy timing: half of the passes took at least {percentage(excess)} longer than the fastest, so "
            "speed-ups may differ from the plan. Repeat on an idle machine, with more rounds (shrink.latency_rounds) "
            "or on one thread (OMP_NUM_THREADS=1)."
        )
    # Other load only adds time.
    whole, *milliseconds = [min(times_of_call) for times_of_call in times]
    heads_H = _ascending(np.array(milliseconds[: heads + 1]))
    # The last head count is the whole layer, which is also the last width.
    neurons_W = _ascending(np.array([*milliseconds[heads + 1 :], milliseconds[heads]]))
    # What else a layer computes, such as its normalisations, is part of the fixed time.
    fixed = max(whole - encoder.num_layers * float(heads_H[-1] + neurons_W[-1]), _LEAST * whole)
    return LatencyTable(
        heads_H,
        tuple(widths),
        neurons_W,
        fixed,
        encoder.num_layers,
        batch_size,
        length,
        torch.get_num_threads(),
        device.type,
        processor_name(device),
    )


def _ascending(milliseconds_N: Array) -> Array:
    """Times smoothed to be ascending, minus the first."""
    index_N = np.arange(len(milliseconds_N))
    even_N = IsotonicRegression().fit_transform(index_N, milliseconds_N)
    return np.asarray(even_N - even_N[0], np.float64)
