"""Trains the pattern network, first on generated maps, then on annotated ones beside them."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.generator import generate
from bertsecrets.patterns.network import PatternNetwork
from bertsecrets.patterns.segments import ONE, UNKNOWN
from bertsecrets.patterns.views import Views, make_views

_TINY = 1e-7
_AVERAGED_OVER = 0.99
_GENTLER = 2 / 3
_GENERATED = 8
"""One map in so many is a generated one when annotated maps are learned from."""


@dataclass(frozen=True)
class FitConfig:
    """How the network is trained.

    Args:
        generated: How many maps are made.
        epochs: Passes over the generated maps.
        steps: Optimiser steps on annotated maps, each batch seven eighths annotated, the rest generated.
        variants: How often an annotated map occurs, all but the first time under noise.
        hidden: Share of maps of whose segments nothing is said in training, as nothing may be known of them later.
        batch_size: Maps of a batch.
        learning_rate: Of AdamW at its height, under a one-cycle schedule; two thirds of it with annotated maps.
        seed: Of everything random.
    """

    generated: int = 12_000
    epochs: int = 12
    steps: int = 400
    variants: int = 8
    hidden: float = 0.25
    batch_size: int = 96
    learning_rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises UserError for a number with which nothing could be trained."""
        for name in ("generated", "epochs", "steps", "variants", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"patterns.fit.{name} is {getattr(self, name)}; expected a whole number from 1.")
        if self.generated < self.batch_size:
            raise UserError(
                f"patterns.fit.generated is {self.generated}, less than a batch ({self.batch_size}); make more maps, or "
                "give a smaller patterns.fit.batch_size."
            )
        if not 0 <= self.hidden <= 1:
            raise UserError(f"patterns.fit.hidden is {self.hidden}; expected a share from 0 to 1.")


@dataclass(frozen=True)
class LabelledViews:
    """Views of N maps, and how sure which pattern is: ``[N, 5]``, float32, rows summing to 1."""

    views: Views
    target_NP: Tensor

    @classmethod
    def of(
        cls, maps: Sequence[Tensor], target_NP: NDArray[np.float64], first_segment_N: NDArray[np.int64]
    ) -> "LabelledViews":
        """Of maps ``[L, L]``."""
        return cls(views_of(maps, first_segment_N), torch.from_numpy(target_NP).float())

    def __getitem__(self, chosen: Tensor) -> "LabelledViews":
        """Some of them."""
        return LabelledViews(Views(*(view[chosen] for view in self.views)), self.target_NP[chosen])

    def join(self, other: "LabelledViews") -> "LabelledViews":
        """All of both."""
        views = Views(*(torch.cat(pair) for pair in zip(self.views, other.views, strict=True)))
        return LabelledViews(views, torch.cat((self.target_NP, other.target_NP)))


def views_of(maps: Sequence[Tensor], first_segment_N: NDArray[np.int64]) -> Views:
    """The views of maps ``[L, L]`` of whatever lengths, in their order, with the tokens of each one's first segment."""
    places: dict[int, list[int]] = {}
    for place, map_LL in enumerate(maps):
        places.setdefault(len(map_LL), []).append(place)
    parts = []
    for length, chosen in places.items():
        stacked_NLL = torch.stack([maps[place].float() for place in chosen])
        real_NL = torch.ones(len(chosen), length, dtype=torch.bool)
        parts.append(make_views(stacked_NLL[:, None], real_NL, torch.from_numpy(first_segment_N[chosen])))
    order = torch.tensor([place for chosen in places.values() for place in chosen]).argsort()
    return Views(*(torch.cat(kind)[order] for kind in zip(*parts, strict=True)))


def generated_maps(
    count: int, seed: int, advance: Callable[[], object] | None = None
) -> tuple[list[Tensor], NDArray[np.int64], NDArray[np.int64]]:
    """``count`` generated maps, the five patterns equally often, the numbers of their patterns and their first segments."""
    maps, patterns, first_segments = [], [], []
    for made in islice(generate(np.random.default_rng(seed)), count):
        maps.append(torch.from_numpy(made.attention_QK).float())
        patterns.append(PATTERNS.index(made.pattern))
        first_segments.append(ONE if made.separator is None else made.separator + 1)
        if advance is not None:
            advance()
    return maps, np.array(patterns), np.array(first_segments)


def partly_hidden(first_segment_N: NDArray[np.int64], config: FitConfig) -> NDArray[np.int64]:
    """First segments, ``config.hidden`` of them unknown."""
    hidden_N = np.random.default_rng(config.seed).random(len(first_segment_N)) < config.hidden
    return np.where(hidden_N, UNKNOWN, first_segment_N)


def one_hot(pattern_N: NDArray[np.int64]) -> NDArray[np.float64]:
    """Targets ``[N, 5]`` of patterns that are certain."""
    return np.eye(len(PATTERNS))[pattern_N]


def noisy(map_LL: Tensor, generator: torch.Generator) -> Tensor:
    """The map with its logits scaled by 0.85 to 1.15 and under Gaussian noise, as another input might give it."""
    scale, noise = torch.rand(2, generator=generator)
    logit_LL = (map_LL.float() + _TINY).log() * (0.85 + 0.3 * scale)
    noisy_LL: Tensor = (logit_LL + 0.3 * noise * torch.randn(map_LL.shape, generator=generator)).softmax(-1)
    return noisy_LL


def pretrain(generated: LabelledViews, config: FitConfig) -> PatternNetwork:
    """A network that has seen generated maps alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = PatternNetwork()
        network.standardise(generated.views.summary_NM)
        count = len(generated.target_NP)
        steps = config.epochs * (count // config.batch_size)
        generator = torch.Generator().manual_seed(config.seed)
        batches = (generated[chosen] for chosen in _shuffled(count, config.batch_size, generator))
        return _fit(network, batches, steps, config.learning_rate)


def finetune(
    network: PatternNetwork, generated: LabelledViews, annotated: LabelledViews, config: FitConfig
) -> PatternNetwork:
    """A network that goes on from a pre-trained one with annotated maps; the given one stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        generator = torch.Generator().manual_seed(config.seed + 1)
        made = max(1, config.batch_size // _GENERATED)
        sizes = ((annotated, max(1, config.batch_size - made)), (generated, made))
        streams = [_shuffled(len(each.target_NP), size, generator) for each, size in sizes]
        batches = (annotated[ours].join(generated[theirs]) for ours, theirs in zip(*streams, strict=False))
        return _fit(deepcopy(network), batches, config.steps, config.learning_rate * _GENTLER)


def _fit(network: PatternNetwork, batches: Iterator[LabelledViews], steps: int, learning_rate: float) -> PatternNetwork:
    """The running average of the network's weights after ``steps``, in evaluation mode."""
    network.train()
    averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(_AVERAGED_OVER))
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    for batch in islice(batches, steps):
        loss = functional.cross_entropy(network(batch.views), batch.target_NP, label_smoothing=0.02)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        averaged.update_parameters(network)
    fitted = averaged.module
    assert isinstance(fitted, PatternNetwork)
    return fitted.eval()


def _shuffled(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of places without end, each place once in a round."""
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order[: max(batch_size, count // batch_size * batch_size)].split(batch_size)
