"""Kinds of tests that read experiments' rows, or scores."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
from pydantic import Field
from scipy import stats

from bertsecrets.papers.lines import Line
from bertsecrets.papers.statements.sheet import UNLIMITED, Array, LackingError, Sheet, settings_for
from bertsecrets.papers.statements.test import REACH, Reading, SizeTest, Test, listed
from bertsecrets.pruning.experiment import SHUT, CausalGates
from bertsecrets.pruning.experiment import Pruning as Experiment
from bertsecrets.pruning.rows import CONTROLS, REVERSED, GateFits, PathPoint, Pruned
from bertsecrets.pruning.scores import score_label
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.formatting import head_label
from bertsecrets.results.scores import FISHER, LEVEL
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.intervals import stderr_of_width


class Found(Test):
    """A number from an experiment's rows, with a standard error from its 95 % interval.

    Args:
        experiment: The experiment.
        rows: The kind of rows.
        where: Required values of the rows' fields, one or several each.
        without: Field values of rows to ignore.
        value: Field of the number, with its limits; for ``share`` also a flag, for a ``rank`` also a plain share.
        aggregate: ``first``: the number of the first row. ``lowest``: the lowest of all. ``share``: the share of rows
            with a number above 0, or without the flag, tested against the threshold with a sign test. ``second``: the
            second highest.
        p: Field of a p-value of the number being 0, as the certainty of a row in ``share``; empty for none.
        draws: Kind of a row and its field, ``<rows>/<field>``: the number of samples averaged in ``second``, which gets
            the largest possible standard error of a mean of shares over that many.
        range: The smallest and the largest possible number; empty for none.
    """

    experiment: str = Field(description="the name of an experiment")
    rows: str = Field(description="the name of a kind of rows")
    where: dict[str, bool | str | list[str]] = Field(default={}, description="values of fields")
    without: dict[str, str] = Field(default={}, description="values of fields")
    value: str = Field(description="a field")
    aggregate: Literal["first", "lowest", "share", "second"] = Field(
        default="first", description="first, lowest, share or second"
    )
    p: str = Field(default="", description="a field, or an empty text")
    draws: str = Field(default="", description="<rows>/<field>, or an empty text")
    range: list[float | int] = Field(default=[], max_length=2, description="two numbers, or an empty list")

    def reading(self, sheet: Sheet) -> Reading:
        for view in sheet.views(self.experiment):
            lines = [line for line in view.lines(self.rows) if self._counts(line)]
            if len(lines) > (self.aggregate == "second"):
                if self.aggregate == "second":
                    return self._second(lines, view)
                return self._share(lines) if self.aggregate == "share" else self._of_one(lines)
        settings = sheet.settings_of(self.experiment)
        raise LackingError(f"{self.number} (too few, or not measured)", settings, too_few=True)

    def _counts(self, line: Line) -> bool:
        fits = all(line.get(name) in listed(value) for name, value in self.where.items())
        excluded = any(line.get(name) == value for name, value in self.without.items())
        return fits and not excluded and line.get(self.value) is not None

    def _of_one(self, lines: Sequence[Line]) -> Reading:
        line, *_ = lines
        count = int(line[self.value].get("n") or line.get("examples", 0))
        detail = head_label(line["layer"], line["head"]) if {"layer", "head"} <= set(line) else ""
        if self.aggregate == "lowest":
            line = min(lines, key=lambda line: float(line[self.value]["value"]))
            count = sum(int(line[self.value].get("n", 0)) for line in lines)
            detail = ", ".join(str(line[name]) for name in self.where)
        found = line[self.value]
        stderr = found.get("stderr")
        if stderr is None or not math.isfinite(stderr):
            stderr = float(stderr_of_width(found["high"] - found["low"], 0.95))
        low, high = self.range or UNLIMITED
        return Reading(found["value"], stderr, count, detail, limits=(low, high))

    def _share(self, lines: Sequence[Line]) -> Reading:
        number, found = len(lines), [line[self.value] for line in lines]
        if isinstance(found[0], bool):
            above = number - sum(found)
            p = float(stats.binomtest(above, number, self.threshold).pvalue)
            return Reading(above / number, math.nan, number, f"{above} of {number} rows", p_value=p, limits=_SHARE)
        above = sum(one["value"] > 0 for one in found)
        sure = sum(line[self.p] <= LEVEL if self.p else line[self.value]["low"] > 0 for line in lines)
        # At least one row to either side, as for shares of heads.
        reach = max(1, abs(sure - above), abs(sum(one["high"] > 0 for one in found) - above)) / number
        count = sum(int(one.get("n", 0)) for one in found)
        return Reading(above / number, reach / REACH, count, f"{above} of {number} rows", limits=_SHARE)

    def _second(self, lines: Sequence[Line], view: MeasureView) -> Reading:
        value = sorted(float(line[self.value]) for line in lines)[-2]
        kind, _, field = self.draws.partition("/")
        # The row of the other kind with the same values in the fields that both have.
        of_same = (
            line
            for line in view.lines(kind)
            if all(line[name] in listed(value) for name, value in self.where.items() if name in line)
        )
        draws = next((int(line[field]) for line in of_same), 0)
        stderr = math.sqrt(value * (1 - value) / draws) if draws else math.nan
        return Reading(value, stderr, draws, f"{len(lines)} rows", limits=_SHARE)


_SHARE = (0.0, 1.0)

_FARTHEST = 0.03
"""Largest difference of a pruned share from the requested one, as heads are removed in steps."""

_STEP = 0.05
"""A pruning step small enough to come that close to every share."""

_QUARTILE = NormalDist().inv_cdf(0.75)


class Pruning(Test):
    """Change of score, in points, or of speed, in percent, with a share of the heads removed without further training.

    The nearest available share is used, and for gates the first penalty that leaves fewer heads. The standard error of
    speed, a mean over batch sizes, is that of a single round, from the upper quartile, which exceeds the median's.

    Args:
        order: The score that orders the removal of heads; ``random``: the mean over random orders; ``gates``: the
            models left by gates of the frozen model.
        minus: Another order whose change is subtracted; null for none.
        share: Share of the heads to remove.
        iterative: Whether the orders are recomputed after each step.
        value: ``change`` of score; ``speed``: throughput gained, in the order of the smallest model.
    """

    order: str = Field(default="", description="the name of a pruning score, or an empty text")
    minus: str | None = Field(default=None, description="the name of a pruning score, or null")
    share: float = Field(gt=0, lt=1, description="a number between 0 and 1")
    iterative: bool = Field(default=False, description="true or false")
    value: Literal["change", "speed"] = Field(default="change", description="change or speed")

    @property
    def columns(self) -> Sequence[str]:
        return () if self.order == _GATES or self.value == "speed" else (f"{Experiment.name}/kept",)

    def reading(self, sheet: Sheet) -> Reading:
        if self.value == "speed":
            return self._speed(sheet)
        return self._by_gates(sheet) if self.order == _GATES else self._change(sheet)

    def _change(self, sheet: Sheet) -> Reading:
        orders = [order for order in (self.order, self.minus) if order is not None]
        settings = f"{settings_for(Experiment.name, 'tuned')} 'prune.scores=[{','.join(orders)}]' prune.step={_STEP:g}"
        settings += " prune.iterative=true" * self.iterative
        runs = [run for run in _pruned(sheet) if self._fits(run)]
        if not runs:
            raise LackingError(
                f"pruning in the order of {' and '.join(map(score_label, orders))}, scored "
                f"{'after each step' if self.iterative else 'once'} and without further training",
                settings,
            )
        places = ((run, point.kept) for run in runs for point in run.points if point.score == self.order)
        run, kept = min(places, key=lambda place: self._distance(*place))
        if self._distance(run, kept) > _FARTHEST:
            raise LackingError(
                f"pruning in the order of {score_label(self.order)} with {100 * self.share:g} % of the heads removed "
                f"({_FARTHEST:.0%} more or less)",
                settings,
            )
        (value, error), *others = (_change(run, kept, order) for order in orders)
        for change, further in others:
            value, error = value - change, error + further
        removed = 1 - kept / run.search.heads
        detail = f"{kept} of {run.search.heads} heads kept ({100 * removed:.0f} % removed); {run.search.metric}"
        return Reading(value, error, run.search.examples, detail)

    def _fits(self, run: Pruned) -> bool:
        """Whether a run has the orders, recomputed equally often."""
        scores = list(dict.fromkeys(point.score for point in run.points))
        if run.search.iterative != self.iterative or self.order not in scores:
            return False
        # The reversed order belongs to the run's first score.
        first = next(score for score in scores if score not in CONTROLS)
        return self.minus is None or (self.minus in scores and (self.minus != REVERSED or first == self.order))

    def _distance(self, run: Pruned, kept: int) -> float:
        return abs(kept / run.search.heads - (1 - self.share))

    def _speed(self, sheet: Sheet) -> Reading:
        places = ((run, point.kept, run.timed(point)) for run in _pruned(sheet) for point in run.order)
        timed = [place for place in places if place[2]]
        if not timed:
            raise LackingError("latencies of a model with fewer heads", sheet.settings_of(Experiment.name))
        run, kept, timings = min(timed, key=lambda place: (self._distance(*place[:2]), place[1]))
        gains = [100 * (timing.speedup - 1) for timing in timings]
        slower = [100 * (timing.whole / timing.high - 1) for timing in timings]
        stderr = float(np.mean(np.subtract(gains, slower))) / _QUARTILE
        return Reading(float(np.mean(gains)), stderr, len(gains), f"{kept} of {run.search.heads} heads kept")

    def _by_gates(self, sheet: Sheet) -> Reading:
        heads = sheet.grid(f"{CausalGates.name}/{SHUT}").value_LH.size
        for view in sheet.views(CausalGates.name):
            for point in view.found(PathPoint):
                if point.kept < heads * (1 - self.share) and math.isfinite(point.change.value):
                    fits, change = view.found(GateFits)[0], point.change
                    detail = f"{point.kept} of {heads} heads kept; {fits.metric}"
                    stderr = float(stderr_of_width(change.high - change.low, 0.95))
                    return Reading(100 * change.value, 100 * stderr, fits.examples, detail)
        raise LackingError(
            f"a model on the path of gates with more than {100 * self.share:g} % of the heads removed",
            settings_for(CausalGates.name, "tuned"),
        )


_GATES = "gates"


def _pruned(sheet: Sheet) -> list[Pruned]:
    """The searches for the fewest heads."""
    return [run for view in sheet.measured(Experiment.name) if (run := Pruned.of(view)) is not None]


def _change(run: Pruned, kept: int, order: str) -> tuple[float, float]:
    """The change of score in points and its standard error; several random orders count as their mean."""
    changes = [point.change for point in run.points if (point.score, point.kept) == (order, kept)]
    if not changes:
        return math.nan, math.nan
    change_R = 100 * np.array([change.value for change in changes])
    error = 100 * float(np.mean([stderr_of_width(change.high - change.low, 0.95) for change in changes]))
    # The mean of several random orders also varies with the orders.
    return float(change_R.mean()), math.hypot(error, _stderr(change_R))


def _stderr(value_R: Array) -> float:
    """Standard error of a mean over replicates; 0 for a single one."""
    return float(value_R.std(ddof=1)) / math.sqrt(len(value_R)) if len(value_R) > 1 else 0.0


_SAME = 1e-9


class Score(SizeTest):
    """The first metric of the first evaluation set, in points, minus another.

    Args:
        minus: ``constant``: the majority baseline's, with a correlation of 0; ``random``: the mean over the seeds of
            the same model fine-tuned from random weights.
    """

    minus: Literal["constant", "random"] = Field(description="constant or random")

    def reading(self, sheet: Sheet) -> Reading:
        metric, score, error, count = _score(sheet.runs[0])
        if self.minus == "constant":
            constant = sheet.runs[0].first_set.constant[metric]
            difference = score - (constant if math.isfinite(constant) else 0.0)
            # A model with exactly the same score gives constant predictions, so no other sample would differ.
            stderr = 0.0 if abs(difference) < _SAME else error
        else:
            if not sheet.random:
                raise LackingError("the same model fine-tuned from random weights", "")
            random_scores = [_score(run) for run in sheet.random]
            score_R = np.array([other for _, other, _, _ in random_scores])
            spread = _stderr(score_R) if len(score_R) > 1 else random_scores[0][2]
            difference, stderr = score - float(score_R.mean()), math.hypot(error, spread)
        return self.sized(Reading(100 * difference, 100 * stderr, count, metric))


def _score(run: FinishedRun) -> tuple[str, float, float, int]:
    """The first metric, its value and standard error over examples, and their number; NaN where undefined or
    unknown.
    """
    first = run.first_set
    metric, count = next(iter(first.constant)), first.count
    score = first.model[metric]
    if metric in FISHER and count > 3:
        return metric, score, (1 - score**2) / math.sqrt(count - 3), count
    error = math.sqrt(max(0.0, score * (1 - score)) / count) if metric == "accuracy" and score == score else math.nan
    return metric, score, error, count
