"""Cross-validation of the classifier and the rules, with heads, tasks, both, or models held out."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import PatternNetwork, rule_out_blocks
from bertsecrets.patterns.map_features import UNKNOWN, MapFeatures
from tools.pattern_classifier.annotated_maps import AnnotatedMaps
from tools.pattern_classifier.fitting import (
    FitSettings,
    LabelledFeatures,
    features_of,
    finetune,
    partly_hidden,
    variants_of,
)
from tools.pattern_classifier.scoring import confusion, fit_temperature, macro_f1
from tools.pattern_labels.rules import Rules, masses

Scheme = Literal["head", "task", "head_and_task", "model"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
_HEAD_FOLDS, _COARSE_FOLDS = 6, 3

_THRESHOLDS = np.arange(0.02, 0.92, 0.02)
_ROUNDS = 4
_STARTS = 6


@dataclass(frozen=True)
class PreparedMaps:
    """Features of annotated maps, computed once for all folds and schemes.

    Args:
        features: Features of the N maps, with their segments.
        without_segments: Features of the N maps with unknown segments.
        mass_N3: Masses for the rules.
        variants: ``settings.variants`` variants of each map for training: all N maps unchanged, then all N with noise,
            and so on.
    """

    features: MapFeatures
    without_segments: MapFeatures
    mass_N3: NDArray[np.float64]
    variants: LabelledFeatures

    @classmethod
    def of(cls, annotated: AnnotatedMaps, settings: FitSettings) -> "PreparedMaps":
        """Prepare all annotated maps."""
        first_segment_N = annotated.first_segment_N
        maps, first_segment_of_variant_N = variants_of(annotated.maps, first_segment_N, settings)
        return cls(
            features=features_of(annotated.maps, first_segment_N),
            without_segments=features_of(annotated.maps, np.full_like(first_segment_N, UNKNOWN)),
            mass_N3=masses(annotated.maps, first_segment_N.tolist()),
            variants=LabelledFeatures.of(
                maps,
                np.tile(annotated.vote_NP, (settings.variants, 1)),
                partly_hidden(first_segment_of_variant_N, settings),
            ),
        )


@dataclass(frozen=True)
class HeldOutAnswers:
    """Answers for each map by classifiers trained without its fold.

    Args:
        logit_NP: Logits of the network, float64, before ``block`` is ruled out for one segment.
        without_segments_NP: Logits of the network for unknown segments, float64.
        probability_NP: Probabilities with a temperature that was fitted on the other folds.
        rules_N: Patterns by the rules, tuned on the maps that the network was trained on.
    """

    logit_NP: NDArray[np.float64]
    without_segments_NP: NDArray[np.float64]
    probability_NP: NDArray[np.float64]
    rules_N: NDArray[np.int64]


def schemes_of(annotated: AnnotatedMaps) -> tuple[Scheme, ...]:
    """The schemes that the maps allow: ``model`` takes maps of at least two models."""
    several = len(set(annotated.models)) > 1
    return tuple(scheme for scheme in SCHEMES if several or scheme != "model")


def folds(annotated: AnnotatedMaps, scheme: Scheme, seed: int) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Pairs of masks, maps to train on and maps to test on; every map is tested once.

    ``head``: six folds of heads. ``task``: one task at a time. ``head_and_task``: three folds of heads times three of
    tasks; training leaves out every map that shares its head or its task with a tested one. ``model``: one model at a
    time.
    """
    if scheme == "model":
        model_N = np.array(annotated.models)
        return [(model_N != model, model_N == model) for model in sorted(set(annotated.models))]
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
    """The fold of each member; groups are dealt out in random order."""
    names = sorted(set(groups), key=str)
    order = np.random.default_rng(seed).permutation(len(names))
    fold = {names[place]: number % count for number, place in enumerate(order)}
    return np.array([fold[group] for group in groups])


def cross_validate(
    annotated: AnnotatedMaps,
    prepared: PreparedMaps,
    generated: LabelledFeatures,
    generated_masses_N3: NDArray[np.float64],
    start: PatternNetwork,
    scheme: Scheme,
    settings: FitSettings,
    advance: Callable[[], object] | None = None,
) -> HeldOutAnswers:
    """Train the network and tune the rules once per fold of a scheme.

    Args:
        annotated: The annotated maps.
        prepared: Their features.
        generated: Generated maps for the network.
        generated_masses_N3: Masses of the generated maps, for the rules.
        start: A network pre-trained on generated maps.
        scheme: What is held out.
        settings: Settings of the training.
        advance: Called after each fold.
    """
    mass_N3 = prepared.mass_N3
    logit_NP, without_segments_NP = np.zeros((2, len(annotated.rows), len(PATTERNS)))
    rules_N = np.zeros(len(annotated.rows), np.int64)
    pairs = folds(annotated, scheme, settings.seed)
    for train_N, test_N in pairs:
        chosen = torch.from_numpy(np.tile(train_N, settings.variants).nonzero()[0])
        network = finetune(start, generated, prepared.variants[chosen], settings)
        test = torch.from_numpy(test_N.nonzero()[0])
        with torch.no_grad():
            for output_NP, features in (
                (logit_NP, prepared.features),
                (without_segments_NP, prepared.without_segments),
            ):
                output_NP[test_N] = network(MapFeatures(*(feature[test] for feature in features))).double().numpy()
        generated_N = generated.target_NP.argmax(-1).numpy()
        weight_N = np.concatenate(
            [np.full(train_N.sum(), 1 / train_N.sum()), np.full(len(generated_N), 1 / len(generated_N))]
        )
        rules = tune_rules(
            np.concatenate([mass_N3[train_N], generated_masses_N3]),
            np.concatenate([annotated.pattern_N[train_N], generated_N]),
            weight_N,
        )
        rules_N[test_N] = rules(mass_N3[test_N])
        if advance is not None:
            advance()
    probability_NP = np.zeros_like(logit_NP)
    for _, test_N in pairs:
        temperature = fit_temperature(logit_NP[~test_N], annotated.pattern_N[~test_N])
        scaled_NP = torch.from_numpy(logit_NP[test_N] / temperature)
        ruled_NP = rule_out_blocks(scaled_NP, torch.from_numpy(annotated.first_segment_N[test_N]))
        probability_NP[test_N] = ruled_NP.softmax(-1).numpy()
    return HeldOutAnswers(logit_NP, without_segments_NP, probability_NP, rules_N)


def tune_rules(mass_N3: ArrayLike, label_N: ArrayLike, weight_N: ArrayLike, seed: int = 0) -> Rules:
    """The thresholds with the highest weighted macro-F1, by coordinate search from several starts."""
    mass_N3, label_N, weight_N = np.asarray(mass_N3), np.asarray(label_N), np.asarray(weight_N)
    generator = np.random.default_rng(seed)

    def score(thresholds: Sequence[float]) -> float:
        return float(macro_f1(confusion(label_N, Rules(*thresholds)(mass_N3), weight_N)))

    best = list(astuple(Rules()))
    for start in range(_STARTS):
        current = list(astuple(Rules())) if start == 0 else list(generator.choice(_THRESHOLDS, len(fields(Rules))))
        for _ in range(_ROUNDS):
            for place in range(len(current)):
                scores = [score([*current[:place], value, *current[place + 1 :]]) for value in _THRESHOLDS]
                current[place] = float(_THRESHOLDS[int(np.argmax(scores))])
        if score(current) > score(best):
            best = current
    return Rules(*best)
