"""Kinds of tests that read columns of the head table."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import stats

from bertsecrets.measures.linguistic.columns import BEYOND, MEAN
from bertsecrets.measures.linguistic.token_to_token import TokenToToken
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
from bertsecrets.present.grid import highest
from bertsecrets.results.formatting import head_label
from bertsecrets.results.scores import LEVEL
from bertsecrets.settings import Settings
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
        rival = self._rival(sheet) if self.highest_of else ""
        for column in (*listed(self.minus), *filter(None, [rival])):
            grid = grid.minus(sheet.grid(column))
            detail = f"highest other: {rival.partition('/')[2]}" if rival else ""
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

    def _rival(self, sheet: Sheet) -> str:
        """The column with the highest mean among the others with the same prefix."""
        means = {}
        for name in sorted(set(sheet.columns(self.highest_of)) - {*listed(self.column), *self.without}):
            grid = sheet.grid(name)
            mean, _ = self._over(self.layers, grid, np.isfinite(grid.value_LH))
            if math.isfinite(mean):
                means[name] = mean
        if not means:
            settings = settings_for(listed(self.column)[0], sheet.about)
            raise LackingError(f"columns {self.highest_of}… to compare with", settings)
        return max(means, key=means.__getitem__)


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
        or_columns: Further columns, if measured; the highest (or lowest) of a head's columns counts.
        layers: The layers whose heads count.
        rank: Rank, from 1.
        lowest: Whether to count from the lowest.
    """

    or_columns: list[str] = Field(default=[], description="a list of columns, <measure>/<column>")
    layers: Layers = Field(default="all", description="a name of layers")
    rank: int = Field(default=1, ge=1, description="a whole number from 1")
    lowest: bool = Field(default=False, description="true or false")

    @property
    def columns(self) -> Sequence[str]:
        return (*listed(self.column), *self.or_columns)

    def reading(self, sheet: Sheet) -> Reading:
        grid, sign = self.total(sheet), -1.0 if self.lowest else 1.0
        value_LH, stderr_LH, tests, count = sign * grid.value_LH, grid.stderr_LH, grid.tests, grid.count
        for alternative in filter(None, map(sheet.found, self.or_columns)):
            tests += alternative.tests
            farther_LH = sign * alternative.value_LH > value_LH
            value_LH = np.where(farther_LH, sign * alternative.value_LH, value_LH)
            stderr_LH = np.where(farther_LH, alternative.stderr_LH, stderr_LH)
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
        return Reading(float(sign * value), float(max(high - value, value - low) / REACH), count, detail)


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

    def _of_two(self, sheet: Sheet) -> Reading:
        first, second = (self._counted(sheet.grid(column)) for column in self.columns)
        correlation = rank_correlation(first.value_LH, second.value_LH)
        correlation = correlation.claim if self.within_layers else correlation
        stderr = (correlation.high - correlation.low) / (2 * REACH)
        attenuation = math.sqrt(reliability(first) * reliability(second))
        count = max(first.count, second.count)
        detail = f"{correlation.count} heads"
        return self.sized(Reading(correlation.rho, stderr, count, detail, attenuation, limits=_OF_CORRELATIONS))

    def joint_reading(self, groups: Sequence[Sequence[Sheet]]) -> Reading:
        if self.between is None:
            return self._of_two(groups[0][0])
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


class Linked(Test):
    """Mean over kinds of linked words of the share of a head's attention to them that is not explained by position.

    For each kind, the head that attends most to such words is used. The share is its mean attention to them minus that
    to other words at the same distance, divided by the former.

    Args:
        pairs: The kinds of linked words; kinds without examples are ignored.
    """

    pairs: list[str] = Field(min_length=1, description="a list of kinds of linked words")

    def reading(self, sheet: Sheet) -> Reading:
        shares, errors, count = [], [], 0
        for pair in self.pairs:
            try:
                weight, mean, beyond = (sheet.grid(f"{TokenToToken.name}/{pair}{end}") for end in ("", MEAN, BEYOND))
            except LackingError:
                continue
            if np.isfinite(weight.value_LH).any():
                head = highest(weight.value_LH)
                if math.isfinite(beyond.value_LH[head]) and mean.value_LH[head] > 0:
                    shares.append(beyond.value_LH[head] / mean.value_LH[head])
                    errors.append(beyond.stderr_LH[head] / mean.value_LH[head])
                    count = max(count, beyond.count)
        if not shares:
            raise LackingError("attention between such words", settings_for(TokenToToken.name, sheet.about))
        return Reading(float(np.mean(shares)), float(np.mean(errors)), count, f"{len(shares)} kinds of links")
