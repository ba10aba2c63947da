"""Judges the classifier on annotated maps that it has not seen, nor any of their heads or tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.fitting import FitConfig, LabelledViews, finetune, noisy, partly_hidden, views_of
from bertsecrets.patterns.maps import MapRow
from bertsecrets.patterns.network import PatternNetwork, rule_out_blocks
from bertsecrets.patterns.rules import masses, tune
from bertsecrets.patterns.scoring import fit_temperature
from bertsecrets.patterns.segments import UNKNOWN
from bertsecrets.patterns.views import Views

Scheme = Literal["head", "task", "head_and_task"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
_HEAD_FOLDS, _COARSE_FOLDS = 6, 3


@dataclass(frozen=True)
class AnnotatedMaps:
    """Annotated maps, ready to learn from.

    Args:
        rows: Where each of the N maps comes from.
        maps: The maps ``[L, L]``.
        pattern_N: Numbers of their patterns, int64, as the annotators decided in the end.
        vote_NP: Share of each map's labels that named each pattern, ``[N, 5]``: what is learned from, so that a map
            which annotators saw differently pulls less.
    """

    rows: Sequence[MapRow]
    maps: Sequence[Tensor]
    pattern_N: NDArray[np.int64]
    vote_NP: NDArray[np.float64]

    @property
    def heads(self) -> list[tuple[str, int, int]]:
        """Model, layer and head of each map; a head before and after fine-tuning is one head."""
        return [(row.model, row.layer, row.head) for row in self.rows]

    @property
    def tasks(self) -> list[str]:
        """The task of each map."""
        return [row.task for row in self.rows]

    @property
    def first_segment_N(self) -> NDArray[np.int64]:
        """Tokens of each map's first segment."""
        return np.array([row.first_segment for row in self.rows])


@dataclass(frozen=True)
class Material:
    """What is made of annotated maps once, for all folds and schemes.

    Args:
        told: Views of the N maps, with their first segments.
        untold: The same without.
        mass_N3: Masses, for the rules.
        variants: ``config.variants`` variants of each map to learn from: all as they are, then all under noise, again
            and again.
    """

    told: Views
    untold: Views
    mass_N3: NDArray[np.float64]
    variants: LabelledViews

    @classmethod
    def of(cls, annotated: AnnotatedMaps, config: FitConfig) -> "Material":
        """Of all of them."""
        generator = torch.Generator().manual_seed(config.seed)
        first_segment_N = annotated.first_segment_N
        maps = [map_LL.float() for map_LL in annotated.maps]
        for _ in range(config.variants - 1):
            maps += [noisy(map_LL, generator) for map_LL in annotated.maps]
        return cls(
            told=views_of(annotated.maps, first_segment_N),
            untold=views_of(annotated.maps, np.full_like(first_segment_N, UNKNOWN)),
            mass_N3=masses(annotated.maps, first_segment_N.tolist()),
            variants=LabelledViews.of(
                maps,
                np.tile(annotated.vote_NP, (config.variants, 1)),
                partly_hidden(np.tile(first_segment_N, config.variants), config),
            ),
        )


@dataclass(frozen=True)
class HeldOut:
    """What was said of each map by classifiers that had not seen the likes of it.

    Args:
        logit_NP: Of the network, float64, before blocks are ruled out of maps of one segment.
        unsegmented_NP: Of the network that is not told where segments end, float64.
        probability_NP: After division by a temperature that was fitted on the maps of the other folds.
        rules_N: Patterns by the rules, whose thresholds were tuned on what the network was trained on.
    """

    logit_NP: NDArray[np.float64]
    unsegmented_NP: NDArray[np.float64]
    probability_NP: NDArray[np.float64]
    rules_N: NDArray[np.int64]


def folds(annotated: AnnotatedMaps, scheme: Scheme, seed: int) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Pairs of which maps to train on and which to test on; every map is tested once.

    ``head``: six folds of heads. ``task``: one task at a time. ``head_and_task``: three folds of heads times three of
    tasks; training leaves out every map that shares its head or its task with one to test.
    """
    head_N = _fold_numbers(annotated.heads, _HEAD_FOLDS if scheme == "head" else _COARSE_FOLDS, seed)
    tasks = annotated.tasks
    task_N = _fold_numbers(tasks, len(set(tasks)) if scheme == "task" else _COARSE_FOLDS, seed)
    if scheme == "head":
        return [(head_N != fold, head_N == fold) for fold in np.unique(head_N)]
    if scheme == "task":
        return [(task_N != fold, task_N == fold) for fold in np.unique(task_N)]
    cells = [(head, task) for head in np.unique(head_N) for task in np.unique(task_N)]
    return [((head_N != head) & (task_N != task), (head_N == head) & (task_N == task)) for head, task in cells]


def _fold_numbers(groups: Sequence[object], count: int, seed: int) -> NDArray[np.int64]:
    """The fold of each member, groups dealt out in random order."""
    names = sorted(set(groups), key=str)
    order = np.random.default_rng(seed).permutation(len(names))
    fold = {names[place]: number % count for number, place in enumerate(order)}
    return np.array([fold[group] for group in groups])


def held_out(
    annotated: AnnotatedMaps,
    material: Material,
    generated: LabelledViews,
    generated_masses_N3: NDArray[np.float64],
    start: PatternNetwork,
    scheme: Scheme,
    config: FitConfig,
    advance: Callable[[], object] | None = None,
) -> HeldOut:
    """Trains the network and the rules once for each fold of a scheme.

    Args:
        annotated: All of them.
        material: What was made of them.
        generated: Maps to train on beside them.
        generated_masses_N3: Masses of the generated maps, for the rules.
        start: A network that has seen generated maps alone.
        scheme: What is held out.
        config: How the network is trained.
        advance: Called after each fold.
    """
    mass_N3 = material.mass_N3
    logit_NP, unsegmented_NP = np.zeros((2, len(annotated.rows), len(PATTERNS)))
    rules_N = np.zeros(len(annotated.rows), np.int64)
    pairs = folds(annotated, scheme, config.seed)
    for train_N, test_N in pairs:
        chosen = torch.from_numpy(np.tile(train_N, config.variants).nonzero()[0])
        network = finetune(start, generated, material.variants[chosen], config)
        test = torch.from_numpy(test_N.nonzero()[0])
        with torch.no_grad():
            for found_NP, views in ((logit_NP, material.told), (unsegmented_NP, material.untold)):
                found_NP[test_N] = network(Views(*(view[test] for view in views))).double().numpy()
        made_N = generated.target_NP.argmax(-1).numpy()
        weight_N = np.concatenate([np.full(train_N.sum(), 1 / train_N.sum()), np.full(len(made_N), 1 / len(made_N))])
        rules = tune(
            np.concatenate([mass_N3[train_N], generated_masses_N3]),
            np.concatenate([annotated.pattern_N[train_N], made_N]),
            weight_N,
        )
        rules_N[test_N] = rules(mass_N3[test_N])
        if advance is not None:
            advance()
    probability_NP = np.zeros_like(logit_NP)
    for _, test_N in pairs:
        temperature = fit_temperature(logit_NP[~test_N], annotated.pattern_N[~test_N])
        cooled_NP = torch.from_numpy(logit_NP[test_N] / temperature)
        ruled_NP = rule_out_blocks(cooled_NP, torch.from_numpy(annotated.first_segment_N[test_N]))
        probability_NP[test_N] = ruled_NP.softmax(-1).numpy()
    return HeldOut(logit_NP, unsegmented_NP, probability_NP, rules_N)
