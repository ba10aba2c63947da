"""How good a pattern classifier is on maps that it has not seen, as ``evaluation.json`` says it."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.crossvalidation import AnnotatedMaps, HeldOut, Material, Scheme
from bertsecrets.patterns.fitting import views_of
from bertsecrets.patterns.labels import majority_of_others, read_labels, votes
from bertsecrets.patterns.network import PatternNetwork, judge
from bertsecrets.patterns.scoring import (
    bootstrap_f1,
    calibration_error,
    confusion,
    f1_scores,
    macro_f1,
    reliability,
)

_FEWEST = 10
_CLEAR = 0.8


@torch.no_grad()
def generated_scores(
    network: PatternNetwork,
    start: PatternNetwork,
    unseen: Sequence[torch.Tensor],
    unseen_N: NDArray[np.int64],
    first_segment_N: NDArray[np.int64],
    annotated: AnnotatedMaps,
    material: Material,
) -> dict[str, float]:
    """Macro-F1 on generated maps, and what annotated maps add."""
    views = views_of(unseen, first_segment_N)
    found_N = start(material.told).argmax(-1).numpy()
    return {
        "maps": len(unseen),
        "macro_f1": float(macro_f1(confusion(unseen_N, network(views).argmax(-1).numpy()))),
        "macro_f1_of_annotated_without_learning_from_them": float(
            macro_f1(confusion(annotated.pattern_N, found_N), _judged(annotated.pattern_N))
        ),
    }


def scores_of(annotated: AnnotatedMaps, answer: HeldOut, margin: float, resamples: int, seed: int) -> dict[str, Any]:
    """Everything about the answers of one scheme: macro-F1 on all maps and on parts of them, by pattern, calibration."""
    label_N, found_N = annotated.pattern_N, answer.probability_NP.argmax(1)
    table_PP = confusion(label_N, found_N)
    uncertain_N = judge(torch.from_numpy(answer.probability_NP).log(), margin).uncertain.numpy()
    bins = reliability(answer.probability_NP, label_N)
    plain = torch.from_numpy(answer.logit_NP).softmax(-1).numpy()
    untold_N = answer.unsegmented_NP.argmax(1)
    everywhere = np.ones(len(label_N), np.bool_)
    share_N = annotated.vote_NP.max(1)
    clear_N = share_N >= _CLEAR
    sought_N = np.array([bool(row.sought) for row in annotated.rows])
    # Maps sought for rare patterns are those that a classifier may well get wrong; the others are as heads have them.
    parts = {
        "clear": clear_N,
        "unanimous": share_N == 1,
        "taken_whatever_they_show": ~sought_N,
        "taken_whatever_they_show_clear": ~sought_N & clear_N,
        "sought": sought_N,
        "sought_clear": sought_N & clear_N,
    }
    return {
        **_against_rules(annotated, answer, everywhere, resamples, seed),
        **{
            name: _against_rules(annotated, answer, chosen_N, resamples, seed)
            for name, chosen_N in parts.items()
            if chosen_N.any()
        },
        "macro_f1_of_all_patterns": float(macro_f1(table_PP)),
        "without_segments": {
            name: float(macro_f1(confusion(label_N[chosen_N], untold_N[chosen_N]), _judged(label_N[chosen_N])))
            for name, chosen_N in {"all": everywhere, **parts}.items()
            if chosen_N.any()
        },
        "f1": _by_pattern(table_PP),
        "f1_rules": _by_pattern(confusion(label_N, answer.rules_N)),
        "confusion": table_PP.astype(int).tolist(),
        "accuracy_by_task": {
            task: float((found_N == label_N)[[each == task for each in annotated.tasks]].mean())
            for task in sorted(set(annotated.tasks))
        },
        "uncertain": float(uncertain_N.mean()),
        "macro_f1_of_the_certain": float(
            macro_f1(confusion(label_N[~uncertain_N], found_N[~uncertain_N]), _judged(annotated.pattern_N))
        ),
        "calibration_error": calibration_error(bins),
        "calibration_error_before_temperature": calibration_error(reliability(plain, label_N)),
        "reliability": [asdict(each) for each in bins],
    }


def _against_rules(
    annotated: AnnotatedMaps, answer: HeldOut, chosen_N: NDArray[np.bool_], resamples: int, seed: int
) -> dict[str, Any]:
    """Network and rules on some of the maps, over the patterns of which there are enough among them."""
    label_N, found_N = annotated.pattern_N[chosen_N], answer.probability_NP.argmax(1)[chosen_N]
    rules_N = answer.rules_N[chosen_N]
    heads = [head for head, chosen in zip(annotated.heads, chosen_N, strict=True) if chosen]
    judged_P = _judged(label_N)
    network, rules, difference = bootstrap_f1(
        label_N, [found_N, rules_N], heads, judged_P, resamples=resamples, seed=seed
    )
    return {
        "maps": len(label_N),
        "judged": [name for name, judged in zip(PATTERNS, judged_P, strict=True) if judged],
        "macro_f1": asdict(network),
        "macro_f1_rules": asdict(rules),
        "macro_f1_difference": asdict(difference),
        "accuracy": float((found_N == label_N).mean()),
        "accuracy_rules": float((rules_N == label_N).mean()),
    }


def _judged(pattern_N: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The patterns of which there are maps enough for an F1 to mean something."""
    return np.bincount(pattern_N, minlength=len(PATTERNS)) >= _FEWEST


def beside_annotators(folder: Path, annotated: AnnotatedMaps, answers: dict[Scheme, HeldOut]) -> dict[str, Any]:
    """Macro-F1 of each pass, and of the network and the rules on the same maps, against what the other passes say."""
    labels = read_labels(folder)
    named, place = votes(labels), {row.map: number for number, row in enumerate(annotated.rows)}
    judged_P = _judged(annotated.pattern_N)
    found = {}
    for number in sorted({label.number for label in labels}):
        others = {name: pattern for name, pattern in majority_of_others(labels, number).items() if name in place}
        if not others:
            continue
        label_N = np.array([PATTERNS.index(pattern) for pattern in others.values()])
        chosen_N = np.array([place[name] for name in others])

        def score(said_N: NDArray[np.int64], label_N: NDArray[np.int64] = label_N) -> float:
            return float(macro_f1(confusion(label_N, said_N), judged_P))

        found[str(number)] = {
            "maps": len(others),
            "annotators": score(np.array([PATTERNS.index(named[name][number]) for name in others])),
            "network": {scheme: score(each.probability_NP.argmax(1)[chosen_N]) for scheme, each in answers.items()},
            "rules": {scheme: score(each.rules_N[chosen_N]) for scheme, each in answers.items()},
        }
    return found


def _by_pattern(table_PP: NDArray[np.float64]) -> dict[str, float | None]:
    scores = zip(PATTERNS, f1_scores(table_PP).tolist(), strict=True)
    return {name: None if math.isnan(score) else score for name, score in scores}
