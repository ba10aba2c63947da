"""How good a classifier of patterns is: F1, calibration, and intervals over heads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from bertsecrets.patterns.classes import PATTERNS

Array = NDArray[np.float64]


def confusion(label_N: ArrayLike, found_N: ArrayLike, weight_N: ArrayLike | None = None) -> Array:
    """How often each pattern (rows) was taken for each (columns), ``[5, 5]``; weighted where ``weight_N`` is given."""
    size = len(PATTERNS)
    pair_N = np.asarray(label_N, np.int64) * size + np.asarray(found_N, np.int64)
    table_PP: Array = np.bincount(pair_N, weight_N, size * size).astype(np.float64).reshape(size, size)
    return table_PP


def f1_scores(confusion_PP: Array) -> Array:
    """F1 of each pattern, 2 TP / (2 TP + FP + FN), over the last two axes; NaN for a pattern that no map has."""
    hits_P = np.diagonal(confusion_PP, axis1=-2, axis2=-1)
    there_P, found_P = confusion_PP.sum(-1), confusion_PP.sum(-2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(there_P > 0, 2 * hits_P / (there_P + found_P), np.nan)


def macro_f1(confusion_PP: Array, judged_P: NDArray[np.bool_] | None = None) -> Array:
    """Mean F1 over the patterns that some map has, of ``judged_P`` alone where given; NaN without maps."""
    score_P = f1_scores(confusion_PP)
    if judged_P is not None:
        score_P = np.where(judged_P, score_P, np.nan)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(score_P, axis=-1) / np.isfinite(score_P).sum(-1))


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its 95% interval."""

    value: float
    low: float
    high: float


def bootstrap_f1(
    label_N: ArrayLike,
    found_RN: ArrayLike,
    group_N: Sequence[object],
    judged_P: NDArray[np.bool_] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> list[Estimate]:
    """Macro-F1 of each of R classifiers, then of each but the last less the last, with percentile intervals.

    Whole groups are drawn with replacement, the same ones for all classifiers: maps of one head are alike, and what is
    common to two classifiers cancels in their difference (Efron and Tibshirani 1993, chapter 8).

    Args:
        label_N: True patterns.
        found_RN: Patterns that each classifier found.
        group_N: The group of each map.
        judged_P: The patterns whose F1 is averaged; None for all.
        resamples: How many.
        seed: Of the draws.
    """
    label_N, found_RN = np.asarray(label_N), np.asarray(found_RN)
    names = list(dict.fromkeys(group_N))
    places_N = np.array([names.index(each) for each in group_N])
    per_group = np.stack(
        [[confusion(label_N[places_N == g], found_N[places_N == g]) for g in range(len(names))] for found_N in found_RN]
    )
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    values_RS = np.stack([macro_f1(np.einsum("sg,gij->sij", drawn, each), judged_P) for each in per_group])
    plain_R = np.stack([macro_f1(each.sum(0), judged_P) for each in per_group])
    both = [(plain_R[r], values_RS[r]) for r in range(len(plain_R))]
    both += [(plain_R[r] - plain_R[-1], values_RS[r] - values_RS[-1]) for r in range(len(plain_R) - 1)]
    return [Estimate(float(value), *map(float, np.quantile(draws, [0.025, 0.975]))) for value, draws in both]


def fit_temperature(logit_NP: ArrayLike, label_N: ArrayLike) -> float:
    """The number that logits are divided by so that the labels are likeliest (Guo et al. 2017), in 0.05 to 20."""
    logit_NP, label_N = np.asarray(logit_NP, np.float64), np.asarray(label_N)
    rows_N = np.arange(len(label_N))

    def loss(log_temperature: float) -> float:
        return float(-log_softmax(logit_NP / np.exp(log_temperature), axis=1)[rows_N, label_N].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(0.05), np.log(20)), method="bounded").x))


@dataclass(frozen=True)
class ReliabilityBin:
    """Maps whose highest probability lies in a bin: their mean of it, the share that was right, and how many they are."""

    confidence: float
    accuracy: float
    count: int


def reliability(probability_NP: ArrayLike, label_N: ArrayLike, bins: int = 10) -> list[ReliabilityBin]:
    """The bins that hold maps, by highest probability, of equal widths over 0 to 1."""
    probability_NP, label_N = np.asarray(probability_NP, np.float64), np.asarray(label_N)
    best_N, right_N = probability_NP.max(1), probability_NP.argmax(1) == label_N
    place_N = np.minimum((best_N * bins).astype(int), bins - 1)
    return [
        ReliabilityBin(
            float(best_N[place_N == b].mean()), float(right_N[place_N == b].mean()), int((place_N == b).sum())
        )
        for b in range(bins)
        if (place_N == b).any()
    ]


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Expected calibration error: mean over maps of |confidence - accuracy| of their bin (Naeini et al. 2015)."""
    total = sum(each.count for each in bins)
    return sum(abs(each.confidence - each.accuracy) * each.count for each in bins) / total
