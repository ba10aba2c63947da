"""Scores of a pattern classifier: F1 with intervals over heads, temperature, and calibration."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from bertsecrets.patterns.classes import PATTERNS

Array = NDArray[np.float64]


def confusion(label_N: ArrayLike, predicted_N: ArrayLike, weight_N: ArrayLike | None = None) -> Array:
    """Confusion table ``[5, 5]``, true patterns in rows and predicted ones in columns; weighted by ``weight_N``."""
    size = len(PATTERNS)
    pair_N = np.asarray(label_N, np.int64) * size + np.asarray(predicted_N, np.int64)
    table_PP: Array = np.bincount(pair_N, weight_N, size * size).astype(np.float64).reshape(size, size)
    return table_PP


def f1_scores(confusion_PP: Array) -> Array:
    """F1 of each pattern, 2 TP / (2 TP + FP + FN), over the last two axes; NaN for a pattern without maps."""
    hits_P = np.diagonal(confusion_PP, axis1=-2, axis2=-1)
    true_P, predicted_P = confusion_PP.sum(-1), confusion_PP.sum(-2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(true_P > 0, 2 * hits_P / (true_P + predicted_P), np.nan)


def macro_f1(confusion_PP: Array, judged_P: NDArray[np.bool_] | None = None) -> Array:
    """Mean F1 over the patterns with maps, restricted to ``judged_P``; NaN without maps."""
    score_P = f1_scores(confusion_PP)
    if judged_P is not None:
        score_P = np.where(judged_P, score_P, np.nan)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(score_P, axis=-1) / np.isfinite(score_P).sum(-1))


@dataclass(frozen=True)
class Estimate:
    """A value with the limits of its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap_f1(
    label_N: ArrayLike,
    predicted_RN: ArrayLike,
    group_N: Sequence[object],
    judged_P: NDArray[np.bool_] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> list[Estimate]:
    """Macro-F1 of R classifiers, then each but the last minus the last, with percentile intervals.

    Whole groups are drawn with replacement, the same for all classifiers: maps of one head are alike, and what two
    classifiers have in common cancels in their difference (Efron and Tibshirani 1993, chapter 8).

    Args:
        label_N: True patterns.
        predicted_RN: Patterns by each classifier.
        group_N: Group of each map.
        judged_P: Patterns to average over; None for all.
        resamples: Number of resamples.
        seed: Seed of the draws.
    """
    label_N, predicted_RN = np.asarray(label_N), np.asarray(predicted_RN)
    names = list(dict.fromkeys(group_N))
    places_N = np.array([names.index(group) for group in group_N])
    table_RGPP = np.stack(
        [
            [confusion(label_N[places_N == g], predicted_N[places_N == g]) for g in range(len(names))]
            for predicted_N in predicted_RN
        ]
    )
    generator = np.random.default_rng(seed)
    drawn_SG = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    resampled_RS = np.stack(
        [macro_f1(np.einsum("sg,gij->sij", drawn_SG, table_GPP), judged_P) for table_GPP in table_RGPP]
    )
    value_R = np.stack([macro_f1(table_GPP.sum(0), judged_P) for table_GPP in table_RGPP])
    pairs = list(zip(value_R, resampled_RS, strict=True))
    pairs += [(value_R[r] - value_R[-1], resampled_RS[r] - resampled_RS[-1]) for r in range(len(value_R) - 1)]
    return [Estimate(float(value), *map(float, np.quantile(draws, [0.025, 0.975]))) for value, draws in pairs]


def fit_temperature(logit_NP: ArrayLike, label_N: ArrayLike) -> float:
    """Divisor of the logits, 0.05 to 20, that maximises the likelihood of the labels (Guo et al. 2017)."""
    logit_NP, label_N = np.asarray(logit_NP, np.float64), np.asarray(label_N)
    rows_N = np.arange(len(label_N))

    def loss(log_temperature: float) -> float:
        return float(-log_softmax(logit_NP / np.exp(log_temperature), axis=1)[rows_N, label_N].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(0.05), np.log(20)), method="bounded").x))


@dataclass(frozen=True)
class ReliabilityBin:
    """Maps with a highest probability in one bin: mean of that probability, share of right answers, number of maps."""

    confidence: float
    accuracy: float
    count: int


def reliability(probability_NP: ArrayLike, label_N: ArrayLike, bins: int = 10) -> list[ReliabilityBin]:
    """Non-empty bins by highest probability, of equal widths over 0 to 1."""
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
    total = sum(one.count for one in bins)
    return sum(abs(one.confidence - one.accuracy) * one.count for one in bins) / total
