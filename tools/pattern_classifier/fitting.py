"""Training of the pattern network: first on generated maps, then on annotated and generated ones."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from typing_extensions import Self

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import PatternNetwork
from bertsecrets.patterns.map_features import ONE, UNKNOWN, MapFeatures, map_features
from bertsecrets.settings import Settings
from tools.pattern_classifier.generator import generate

_TINY = 1e-7
_AVERAGE_DECAY = 0.99
_FINETUNING_RATE = 2 / 3
_BRIGHT, _MIRRORED = 0.33, 0.5
_GENERATED_ONE_IN = 8
"""When annotated maps are learned from, one map in so many is generated."""

_POSITIVE = "a whole number from 1"


class FitSettings(Settings):
    """The ``fit`` section: how the network is trained.

    Args:
        generated: Number of generated maps.
        epochs: Passes over the generated maps.
        steps: Optimiser steps on annotated maps; seven eighths of each batch are annotated, the rest generated.
        variants: Copies of an annotated map; all but the first have noise, and half of these are mirrored.
        hidden: Share of training maps with unknown segments.
        batch_size: Maps per batch.
        learning_rate: Peak learning rate of AdamW under a one-cycle schedule; two thirds of it on annotated maps.
        seed: Seed of everything random.
    """

    generated: int = Field(default=6_000, ge=1, description=_POSITIVE)
    epochs: int = Field(default=12, ge=1, description=_POSITIVE)
    steps: int = Field(default=400, ge=1, description=_POSITIVE)
    variants: int = Field(default=8, ge=1, description=_POSITIVE)
    hidden: float = Field(default=0.25, ge=0, le=1, description="a share from 0 to 1")
    batch_size: int = Field(default=96, ge=1, description=_POSITIVE)
    learning_rate: float = Field(default=3e-3, gt=0, le=1, description="a number above 0 and up to 1")
    seed: int = Field(default=42, ge=0, lt=2**32, description=f"a whole number from 0 to {2**32 - 1}")

    @model_validator(mode="after")
    def _enough_for_a_batch(self) -> Self:
        if self.generated < self.batch_size:
            raise UserError(
                f"fit.generated is {self.generated}, less than a batch ({self.batch_size}); generate more maps, or "
                "give a smaller fit.batch_size."
            )
        return self


@dataclass(frozen=True)
class LabelledFeatures:
    """Features of N maps and their targets ``[N, 5]``, float32, rows summing to 1."""

    features: MapFeatures
    target_NP: Tensor

    @classmethod
    def of(
        cls, maps: Sequence[Tensor], target_NP: NDArray[np.float64], first_segment_N: NDArray[np.int64]
    ) -> "LabelledFeatures":
        """Compute the features of maps ``[L, L]``."""
        return cls(features_of(maps, first_segment_N), torch.from_numpy(target_NP).float())

    def __getitem__(self, chosen: Tensor) -> "LabelledFeatures":
        """Some of the maps."""
        return LabelledFeatures(MapFeatures(*(feature[chosen] for feature in self.features)), self.target_NP[chosen])

    def join(self, other: "LabelledFeatures") -> "LabelledFeatures":
        """The maps of both, in order."""
        features = MapFeatures(*(torch.cat(pair) for pair in zip(self.features, other.features, strict=True)))
        return LabelledFeatures(features, torch.cat((self.target_NP, other.target_NP)))


def features_of(maps: Sequence[Tensor], first_segment_N: NDArray[np.int64]) -> MapFeatures:
    """Features of maps ``[L, L]`` of any lengths, in their order.

    Args:
        maps: The N maps.
        first_segment_N: As in :func:`~bertsecrets.patterns.map_features.first_segments`.
    """
    places: dict[int, list[int]] = {}
    for place, map_LL in enumerate(maps):
        places.setdefault(len(map_LL), []).append(place)
    parts = []
    for length, chosen in places.items():
        stacked_NLL = torch.stack([maps[place].float() for place in chosen])
        real_NL = torch.ones(len(chosen), length, dtype=torch.bool)
        parts.append(map_features(stacked_NLL[:, None], real_NL, torch.from_numpy(first_segment_N[chosen])))
    order = torch.tensor([place for chosen in places.values() for place in chosen]).argsort()
    return MapFeatures(*(torch.cat(feature)[order] for feature in zip(*parts, strict=True)))


def generated_maps(
    count: int, seed: int, advance: Callable[[], object] | None = None
) -> tuple[list[Tensor], NDArray[np.int64], NDArray[np.int64]]:
    """``count`` generated maps, the five patterns equally often; the numbers of their patterns; their first
    segments.
    """
    maps, patterns, first_segments = [], [], []
    for generated in islice(generate(np.random.default_rng(seed)), count):
        maps.append(torch.from_numpy(generated.attention_QK).float())
        patterns.append(PATTERNS.index(generated.pattern))
        first_segments.append(ONE if generated.separator is None else generated.separator + 1)
        if advance is not None:
            advance()
    return maps, np.array(patterns), np.array(first_segments)


def variants_of(
    maps: Sequence[Tensor], first_segment_N: NDArray[np.int64], settings: FitSettings
) -> tuple[list[Tensor], NDArray[np.int64]]:
    """``settings.variants`` copies of each map, all N unchanged, then all N with noise, and so on; their first
    segments.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    copies, first_segments = [map_LL.float() for map_LL in maps], first_segment_N.tolist()
    for _ in range(settings.variants - 1):
        for map_LL, first_segment in zip(maps, first_segment_N.tolist(), strict=True):
            copy_LL = noisy(map_LL, generator)
            if torch.rand((), generator=generator) < _MIRRORED:
                copy_LL, first_segment = mirrored(copy_LL, first_segment)
            copies.append(copy_LL)
            first_segments.append(first_segment)
    return copies, np.array(first_segments)


