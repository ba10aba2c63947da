"""The best of several candidates, chosen on some units and scored on the others, over random splits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bertsecrets.statistics.student import mean_differs_from_zero, mean_exceeds_zero

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

CHOOSING_SHARE = 1 / 3
"""Share of the units for selection. Selection is easier than testing, so a third is enough."""


@dataclass(frozen=True)
class Ratios:
    """Ratios of sums over the scored units, for S splits and X numbers.

    Args:
        value_SX: The ratios; NaN without such units.
        stderr_SX: Their standard errors (ratio estimator); NaN with fewer than two units.
        count_S: Units that count.
        moved_SX: Units with a nonzero numerator.
    """

    value_SX: Array
    stderr_SX: Array
    count_S: Array
    moved_SX: Array

    def exceeds_zero(self) -> Array:
        """One-sided p-values of the ratios being 0 or less, ``[S, X]``; 1 if there is nothing to test."""
        p_SX = mean_exceeds_zero(self.value_SX, self.stderr_SX, self.count_S[:, None])
        return self._at_least(p_SX, 0.5**self.moved_SX)

    def differs_from_zero(self) -> Array:
        """Two-sided p-values of the ratios being 0, ``[S, X]``; 1 if there is nothing to test."""
        p_SX = mean_differs_from_zero(self.value_SX, self.stderr_SX, self.count_S[:, None])
        return self._at_least(p_SX, np.minimum(2 * 0.5**self.moved_SX, 1))

    def _at_least(self, p_SX: Array, least_SX: Array) -> Array:
        # Few units with equal values have no variation, but a sign test of them is not certain.
        return np.nan_to_num(np.maximum(p_SX, least_SX), nan=1.0)

    def over_splits(self, column: int = 0, level: float = 0.95) -> tuple[float, float, float]:
        """Median over splits of one of the X numbers, with its lower and upper limit.

        Limits are the medians of each split's limits at 1 - (1 - level) / 2, which cover at ``level`` although splits
        share units (Chernozhukov, Demirer, Duflo and Fernández-Val 2018, section 4). A single split uses its own limits
        at ``level``.
        """
        value_S, stderr_S = self.value_SX[:, column], self.stderr_SX[:, column]
        tail = (1 - level) / (4 if len(value_S) > 1 else 2)
        reach_S = stats.t.isf(tail, np.maximum(self.count_S - 1, 1)) * stderr_S
        value, low, high = (float(np.median(end_S)) for end_S in (value_S, value_S - reach_S, value_S + reach_S))
        return value, low, high


def choosing_units(count: int, splits: int, seed: int) -> Flags:
    """Mask of the selection units in each of ``splits`` random splits, ``[S, N]``: a third, at least one.

    Raises:
        ValueError: If there are fewer than two units.
    """
    if count < 2:
        raise ValueError(f"{count} units cannot be split")
    generator = np.random.default_rng(seed)
    choosing = max(1, round(count * CHOOSING_SHARE))
    rank_SN = generator.permuted(np.tile(np.arange(count), (splits, 1)), axis=1)
    return np.asarray(rank_SN < choosing)


@dataclass(frozen=True)
class Chosen:
    """The best of C candidates, chosen on some units and scored on the others in each of S splits.

    Args:
        candidate: The candidate chosen most often.
        share: Share of the splits that chose it.
        choice_S: The choice of each split.
        accuracy: Correct answers of the chosen candidates, divided by totals.
        gains: Their correct answers minus those of each of X rivals, divided by totals.
        on_all: The best candidate on all units; ``accuracy_on_all``: its accuracy there.
    """

    candidate: int
    share: float
    choice_S: NDArray[np.intp]
    accuracy: Ratios
    gains: Ratios
    on_all: int
    accuracy_on_all: float


def choose_and_score(right_NC: Array, rival_NX: Array, total_N: Array, chooses_SN: Flags) -> Chosen | None:
    """The best candidate compared with rivals; None unless every split has units for selection and at least two for
    scoring.

    Args:
        right_NC: Correct answers of each candidate in each unit.
        rival_NX: Correct answers of the rivals, such as baselines.
        total_N: Number of questions in each unit.
        chooses_SN: From :func:`choosing_units`.
    """
    if not (chooses_SN @ total_N).all() or (~chooses_SN @ (total_N > 0).astype(int)).min() < 2:
        return None
    # In float64, as BLAS does not multiply bools. The first of equals is chosen.
    choice_S = (chooses_SN.astype(np.float64) @ right_NC).argmax(1)
    right_NS1 = right_NC[:, choice_S, None]
    votes_C = np.bincount(choice_S, minlength=right_NC.shape[1])
    sum_C = right_NC.sum(0)
    return Chosen(
        candidate=int(votes_C.argmax()),
        share=float(votes_C.max() / len(choice_S)),
        choice_S=choice_S,
        accuracy=scored_ratios(right_NS1, total_N, chooses_SN),
        gains=scored_ratios(right_NS1 - rival_NX[:, None], total_N, chooses_SN),
        on_all=int(sum_C.argmax()),
        accuracy_on_all=float(sum_C.max() / total_N.sum()),
    )


def ratios(part_NX: ArrayLike, total_N: ArrayLike, counts_N: Flags | None = None) -> Ratios:
    """Ratios of sums over all units: :func:`scored_ratios` of a single split without selection."""
    part_NX = np.asarray(part_NX, np.float64)
    return scored_ratios(part_NX[:, None], total_N, np.zeros((1, len(part_NX)), dtype=bool), counts_N)


def scored_ratios(part_NSX: ArrayLike, total_N: ArrayLike, chooses_SN: Flags, counts_N: Flags | None = None) -> Ratios:
    """Ratios of sums of parts and totals over the scored units.

    Args:
        part_NSX: Part of each unit, for the candidate of each split and X comparisons.
        total_N: Total of each unit.
        chooses_SN: From :func:`choosing_units`.
        counts_N: The units of the sample; None for those with a positive total.
    """
    part_NSX, total_N = np.asarray(part_NSX, np.float64), np.asarray(total_N, np.float64)
    scores_SN = (~chooses_SN & (total_N > 0 if counts_N is None else counts_N)).astype(np.float64)
    count_S, total_S = scores_SN.sum(1), scores_SN @ total_N
    with np.errstate(invalid="ignore", divide="ignore"):
        value_SX = np.einsum("sn,nsx->sx", scores_SN, part_NSX) / total_S[:, None]
        residual_NSX = part_NSX - value_SX * total_N[:, None, None]
        spread_SX = np.einsum("sn,nsx->sx", scores_SN, residual_NSX**2)
        scale_S = np.where(count_S > 1, count_S / (count_S - 1), np.nan)
        stderr_SX = np.sqrt(scale_S[:, None] * spread_SX) / total_S[:, None]
    moved_SX = np.einsum("sn,nsx->sx", scores_SN, (part_NSX != 0).astype(np.float64))
    return Ratios(value_SX, stderr_SX, count_S, moved_SX)


def combined_p(p_SX: ArrayLike) -> Array:
    """Twice the median over splits, at most 1, ``[X]``, which is valid although splits share units.

    Meinshausen, Meier and Bühlmann 2009, theorem 3.1 with quantile 1/2.
    """
    return np.asarray(np.minimum(2 * np.median(np.asarray(p_SX, np.float64), axis=0), 1))
