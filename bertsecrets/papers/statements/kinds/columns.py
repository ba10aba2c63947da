"""Kinds of tests that read columns of the head table."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import stats

from bertsecrets.measures.linguistic.columns import BEYOND, MEAN
from bertsecrets.measures.linguistic.token_to_token import TokenToToken
from bertsecrets.papers.statements.sheet import (
    DISABLE,
    LAYER_SETS,
    UNLIMITED,
    Array,
    Grid,
    LackingError,
    Layers,
    Sheet,
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
    summed,
)
from bertsecrets.present.grid import highest
from bertsecrets.results.components import KINDS
from bertsecrets.results.formatting import head_label
from bertsecrets.results.scores import LEVEL
from bertsecrets.settings import Settings
from bertsecrets.statistics.ranks import agreement, rank_correlation

Mask = NDArray[np.bool_]


class Where(Settings):
    """Condition on heads: another column is above a number."""

    column: str = Field(description="a column, <measure>/<column>")
    above: float | int = Field(description="a number")


def _components(column: str, layers: str) -> str:
    """Label of the heads of some layers, or of these layers for a column with one number per layer."""
    measure, _, name = column.partition("/")
    of_layers = measure == DISABLE and KINDS[name.split("/")[1]].axes == ("layer",)
    return LAYER_SETS[layers].words if of_layers else f"the heads of {LAYER_SETS[layers].words}"


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

    @property
    def number(self) -> str:
        quantity = self.quantity + "".join(f" − {column}" for column in listed(self.minus))
        quantity += f" − the highest other {self.highest_of}…" * bool(self.highest_of)
        components = _components(self.columns[0], self.layers)
        condition = "" if self.where is None else f" with {self.where.column} above {self.where.above:g}"
        others = "" if self.other is None else f" minus that over {LAYER_SETS[self.other].words}"
        return f"{'size of the ' if self.absolute else ''}mean of {quantity} over {components}{condition}{others}"

    def reading(self, sheet: Sheet) -> Reading:
        value_LH, stderr_LH, count = summed(sheet, listed(self.column))
        low, high = (sum(ends) for ends in zip(*(sheet.grid(name).limits for name in listed(self.column)), strict=True))
        rival = self._rival(sheet) if self.highest_of else ""
        for column in (*listed(self.minus), *filter(None, [rival])):
            subtracted = sheet.grid(column)
            value_LH, stderr_LH = value_LH - subtracted.value_LH, stderr_LH + subtracted.stderr_LH
            low, high = low - subtracted.limits[1], high - subtracted.limits[0]
        counted_LH = np.isfinite(value_LH)
        detail = f"highest other: {rival.partition('/')[2]}" if rival else ""
        if self.where is not None:
            counted_LH &= sheet.grid(self.where.column).value_LH > self.where.above
        value, stderr, heads = self._over(self.layers, value_LH, stderr_LH, counted_LH)
        if self.where is not None:
            detail = f"{heads} of {counted_LH.size} heads with {self.where.column} above {self.where.above:g}"
        if self.other is not None:
            taken, error, _ = self._over(self.other, value_LH, stderr_LH, counted_LH)
            value, stderr, low, high = value - taken, stderr + error, *UNLIMITED
        return Reading(abs(value) if self.absolute else value, stderr, count, detail, limits=(low, high))

    def _over(self, layers: str, value_LH: Array, stderr_LH: Array, counted_LH: Mask) -> tuple[float, float, int]:
        """The mean over the counted heads of some layers, its standard error, and the number of these heads."""
        rows = LAYER_SETS[layers].rows(value_LH)
        counted_RH = counted_LH[rows]
        return *mean_of(value_LH[rows][counted_RH], stderr_LH[rows][counted_RH]), int(counted_RH.sum())

    def _rival(self, sheet: Sheet) -> str:
        """The column with the highest mean among the others with the same prefix."""
        means = {}
        for name in sorted(set(sheet.columns(self.highest_of)) - {*listed(self.column), *self.without}):
            grid = sheet.grid(name)
            rows = LAYER_SETS[self.layers].rows(grid.value_LH)
            mean, _ = mean_of(grid.value_LH[rows], grid.stderr_LH[rows])
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
    def number(self) -> str:
        layers = LAYER_SETS[self.layers].words
        return (
            f"gap of the mean of {self.quantity} between {layers} and the nearest other layer, positive if "
            f"{self.extreme}"
        )

    @property
    def joins(self) -> str:
        return "seeds"

    def reading(self, sheet: Sheet) -> Reading:
        return self.joint_reading([[sheet]])

    def joint_reading(self, groups: Sequence[Sequence[Sheet]]) -> Reading:
        means, errors, count = [], [], 0
        for (sheet,) in groups:
            value_LH, stderr_LH, examples = summed(sheet, self.columns)
            by_layer = [mean_of(value_H, stderr_H) for value_H, stderr_H in zip(value_LH, stderr_LH, strict=True)]
            mean_L, error_L = np.array(by_layer).T
            means.append(mean_L if self.extreme == "highest" else -mean_L)
            errors.append(error_L)
            count = max(count, examples)
        mean_SL, error_SL = np.stack(means), np.stack(errors)
        named = LAYER_SETS[self.layers].rows(mean_SL.T)
        rest = [layer for layer in range(mean_SL.shape[1]) if layer not in named]
        if np.isnan(mean_SL).any() or not rest:
            return Reading(np.nan, np.nan, count)
        # Each seed's own gap would use its least favourable pair of layers, so that the mean over seeds would be too
        # low.
        pairs = [
            self._over_models(
                [
                    Reading(float(gap), float(error), count)
                    for gap, error in zip(
                        mean_SL[:, layer] - mean_SL[:, other], error_SL[:, layer] + error_SL[:, other], strict=True
                    )
                ]
            )
            for layer in named
            for other in rest
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

    def limits(self, readings: Sequence[Reading]) -> tuple[float, float]:
        return (-1.0, 1.0) if self.among else (0.0, 1.0)

    @property
    def columns(self) -> Sequence[str]:
        return (*listed(self.column), *filter(None, [self.among]))

    @property
    def number(self) -> str:
        side = f"over {self.over:g}" if self.under is None else f"under {self.under:g}"
        if self.per_layer is not None:
            return f"share of {LAYER_SETS[self.layers].words} whose {self.per_layer} {self.quantity} is {side}"
        among = f" among those with {self.among}, minus that of the others" * bool(self.among)
        return f"share of {_components(self.columns[0], self.layers)} with {self.quantity} {side}{among}"

    def reading(self, sheet: Sheet) -> Reading:
        value_LH, stderr_LH, count = summed(sheet, listed(self.column))
        rows = LAYER_SETS[self.layers].rows(value_LH)
        value_LH, stderr_LH = value_LH[rows], stderr_LH[rows]
        if self.among:
            among = sheet.grid(self.among)
            return self._contrast(value_LH, among.value_LH[rows] > 0.5, max(count, among.count))
        reach = REACH if self.per_layer is None else NormalDist().inv_cdf(1 - 0.025 / value_LH.shape[1])
        shares = [self._share(value_LH + factor * stderr_LH) for factor in (0.0, -reach, reach)]
        if not np.isfinite(stderr_LH[np.isfinite(value_LH)]).all():
            return Reading(shares[0], np.nan, count)
        one_head = 1 / (len(value_LH) if self.per_layer is not None else np.isfinite(value_LH).sum())
        return Reading(shares[0], max(one_head, *(abs(share - shares[0]) for share in shares[1:])) / REACH, count)

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
        return Reading(ours - others, math.nan, count, detail, p_value=float(stats.fisher_exact(table).pvalue))


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

    @property
    def number(self) -> str:
        end = "lowest" if self.lowest else "highest"
        quantity = self.quantity + "".join(f" or {column}" for column in self.or_columns)
        if self.rank == 1:
            return (
                f"{end} {quantity} of all heads{'' if self.layers == 'all' else f' of {LAYER_SETS[self.layers].words}'}"
            )
        return f"{quantity} of the head of rank {self.rank} (1: the {end})"

    def reading(self, sheet: Sheet) -> Reading:
        value_LH, stderr_LH, count = summed(sheet, listed(self.column))
        sign, tests = -1.0 if self.lowest else 1.0, sum(sheet.grid(name).tests for name in listed(self.column))
        for column in self.or_columns:
            if (alternative := sheet.found(column)) is None:
                continue
            tests += alternative.tests
            farther_LH = sign * alternative.value_LH > sign * value_LH
            value_LH = np.where(farther_LH, alternative.value_LH, value_LH)
            stderr_LH = np.where(farther_LH, alternative.stderr_LH, stderr_LH)
        excluded = [layer for layer in range(len(value_LH)) if layer not in LAYER_SETS[self.layers].rows(value_LH)]
        value_LH[excluded] = np.nan
        value_N, stderr_N = sign * value_LH.ravel(), stderr_LH.ravel()
        finite_N = np.isfinite(value_N)
        if finite_N.sum() < self.rank:
            return Reading(np.nan, np.nan, count)
        order = np.argsort(np.where(finite_N, -value_N, np.inf), kind="stable")
        layer, head = divmod(int(order[self.rank - 1]), value_LH.shape[1])
        detail = head_label(layer, head) if value_LH.shape[1] > 1 else f"layer {layer}"
        reach = NormalDist().inv_cdf(1 - 0.025 / (tests * int(finite_N.sum())))
        value, low, high = (
            np.sort((value_N + factor * stderr_N)[finite_N])[-self.rank] for factor in (0.0, -reach, reach)
        )
        return Reading(float(sign * value), float(max(high - value, value - low) / REACH), count, detail)


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
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    one_of = (("above", "below"), ("other", "between"))

    @property
    def columns(self) -> Sequence[str]:
        return tuple(filter(None, (self.column, self.other)))

    @property
    def joins(self) -> str:
        return self.between or ""

    @property
    def number(self) -> str:
        if self.between is not None:
            return f"mean rank correlation over heads of {self.column} between {self.between}"
        size = "size of the " if self.absolute else ""
        heads = "heads" if self.layers == "all" else _components(self.column, self.layers)
        depth = "within layers" if self.within_layers else "including the dependence of both on depth"
        return f"{size}rank correlation over {heads} of {self.column} and {self.other}, {depth}"

    def reading(self, sheet: Sheet) -> Reading:
        if self.between is not None:
            return self.joint_reading([[sheet]])
        first, second = (self._counted(sheet.grid(column)) for column in self.columns)
        correlation = rank_correlation(first.value_LH, second.value_LH)
        correlation = correlation.claim if self.within_layers else correlation
        value = abs(correlation.rho) if self.absolute else correlation.rho
        stderr = (correlation.high - correlation.low) / (2 * REACH)
        attenuation = math.sqrt(reliability(first) * reliability(second))
        count = max(first.count, second.count)
        return Reading(value, stderr, count, f"{correlation.count} heads", attenuation)

    def joint_reading(self, groups: Sequence[Sequence[Sheet]]) -> Reading:
        grids_G = [[sheet.grid(self.column) for sheet in group] for group in groups]
        count = max(grid.count for grids in grids_G for grid in grids)
        value_GLH = np.stack([np.mean([grid.value_LH for grid in grids], axis=0) for grids in grids_G])
        detail = f"{len(groups)} {self.between}"
        if len(groups) < 2:
            return Reading(np.nan, np.nan, count, detail)
        # The mean over the seeds of a task is at least as reliable as the least reliable of them.
        least = float(np.min([reliability(grid) for grids in grids_G for grid in grids]))
        found = agreement(value_GLH, self.threshold)
        return Reading(found.rho, (found.high - found.low) / (2 * REACH), count, detail, least, found.p_value)

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
        rows = LAYER_SETS[self.layers].rows(grid.value_LH)
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

    @property
    def number(self) -> str:
        return f"number of heads that pass {' and '.join(self.p_values)}"

    def reading(self, sheet: Sheet) -> Reading:
        grids = [sheet.grid(column) for column in self.p_values]
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

    @property
    def number(self) -> str:
        return "share of the attention between linked words beyond position, mean over kinds of links"

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