def partly_hidden(first_segment_N: NDArray[np.int64], settings: FitSettings) -> NDArray[np.int64]:
    """First segments, a share ``settings.hidden`` of them unknown."""
    hidden_N = np.random.default_rng(settings.seed).random(len(first_segment_N)) < settings.hidden
    return np.where(hidden_N, UNKNOWN, first_segment_N)


def one_hot(pattern_N: NDArray[np.int64]) -> NDArray[np.float64]:
    """Targets ``[N, 5]`` of maps with one pattern each."""
    return np.eye(len(PATTERNS))[pattern_N]


def noisy(map_LL: Tensor, generator: torch.Generator) -> Tensor:
    """The map with its logits scaled by 0.85 to 1.15 and with Gaussian noise; one in three has a bright cell more."""
    scale, noise, bright = torch.rand(3, generator=generator)
    logit_LL = (map_LL.float() + _TINY).log() * (0.85 + 0.3 * scale)
    logit_LL += 0.3 * noise * torch.randn(map_LL.shape, generator=generator)
    if bright < _BRIGHT:
        query, key = torch.randint(len(map_LL), (2,), generator=generator)
        # The cell takes half of its row, or more.
        logit_LL[query, key] = logit_LL[query].logsumexp(-1) + 2 * torch.rand((), generator=generator)
    noisy_LL: Tensor = logit_LL.softmax(-1)
    return noisy_LL


def mirrored(map_LL: Tensor, first_segment: int) -> tuple[Tensor, int]:
    """The map of the tokens in reverse order, which shows the same pattern, and its first segment."""
    return map_LL.flip(0, 1), len(map_LL) - first_segment if first_segment > 0 else first_segment


def pretrain(generated: LabelledFeatures, settings: FitSettings) -> PatternNetwork:
    """Train a network on generated maps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = PatternNetwork()
        summary_NM = generated.features.summary_NM
        network.mean_M = summary_NM.mean(0)
        # Do not scale up a number that hardly varies.
        network.deviation_M = summary_NM.std(0).clamp(min=1e-3)
        count = len(generated.target_NP)
        steps = settings.epochs * (count // settings.batch_size)
        generator = torch.Generator().manual_seed(settings.seed)
        batches = (generated[chosen] for chosen in _shuffled(count, settings.batch_size, generator))
        return _fit(network, batches, steps, settings.learning_rate)


def finetune(
    network: PatternNetwork, generated: LabelledFeatures, annotated: LabelledFeatures, settings: FitSettings
) -> PatternNetwork:
    """Train a copy of a pre-trained network on annotated and generated maps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        generator = torch.Generator().manual_seed(settings.seed + 1)
        few = max(1, settings.batch_size // _GENERATED_ONE_IN)
        streams = (
            _balanced(annotated.target_NP, max(1, settings.batch_size - few), generator),
            _shuffled(len(generated.target_NP), few, generator),
        )
        batches = (annotated[first].join(generated[second]) for first, second in zip(*streams, strict=False))
        return _fit(deepcopy(network), batches, settings.steps, settings.learning_rate * _FINETUNING_RATE)


def _fit(
    network: PatternNetwork, batches: Iterator[LabelledFeatures], steps: int, learning_rate: float
) -> PatternNetwork:
    """Train for ``steps``; returns the running average of the weights, in evaluation mode."""
    network.train()
    averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(_AVERAGE_DECAY))
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    for batch in islice(batches, steps):
        loss = functional.cross_entropy(network(batch.features), batch.target_NP, label_smoothing=0.02)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        averaged.update_parameters(network)
    fitted = averaged.module
    assert isinstance(fitted, PatternNetwork)
    return fitted.eval()


def _balanced(target_NP: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless batches of positions, drawn with weights of one over the root of the number of maps with the pattern.

    Rare patterns of one model may be common ones of another.
    """
    pattern_N = target_NP.argmax(-1)
    weight_N = pattern_N.bincount(minlength=len(PATTERNS))[pattern_N].double().rsqrt()
    while True:
        yield torch.multinomial(weight_N, size, replacement=True, generator=generator)


def _shuffled(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless batches of positions; each position occurs once per round."""
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order[: max(batch_size, count // batch_size * batch_size)].split(batch_size)
