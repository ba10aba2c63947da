"""Scores of heads: every column that ranks them, compared with exact effects and with planted truth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bertsecrets.grid import Column, HeadGrid
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.ranks import RankCorrelation, rank_correlation

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """One column that ranks heads.

    Args:
        name: ``measure/column``.
        value_LH: ``[layers, heads]``, turned so that higher is worth keeping.
        signed: Whether 0 stands between heads that help and heads that harm.
    """

    name: str
    value_LH: Array
    signed: bool


def scores_of_grid(grid: HeadGrid) -> list[Score]:
    """The scores among the columns of a grid; those that are not a number for a head are left out."""
    return [
        score
        for column in grid.described
        if (score := _score(grid.measure, column, grid.column(column.name).numpy())) is not None
    ]


def scores_of_run(run: Run) -> list[Score]:
    """The scores in a run's head table, of any experiment whose declared columns rank heads."""
    table, scores = run.table(), []
    for declaration in run.declarations():
        view = MeasureView(run, declaration, table)
        for column in view.columns:
            if column.keep is not None and view.stage == CHECKPOINT and view.has(column.name):
                score = _score(view.name, column, view.value(column.name))
                scores += [] if score is None else [score]
    return scores


def _score(measure: str, column: Column, value_LH: Array) -> Score | None:
    if column.keep is None or not np.isfinite(value_LH).all():
        return None
    sign = 1 if column.keep == "high" else -1
    return Score(f"{measure}/{column.name}", sign * value_LH, bool((value_LH < 0).any()))


@dataclass(frozen=True)
class Agreement:
    """How well a score orders heads by an exact effect.

    Args:
        correlation: Spearman's rank correlation over heads.
        precision: Share of the ``top`` heads by the score that are among those by the effect; :data:`chance` by chance.
        top: Number of heads.
        chance: Expected precision of a random order.
    """

    correlation: RankCorrelation
    precision: float
    top: int
    chance: float


def agreement(score_LH: ArrayLike, effect_LH: ArrayLike, top: int = 10) -> Agreement:
    """Compare a score with an exact effect, head by head.

    Args:
        score_LH: Higher is worth keeping.
        effect_LH: Higher is worse to lose, e.g. the rise of the loss.
        top: Heads at the top of both orders; where heads are equal, their share of the places counts.
    """
    score_N, effect_N = (np.asarray(value, np.float64).ravel() for value in (score_LH, effect_LH))
    size = len(score_N)
    top = min(top, size)
    precision = float(_membership(score_N, top) @ _membership(effect_N, top)) / top
    return Agreement(rank_correlation(score_LH, effect_LH), precision, top, top / size)


def _membership(value_N: Array, top: int) -> Array:
    """The probability of each head to be among the highest, if equal ones are ordered at random."""
    threshold = np.sort(value_N)[-top]
    above_N, equal_N = value_N > threshold, value_N == threshold
    membership_N: Array = above_N + equal_N * (top - above_N.sum()) / equal_N.sum()
    return membership_N


def separation(score: Score, planted: Sequence[tuple[int, int]], *, dead: bool) -> float:
    """Probability that a score tells a planted head from an ordinary one (area under the ROC curve); 0.5 is chance.

    Args:
        score: The score.
        planted: Layer and head of the planted heads.
        dead: Whether they do nothing, and should rank lowest, by size if the score is signed; else highest.
    """
    value_LH = np.abs(score.value_LH) if dead and score.signed else score.value_LH
    mask_LH = np.zeros(value_LH.shape, bool)
    for place in planted:
        mask_LH[place] = True
    inside_N, outside_N = value_LH[mask_LH], value_LH[~mask_LH]
    if not inside_N.size or not outside_N.size:
        return math.nan
    above = float(stats.mannwhitneyu(inside_N, outside_N).statistic) / (inside_N.size * outside_N.size)
    return 1 - above if dead else above
