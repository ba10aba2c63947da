"""Kinds of tests: on columns of the head table, on rows of experiments, and on scores."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import stats

from bertsecrets.papers.lines import Line
from bertsecrets.papers.statements.sheet import (
    UNLIMITED,
    Array,
    Grid,
    LackingError,
    Layers,
    Sheet,
    layers_of,
    settings_for,
)
from bertsecrets.papers.statements.test import (
    REACH,
    Finding,
    Reading,
    SizeTest,
    SumTest,
    Test,
    listed,
    mean_of,
    reliability,
)
from bertsecrets.pruning.rows import CONTROLS, REVERSED, SHUT, CausalGates, GateFits, PathPoint, Pruned
from bertsecrets.pruning.rows import Pruning as Experiment
from bertsecrets.pruning.scores import score_label
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.formatting import head_label, level_text
from bertsecrets.results.scores import FISHER, LEVEL
from bertsecrets.results.views import MeasureView
from bertsecrets.settings import Settings
from bertsecrets.statistics.intervals import stderr_of_width
from bertsecrets.statistics.ranks import agreement, rank_correlation

Mask = NDArray[np.bool_]


class Where(Settings):
    """Condition on heads: another column is above a number."""

    column: str = Field(description="a column, <measure>/<column>")
    above: float | int = Field(description="a number")


class Mean(SizeTest, SumTest):
    """Mean over heads of a column, or of the sum of several columns, minus another.

    Args:
        minus: Columns to subtract.
        highest_of: Prefix of column names, ``<measure>/<prefix>``: the mean of the highest other column with it is
            subtracted; empty for none.
        without: Columns with that prefix to ignore.
        layers: The layers whose heads count.
        other: Layers whose mean is subtracted; null for none.
        where: Condition on these heads; null for all.
    """

    minus: str | list[str] = Field(default=[], description="a column, <measure>/<column>, or a list of them")
    highest_of: str = Field(default="", description="a prefix of column names, or an empty text")
    without: list[str] = Field(default=[], description="a list of columns")
    layers: Layers = Field(default="all", description="a name of layers")
    other: Layers | None = Field(default=None, description="a name of layers, or null")
    where: Where | None = None

    @property
    def columns(self) -> Sequence[str]:
        condition = () if self.where is None else (self.where.column,)
        return (*listed(self.column), *listed(self.minus), *condition)

    def reading(self, sheet: Sheet) -> Reading:
        grid, detail = self.total(sheet), ""
        for column in listed(self.minus):
            grid = grid.minus(sheet.grid(column))
        if self.highest_of:
            ours = {*listed(self.column), *self.without}
            others = {name: sheet.grid(name) for name in sheet.columns(self.highest_of) if name not in ours}
            means = {name: self._over(self.layers, of, np.isfinite(of.value_LH))[0] for name, of in others.items()}
            rival = max((name for name in means if math.isfinite(means[name])), key=means.__getitem__, default="")
            if not rival:
                settings = settings_for(listed(self.column)[0], sheet.about)
                raise LackingError(f"columns {self.highest_of}… to compare with", settings)
            grid, detail = grid.minus(others[rival]), f"highest other: {rival.partition('/')[2]}"
        counted_LH = np.isfinite(grid.value_LH)
        if self.where is not None:
            counted_LH &= sheet.grid(self.where.column).value_LH > self.where.above
            number = int(counted_LH[layers_of(self.layers, counted_LH)].sum())
            detail = f"{number} of {counted_LH.size} heads with {self.where.column} above {self.where.above:g}"
        value, stderr = self._over(self.layers, grid, counted_LH)
        limits = grid.limits
        if self.other is not None:
            taken, error = self._over(self.other, grid, counted_LH)
            value, stderr, limits = value - taken, stderr + error, UNLIMITED
        return self.sized(Reading(value, stderr, grid.count, detail, limits=limits))

    def _over(self, layers: str, grid: Grid, counted_LH: Mask) -> tuple[float, float]:
        """The mean over the counted heads of some layers, and its standard error."""
        rows = layers_of(layers, grid.value_LH)
        return mean_of(*(of_LH[rows][counted_LH[rows]] for of_LH in (grid.value_LH, grid.stderr_LH)))


class ExtremeLayers(SumTest):
    """The gap between the layer means of some layers and those of all others: above 0 if the former are the most
    extreme.

    Means over seeds are compared for each pair of a given and another layer. The statement holds if every pair is
    significant (an intersection-union test, Berger 1982), and fails if some pair significantly shows the contrary
    (Bonferroni over pairs).

    Args:
        layers: The layers.
        extreme: Whether their means are claimed to be the highest or the lowest.
    """

    layers: Layers = Field(description="a name of layers")
    extreme: Literal["highest", "lowest"] = Field(description="highest or lowest")

    @property
    def joins(self) -> str:
        return "seeds"

    def reading(self, sheet: Sheet) -> Reading:
        return self.joint_reading([[sheet]])

    def joint_reading(self, groups: Sequence[Sequence[Sheet]]) -> Reading:
        means, errors, count = [], [], 0
        for (sheet,) in groups:
            grid = self.total(sheet)
            mean_L, error_L = np.array([*map(mean_of, grid.value_LH, grid.stderr_LH)]).T
            means.append(mean_L if self.extreme == "highest" else -mean_L)
            errors.append(error_L)
            count = max(count, grid.count)
        mean_SL, error_SL = np.stack(means), np.stack(errors)
        named = layers_of(self.layers, mean_SL.T)
        rest = [layer for layer in range(mean_SL.shape[1]) if layer not in named]
        if np.isnan(mean_SL).any() or not rest:
            return Reading(np.nan, np.nan, count)
        # Each seed's own gap would use its least favourable pair of layers, so that the mean over seeds would be too
        # low.
        pairs = [
            self._over_models([Reading(float(gap), float(error), count) for gap, error in zip(*of_pair, strict=True)])
            for layer in named
            for other in rest
            for of_pair in [(mean_SL[:, layer] - mean_SL[:, other], error_SL[:, layer] + error_SL[:, other])]
        ]
        least = min(pairs, key=lambda pair: pair.value)
        detail = f"{self.extreme} layer: {int(np.argmax(mean_SL.mean(0)))}"
        if not all(math.isfinite(pair.p_value) for pair in pairs):
            return Reading(least.value, np.nan, count, detail)
        if self.holds(least.value):
            p = max(pair.p_value for pair in pairs)
        else:
            p = min(1.0, len(pairs) * min(pair.p_value for pair in pairs if not self.holds(pair.value)))
        reach = max(least.value - min(pair.low for pair in pairs), least.high - least.value)
        return Reading(least.value, reach / REACH, count, detail, p_value=p)


class Share(SumTest):
    """Share of the heads in which a column is over or under a number.

    The standard error assumes that the errors of all heads have the same sign; the interval extends at least one head,
    or layer, to either side. The best head of a layer has the simultaneous interval of the layer's heads (Bonferroni).
    Shares among some heads and among the others are compared with Fisher's exact test.

    Args:
        over, under: The number; exactly one of them is given.
        layers: The layers whose heads count.
        per_layer: ``highest`` or ``lowest``: only this head of each layer counts, which gives a share of layers; null
            for heads.
        among: A column that is 1 in some heads: the number is their share minus the others' share. Empty for all.
    """

    over: float | int | None = Field(default=None, description="a number, or null")
    under: float | int | None = Field(default=None, description="a number, or null")
    layers: Layers = Field(default="all", description="a name of layers")
    per_layer: Literal["highest", "lowest"] | None = Field(default=None, description="highest, lowest or null")
    among: str = Field(default="", description="a column, <measure>/<column>, or an empty text")
    one_of = (("above", "below"), ("over", "under"))

    @property
    def columns(self) -> Sequence[str]:
        return (*listed(self.column), *filter(None, [self.among]))

    def reading(self, sheet: Sheet) -> Reading:
        grid = self.total(sheet)
        rows = layers_of(self.layers, grid.value_LH)
        value_LH, stderr_LH, count = grid.value_LH[rows], grid.stderr_LH[rows], grid.count
        if self.among:
            among = sheet.grid(self.among)
            return self._contrast(value_LH, among.value_LH[rows] > 0.5, max(count, among.count))
        reach = REACH if self.per_layer is None else NormalDist().inv_cdf(1 - 0.025 / value_LH.shape[1])
        share, *ends = (self._share(value_LH + factor * stderr_LH) for factor in (0.0, -reach, reach))
        stderr = math.nan
        if np.isfinite(stderr_LH[np.isfinite(value_LH)]).all():
            one_head = 1 / (len(value_LH) if self.per_layer is not None else np.isfinite(value_LH).sum())
            stderr = max(one_head, *(abs(end - share) for end in ends)) / REACH
        return Reading(share, stderr, count, limits=(0.0, 1.0))

    def _beyond(self, value: Array) -> Mask:
        return value < self.under if self.under is not None else value > float(self.over or 0)

    def _share(self, value_LH: Array) -> float:
        if self.per_layer is not None:
            value_LH = (np.nanmax if self.per_layer == "highest" else np.nanmin)(value_LH, axis=1)
        finite = value_LH[np.isfinite(value_LH)]
        return float(self._beyond(finite).mean()) if len(finite) else math.nan

    def _contrast(self, value_LH: Array, among_LH: Mask, count: int) -> Reading:
        beyond_LH = self._beyond(value_LH)
        table = [[int((part & side).sum()) for side in (beyond_LH, ~beyond_LH)] for part in (among_LH, ~among_LH)]
        ours, others = (row[0] / sum(row) if sum(row) else math.nan for row in table)
        detail = f"{table[0][0]} of {sum(table[0])} heads with {self.among}, {table[1][0]} of {sum(table[1])} others"
        p = float(stats.fisher_exact(table).pvalue)
        return Reading(ours - others, math.nan, count, detail, p_value=p, limits=(-1.0, 1.0))


class SomeHead(SumTest):
    """The n-th highest number of all heads (or of all layers, for a column of layers).

    The best of many noisy numbers is high in any sample: its interval is the simultaneous one of all heads
    (Bonferroni).

    Args:
        or_columns: Further columns, if measured; the highest of a head's columns counts.
        layers: The layers whose heads count.
        rank: Rank, from 1.
    """

    or_columns: list[str] = Field(default=[], description="a list of columns, <measure>/<column>")
    layers: Layers = Field(default="all", description="a name of layers")
    rank: int = Field(default=1, ge=1, description="a whole number from 1")

    @property
    def columns(self) -> Sequence[str]:
        return (*listed(self.column), *self.or_columns)

    def reading(self, sheet: Sheet) -> Reading:
        grid = self.total(sheet)
        value_LH, stderr_LH, tests, count = grid.value_LH, grid.stderr_LH, grid.tests, grid.count
        for alternative in filter(None, map(sheet.found, self.or_columns)):
            tests += alternative.tests
            higher_LH = alternative.value_LH > value_LH
            value_LH = np.where(higher_LH, alternative.value_LH, value_LH)
            stderr_LH = np.where(higher_LH, alternative.stderr_LH, stderr_LH)
        counted_LH = (
            np.isfinite(value_LH) & np.isin(np.arange(len(value_LH)), layers_of(self.layers, value_LH))[:, None]
        )
        if counted_LH.sum() < self.rank:
            return Reading(np.nan, np.nan, count)
        order = np.argsort(np.where(counted_LH, -value_LH, np.inf), axis=None, kind="stable")
        layer, head = divmod(int(order[self.rank - 1]), value_LH.shape[1])
        detail = head_label(layer, head) if value_LH.shape[1] > 1 else f"layer {layer}"
        reach = NormalDist().inv_cdf(1 - 0.025 / (tests * int(counted_LH.sum())))
        value, low, high = (
            np.sort((value_LH + factor * stderr_LH)[counted_LH])[-self.rank] for factor in (0.0, -reach, reach)
        )
        return Reading(float(value), float(max(high - value, value - low) / REACH), count, detail)


_OF_CORRELATIONS = (-1.0, 1.0)


class Correlation(SizeTest):
    """Spearman's rank correlation over heads: of two columns, or of one between any two seeds or tasks.

    The standard error for two columns is over heads, with layers kept in order. Between seeds of a task, or tasks of a
    model (means over their seeds), it is for the mean over pairs, over layers, because heads of a layer resemble each
    other.

    Args:
        column, other: The columns.
        between: ``seeds`` or ``tasks`` between which the column is compared instead of with ``other``; null for
            neither.
        layers: The layers whose heads count.
        within_layers: Whether heads are ranked within their layer; otherwise the correlation includes the dependence of
            both columns on depth.
    """

    column: str = Field(description="a column, <measure>/<column>")
    other: str = Field(default="", description="a column, <measure>/<column>, or an empty text")
    between: Literal["seeds", "tasks"] | None = Field(default=None, description="seeds, tasks or null")
    layers: Layers = Field(default="all", description="a name of layers")
    within_layers: bool = Field(default=False, description="true or false")
    one_of = (("above", "below"), ("other", "between"))

    @property
    def columns(self) -> Sequence[str]:
        return tuple(filter(None, (self.column, self.other)))

    @property
    def joins(self) -> str:
        return self.between or ""

    def reading(self, sheet: Sheet) -> Reading:
        return self.joint_reading([[sheet]])

    def joint_reading(self, groups: Sequence[Sequence[Sheet]]) -> Reading:
        if self.between is None:
            first, second = (self._counted(groups[0][0].grid(column)) for column in self.columns)
            correlation = rank_correlation(first.value_LH, second.value_LH)
            correlation = correlation.claim if self.within_layers else correlation
            stderr = (correlation.high - correlation.low) / (2 * REACH)
            attenuation = math.sqrt(reliability(first) * reliability(second))
            count, detail = max(first.count, second.count), f"{correlation.count} heads"
            return self.sized(Reading(correlation.rho, stderr, count, detail, attenuation, limits=_OF_CORRELATIONS))
        grids_G = [[sheet.grid(self.column) for sheet in group] for group in groups]
        count = max(grid.count for grids in grids_G for grid in grids)
        value_GLH = np.stack([np.mean([grid.value_LH for grid in grids], axis=0) for grids in grids_G])
        detail = f"{len(groups)} {self.between}"
        if len(groups) < 2:
            return Reading(np.nan, np.nan, count, detail)
        # The mean over the seeds of a task is at least as reliable as the least reliable of them.
        least = float(np.min([reliability(grid) for grids in grids_G for grid in grids]))
        found = agreement(value_GLH, self.threshold)
        stderr = (found.high - found.low) / (2 * REACH)
        return Reading(found.rho, stderr, count, detail, least, found.p_value, _OF_CORRELATIONS)

    def doubt(self, finding: Finding) -> str:
        """Noise multiplies a correlation by the reliability of the numbers (Spearman 1904); pure noise gives about
        0.
        """
        if self.below is None:
            return ""
        least = float(np.min([reading.reliability for reading in finding.readings]))
        if least > self.below and finding.high / least < self.below:
            return ""
        return (
            "Noise lowers rank correlations: the reliability of these numbers is "
            f"{f'{least:.2f}' if math.isfinite(least) else 'unknown'}, so a true correlation above the threshold is "
            "possible."
        )

    def _counted(self, grid: Grid) -> Grid:
        rows = layers_of(self.layers, grid.value_LH)
        value_LH = grid.value_LH[rows]
        if self.within_layers:
            value_LH = value_LH - np.nanmean(value_LH, axis=1, keepdims=True)
        return replace(grid, value_LH=value_LH, stderr_LH=grid.stderr_LH[rows])


class TestedHeads(Test):
    """Number of heads with p-values of at most 0.05 in all given columns, which are corrected over heads.

    Its p-value is the lowest over heads of each head's largest p-value, because all tests have to be passed. If no head
    passes, nothing is refuted.

    Args:
        p_values: The columns.
    """

    p_values: list[str] = Field(min_length=1, description="a list of columns, <measure>/<column>")

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self.p_values)

    def reading(self, sheet: Sheet) -> Reading:
        grids = self.columns_of(sheet)
        p_LH = np.max([grid.value_LH for grid in grids], axis=0)
        count = max(grid.count for grid in grids)
        if not np.isfinite(p_LH).any():
            return Reading(math.nan, math.nan, count)
        head = np.unravel_index(np.nanargmin(p_LH), p_LH.shape)
        passed = int((p_LH <= LEVEL).sum())
        detail = f"best: {head_label(int(head[0]), int(head[1]))}"
        return Reading(float(passed), math.nan, count, detail, p_value=float(np.nanmin(p_LH)) if passed else 1.0)


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
                f"{'after each step' if self.iterative else 'once'}",
                settings,
            )
        places = ((run, point.kept) for run in runs for point in run.points if point.score == self.order)
        run, kept = min(places, key=lambda place: self._distance(*place))
        if self._distance(run, kept) > _FARTHEST:
            raise LackingError(
                f"pruning in the order of {score_label(self.order)} with {100 * self.share:g} % of the heads removed "
                f"({level_text(_FARTHEST)} more or less)",
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


KINDS: dict[str, type[Test]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): kind
    for kind in (Mean, ExtremeLayers, Share, SomeHead, Correlation, TestedHeads, Found, Pruning, Score)
}
"""The package's kinds of tests by name; statements of installed packages can also use their own
(``package.module.Class``).
"""
