"""Kinds of tests that read what experiments keep beside the head table, or scores."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy import stats

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.over_examples import effects_on_losses, share_over_examples
from bertsecrets.data.task import task_from_config
from bertsecrets.measures.clusters.measure import Clusters
from bertsecrets.measures.clusters.rows import Group, Space
from bertsecrets.measures.role_rows import judged_relations, voita_roles
from bertsecrets.measures.voita_roles import VoitaRoles
from bertsecrets.papers.statements.sheet import DISABLE, LackingError, Sheet, settings_for
from bertsecrets.papers.statements.test import REACH, Reading, SizeTest, Test, listed
from bertsecrets.pruning.experiment import Pruning as Experiment
from bertsecrets.pruning.rows import CONTROLS, REVERSED, GateFits, PathPoint, Pruned
from bertsecrets.pruning.scores import score_label
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.formatting import head_label
from bertsecrets.results.scores import FISHER, LEVEL


class Found(Test):
    """A number of the rows that an experiment found; its standard error is that of its 95 % interval.

    Args:
        experiment: The experiment.
        rows: The kind of rows.
        where: Values of the rows' fields, one or several of each; rows of other values do not count.
        without: Values of fields of rows that do not count.
        value: Field of the number, with its limits, or for ``share`` of a flag.
        aggregate: ``first``: the number of the first row. ``lowest``: the lowest of all. ``share``: the share of rows
            whose number is above 0, or whose flag is not set, which a sign test compares with the threshold.
        p: Field of a p-value of the number being 0, which says how sure ``share`` is of a row; empty for none.
    """

    experiment: str = Field(description="the name of an experiment")
    rows: str = Field(description="the name of a kind of rows")
    where: dict[str, str | list[str]] = Field(default={}, description="values of fields")
    without: dict[str, str] = Field(default={}, description="values of fields")
    value: str = Field(description="a field")
    aggregate: Literal["first", "lowest", "share"] = Field(default="first", description="first, lowest or share")
    p: str = Field(default="", description="a field, or an empty text")

    @property
    def number(self) -> str:
        values = [", ".join(listed(value)) for value in self.where.values()]
        what = {"first": "", "lowest": "lowest ", "share": "share of rows with "}[self.aggregate]
        flag = " not set or above 0" * (self.aggregate == "share")
        return f"{what}{self.value}{flag} of {self.experiment} ({'; '.join([self.rows, *values])})"

    def reading(self, sheet: Sheet) -> Reading:
        for view in sheet.views(self.experiment):
            if lines := [line for line in view.lines(self.rows) if self._counts(line)]:
                return self._share(lines) if self.aggregate == "share" else self._of_row(lines)
        raise LackingError(
            f"{self.number} (too few, or not measured)", sheet.settings_of(self.experiment), too_few=True
        )

    def _counts(self, line: Mapping[str, Any]) -> bool:
        fits = all(line.get(name) in listed(value) for name, value in self.where.items())
        return (
            fits
            and not any(line.get(name) == value for name, value in self.without.items())
            and line.get(self.value) is not None
        )

    def _of_row(self, lines: Sequence[Mapping[str, Any]]) -> Reading:
        line, *_ = lines
        count = int(line[self.value].get("n", 0))
        detail = head_label(line["layer"], line["head"]) if {"layer", "head"} <= set(line) else ""
        if self.aggregate == "lowest":
            line = min(lines, key=lambda line: float(line[self.value]["value"]))
            count = sum(int(line[self.value].get("n", 0)) for line in lines)
            detail = ", ".join(str(line[name]) for name in self.where)
        found = line[self.value]
        reach = found["high"] - found["low"]
        return Reading(found["value"], reach / (2 * REACH) if math.isfinite(reach) else math.nan, count, detail)

    def _share(self, lines: Sequence[Mapping[str, Any]]) -> Reading:
        number, bounds = len(lines), (0.0, 1.0)
        if isinstance(lines[0][self.value], bool):
            above = sum(not line[self.value] for line in lines)
            p = float(stats.binomtest(above, number, self.threshold).pvalue)
            return Reading(above / number, math.nan, number, f"{above} of {number} rows", p_value=p, limits=bounds)
        found = [line[self.value] for line in lines]
        above = sum(one["value"] > 0 for one in found)
        sure = [line[self.p] <= LEVEL if self.p else line[self.value]["low"] > 0 for line in lines]
        ends = [sum(sure), sum(one["high"] > 0 for one in found)]
        # At least one row on either side, as for shares of heads.
        reach = max(1, *(abs(end - above) for end in ends)) / number
        count = sum(int(one.get("n", 0)) for one in found)
        return Reading(above / number, reach / REACH, count, f"{above} of {number} rows", limits=bounds)


class Groups(Test):
    """Stability of the second most stable group of heads, so that two are at least as stable; 0..1.

    Its standard error is the largest that a mean over that many samples can have.
    """

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    def number(self) -> str:
        return "stability of the second most stable group of heads over samples of the texts"

    def reading(self, sheet: Sheet) -> Reading:
        for view in sheet.views(Clusters.name):
            space = view.fact(Space)
            stability = sorted(row.stability for row in view.found(Group) if not row.before)
            if space is not None and space.replicates and len(stability) > 1:
                value = stability[-2]
                stderr = math.sqrt(value * (1 - value) / space.replicates)
                return Reading(value, stderr, space.rows, f"{len(stability)} groups")
        raise LackingError("groups of heads in samples of the texts", sheet.settings_of(Clusters.name))


class VoitaSyntactic(Test):
    """Largest share of pairs of words, over heads, relations and directions, beyond that of their most frequent
    distance.

    Relations with fewer than ``min_count`` pairs of the measure do not count. The interval is simultaneous over all
    heads, relations and directions (Bonferroni); the share of the most frequent distance is taken as known.
    """

    @property
    def number(self) -> str:
        return (
            "highest share of pairs of a syntactic relation that a head finds, beyond that of their most frequent "
            "distance"
        )

    def reading(self, sheet: Sheet) -> Reading:
        view = sheet.view(VoitaRoles.name)
        baselines = judged_relations(view)
        if not baselines:
            settings = settings_for(VoitaRoles.name, sheet.about)
            raise LackingError("enough pairs of words with a relation", settings, too_few=True)
        grids = {column: view.grid(column) for column in baselines}
        gain_CLH = np.stack([grids[column][0] - share for column, share in baselines.items()])
        stderr_CLH = np.stack([grid[1] for grid in grids.values()])
        reach = NormalDist().inv_cdf(1 - 0.025 / int(np.isfinite(gain_CLH).sum()))
        value, low, high = (float(np.nanmax(gain_CLH + sign * reach * stderr_CLH)) for sign in (0, -1, 1))
        column, layer, head = np.unravel_index(np.nanargmax(gain_CLH), gain_CLH.shape)
        detail = f"{list(baselines)[int(column)]}: {head_label(int(layer), int(head))}"
        count = max(view.count(name) for name in baselines)
        return Reading(value, max(value - low, high - value) / REACH, count, detail)


_FARTHEST = 0.03
"""Largest distance of a pruned share from the requested one: heads are whole, and go in steps."""

_STEP = 0.05
"""A step of pruning that comes so near to every share."""


class Pruning(Test):
    """Change of score, in points, with a share of the heads removed without further training; the nearest share that
    was taken counts.

    Args:
        order: The score in whose order heads are removed; ``random``: the mean over random orders.
        minus: Another order whose change is taken away; null for none.
        share: Share of the heads to remove.
        iterative: Whether the orders are computed anew after each step.
    """

    order: str = Field(description="the name of a pruning score")
    minus: str | None = Field(default=None, description="the name of a pruning score, or null")
    share: float = Field(gt=0, lt=1, description="a number between 0 and 1")
    iterative: bool = Field(default=False, description="true or false")

    @property
    def columns(self) -> Sequence[str]:
        return (f"{Experiment.name}/kept",)

    @property
    def number(self) -> str:
        less = "" if self.minus is None else f" minus that in the order of {score_label(self.minus)}"
        return (
            f"change of score, in points, with {100 * self.share:g} % of the heads removed in the order of "
            f"{score_label(self.order)}{less}{', computed anew after each step' * self.iterative}"
        )

    def reading(self, sheet: Sheet) -> Reading:
        orders = [order for order in (self.order, self.minus) if order is not None]
        settings = f"{settings_for(Experiment.name, 'tuned')} 'prune.scores=[{','.join(orders)}]' prune.step={_STEP:g}"
        settings += " prune.iterative=true" * self.iterative
        try:
            runs = [run for run in _pruned(sheet) if self._fits(run)]
        except LackingError:
            runs = []
        if not runs:
            raise LackingError(
                f"pruning in the order of {' and '.join(map(score_label, orders))}, scored "
                f"{'after each step' if self.iterative else 'once'} and without further training",
                settings,
            )
        run, kept = min(
            ((run, point.kept) for run in runs for point in run.points if point.score == self.order),
            key=lambda place: self._distance(*place),
        )
        if self._distance(run, kept) > _FARTHEST:
            raise LackingError(
                f"pruning in the order of {score_label(self.order)} with {100 * self.share:g} % of the heads removed "
                f"({_FARTHEST:.0%} more or less)",
                settings,
            )
        points = [_change(run, kept, order) for order in orders]
        value = points[0][0] - sum(change for change, _ in points[1:])
        removed = 1 - kept / run.search.heads
        detail = f"{kept} of {run.search.heads} heads kept ({100 * removed:.0f} % removed); {run.search.metric}"
        return Reading(value, sum(error for _, error in points), run.search.examples, detail)

    def _fits(self, run: Pruned) -> bool:
        """Whether a run has the orders, computed as often, and changed nothing but the heads."""
        scores = list(dict.fromkeys(point.score for point in run.points))
        if run.search.iterative != self.iterative or run.search.recovery_epochs or self.order not in scores:
            return False
        # The reversed order is that of the run's first score.
        first = next(score for score in scores if score not in CONTROLS)
        return self.minus is None or (self.minus in scores and (self.minus != REVERSED or first == self.order))

    def _distance(self, run: Pruned, kept: int) -> float:
        return abs(kept / run.search.heads - (1 - self.share))


def _pruned(sheet: Sheet) -> list[Pruned]:
    """The searches for the fewest heads; raises as :meth:`Sheet.views`."""
    return [run for view in sheet.views(Experiment.name) if (run := Pruned.of(view)) is not None]


def _change(run: Pruned, kept: int, order: str) -> tuple[float, float]:
    """The change of score in points and its standard error; several random orders count as their mean."""
    changes = [point.change for point in run.points if (point.score, point.kept) == (order, kept)]
    if not changes:
        return math.nan, math.nan
    change_R = 100 * np.array([change.value for change in changes])
    error = float(np.mean([100 * (change.high - change.low) / (2 * REACH) for change in changes]))
    # The mean of several random orders varies with the orders as well.
    spread = float(change_R.var(ddof=1) / len(change_R)) if len(change_R) > 1 else 0.0
    return float(change_R.mean()), math.sqrt(error**2 + spread)


class OverExamples(Test):
    """Share of the variance of heads' effects on single examples that lies over examples, not between heads, 0..1.

    Args:
        mode: The mode of disabling.
    """

    mode: str = Field(description="a mode of disabling")

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    def number(self) -> str:
        return (
            f"share of the variance of rises of the loss over heads and examples that is over examples (mode "
            f"{self.mode})"
        )

    def reading(self, sheet: Sheet) -> Reading:
        for run in sheet.runs:
            # The losses themselves: sweeps of earlier versions kept them, but not the share.
            for path in sorted(run.folder.glob(f"ablation/*-{self.mode}.safetensors"), reverse=True):
                outcomes = Outcomes.read(path)
                effect_HN = effects_on_losses(outcomes, task_from_config(run.config["task"]))
                if effect_HN is not None:
                    share, stderr = share_over_examples(effect_HN)
                    return Reading(share, stderr, len(outcomes.index_N), f"{len(effect_HN)} heads")
        raise LackingError(
            f"the losses of single examples with each head disabled (mode {self.mode}, exact sweep)",
            f"{settings_for(f'{DISABLE}/{self.mode}/head', 'tuned')} ablation.sweep=exact",
        )


_QUARTILE = NormalDist().inv_cdf(0.75)


class Speed(Test):
    """Examples per second gained with a share of the heads removed, in percent, mean over batch sizes.

    The standard error is that of a single round, from the upper quartile of the rounds: more than the median's.

    Args:
        share: Share of the heads to remove; the nearest that was timed counts.
    """

    share: float = Field(gt=0, lt=1, description="a number between 0 and 1")

    @property
    def number(self) -> str:
        return f"examples per second gained with {100 * self.share:g} % of the heads removed, in percent"

    def reading(self, sheet: Sheet) -> Reading:
        timed = [
            (abs(point.kept / run.search.heads - 1 + self.share), point.kept, run, run.timed(point))
            for run in _pruned(sheet)
            for point in run.order
            if run.timed(point)
        ]
        if not timed:
            raise LackingError("latencies of a model with fewer heads", sheet.settings_of(Experiment.name))
        _, kept, run, timings = min(timed, key=lambda place: place[:2])
        gains = [100 * (timing.speedup - 1) for timing in timings]
        slower = [100 * (timing.whole / timing.high - 1) for timing in timings]
        stderr = float(np.mean(np.subtract(gains, slower))) / _QUARTILE
        return Reading(float(np.mean(gains)), stderr, len(gains), f"{kept} of {run.search.heads} heads kept")


_GATES, _SHUT = "causal_gates", "causal_gates/pushed_shut"


class Gates(Test):
    """A number of the gates of a frozen model.

    Args:
        value: ``change``: change of score in points at the first penalty of the path at which gates leave fewer than
            half of the heads; ``roles``: share of heads with a role of Voita et al. that stay open when gates are
            pushed shut, minus that of other heads, by Fisher's exact test.
    """

    value: Literal["change", "roles"] = Field(description="change or roles")

    @property
    def number(self) -> str:
        if self.value == "change":
            return (
                "change of score, in points, at the first penalty at which gates of the frozen model leave fewer "
                "than half of the heads"
            )
        return "share of heads with a role whose gates stay open (frozen model), minus that of other heads"

    def reading(self, sheet: Sheet) -> Reading:
        shut_LH = sheet.grid(_SHUT).value_LH
        return self._change(sheet, shut_LH.size) if self.value == "change" else _roles(sheet, shut_LH >= 0.5)

    def _change(self, sheet: Sheet, total: int) -> Reading:
        for view in sheet.views(_GATES):
            few = [
                point for point in view.found(PathPoint) if point.kept < total / 2 and np.isfinite(point.change.value)
            ]
            if few:
                fits, change = view.found(GateFits)[0], few[0].change
                detail = f"{few[0].kept} of {total} heads kept; {fits.metric}"
                stderr = 100 * (change.high - change.low) / (2 * REACH)
                return Reading(100 * change.value, stderr, fits.examples, detail)
        raise LackingError(
            "a model on the path of gates with fewer than half of the heads", settings_for(_GATES, "tuned")
        )


def _roles(sheet: Sheet, open_LH: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> Reading:
    view = sheet.view(VoitaRoles.name)
    special_LH = np.logical_or.reduce(list(voita_roles(view).values()))
    table = [
        [int((part_LH & gate_LH).sum()) for gate_LH in (open_LH, ~open_LH)] for part_LH in (special_LH, ~special_LH)
    ]
    shares = [row[0] / sum(row) if sum(row) else math.nan for row in table]
    detail = f"{table[0][0]} of {sum(table[0])} heads with a role stay, {table[1][0]} of {sum(table[1])} others"
    p = float(stats.fisher_exact(table).pvalue)
    return Reading(shares[0] - shares[1], math.nan, view.count(view.columns[0].name), detail, p_value=p)


_SAME = 1e-9


class Score(SizeTest):
    """The first metric of the first evaluation set, in points, minus another.

    Args:
        minus: ``constant``: that of a constant answer, whose correlation counts as 0; ``random``: the mean over the
            seeds of the same model fine-tuned from random weights.
    """

    minus: Literal["constant", "random"] = Field(description="constant or random")

    @property
    def number(self) -> str:
        reference = {"constant": "a constant answer", "random": "random weights, fine-tuned"}[self.minus]
        return (
            f"{'size of the difference between the score and' if self.absolute else 'score minus'} that of "
            f"{reference}, in points"
        )

    def reading(self, sheet: Sheet) -> Reading:
        metric, score, error, count = _score(sheet.runs[0])
        if self.minus == "constant":
            constant = sheet.runs[0].first_set["constant"][metric]
            difference = score - (0.0 if constant is None else float(constant))
            # A model that scores exactly the same gives the same answer: no other sample would tell them apart.
            stderr = 0.0 if abs(difference) < _SAME else error
        else:
            if not sheet.random:
                raise LackingError("the same model fine-tuned from random weights", "")
            random_scores = [_score(run) for run in sheet.random]
            scores = np.array([score for _, score, _, _ in random_scores])
            spread = float(scores.var(ddof=1) / len(scores)) if len(scores) > 1 else random_scores[0][2] ** 2
            difference, stderr = score - float(scores.mean()), math.sqrt(error**2 + spread)
        value = 100 * (abs(difference) if self.absolute else difference)
        return Reading(value, 100 * stderr, count, metric)


def _score(run: FinishedRun) -> tuple[str, float, float, int]:
    """The first metric, its value and standard error over examples, and their number; NaN where undefined or
    unknown.
    """
    first = run.first_set
    metric, count = next(iter(first["constant"])), int(first["count"])
    score = first["model"][metric]
    if score is None:
        return metric, math.nan, math.nan, count
    if metric in FISHER and count > 3:
        return metric, float(score), (1 - float(score) ** 2) / math.sqrt(count - 3), count
    error = math.sqrt(max(0.0, score * (1 - score)) / count) if metric == "accuracy" else math.nan
    return metric, float(score), error, count
