"""The numbers of one model, as the tests of statements read them."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertsecrets.ablation.rows import Disabling
from bertsecrets.attention.modes import mode_names
from bertsecrets.importance.gradient import MaskedLMGradient
from bertsecrets.measures.clusters.measure import Clusters
from bertsecrets.measures.linguistic.columns import BEYOND, MEAN, RANDOM
from bertsecrets.measures.linguistic.token_to_token import TokenToToken
from bertsecrets.measures.role_rows import judged_relations, voita_roles
from bertsecrets.measures.voita_roles import VoitaRoles
from bertsecrets.models.spec import INITIAL as BEFORE_TRAINING
from bertsecrets.papers.models import ANY_MODEL, model_settings, text_settings, view_before
from bertsecrets.present.grid import highest
from bertsecrets.pruning.rows import Pruning
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.components import COMPONENTS, KINDS, PARTS
from bertsecrets.results.disabled import rows_of
from bertsecrets.results.files import copied
from bertsecrets.results.run import CHECKPOINT, INITIAL, TRAINING
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.intervals import stderr_of_width
from bertsecrets.task_heads.labels import MASKED
from bertsecrets.task_heads.masked import MaskedHead

Array = NDArray[np.float64]

About = Literal["tuned", "before", "change", "random"]
"""Whether a statement is about the fine-tuned model, the model before fine-tuning, their difference, or fine-tuned
random weights.
"""

DISABLE = "disable"
BEFORE = "initial:"
"""Prefix of a column of the model before fine-tuning, in a statement about the fine-tuned one."""
SEEDS = "seeds:"
"""Prefix of a column that compares the model with the next seed's model (the last with the first)."""

TRAINING_OF = "training:"
"""Prefix of a column recorded by head during training, averaged over steps."""

UNLIMITED = (-math.inf, math.inf)

OR = " or "
"""Separator between a column and its substitute if it was not measured."""

_NEEDS_HEAD = ", which takes a model with a head for masked words"

_NOT_COMPARED = frozenset({Clusters.name})
"""Measures not covered by ``compare_with``, which need a separate analysis of the model before fine-tuning."""

_ANNOTATED = {
    "dependency": "analysis=dependency task=ud_ewt data.root=<folder of UD_English-EWT>",
    "probes": "analysis=probes task=ud_ewt data.root=<folder of UD_English-EWT>",
    "coreference": "analysis=coreference task=coreference data.root=<folder>",
}
"""Settings of analyses of the model before fine-tuning that need annotated texts, unlike most tasks."""

_ANALYSES = {
    Pruning.name: "analysis=prune",
    "sinks": "analysis=sinks",
    "direct_effect": "analysis=direct_effect",
    "causal_gates": "analysis=gates",
    "ablation": "analysis=disable ablation.sweep=exact",
    "blocking": "analysis=block_attention",
    "coreference": "analysis=coreference",
    "probes": "analysis=probes",
    "frame_relations": "analysis=frame_relations framenet.root=<FrameNet folder>",
}
"""Settings of the analyses that are not measures."""


@dataclass(frozen=True)
class Grid:
    """A column.

    Args:
        value_LH, stderr_LH: Values and standard errors ``[layers, heads]``.
        count: The largest number of examples of a head.
        origin: Further identification of the numbers, e.g. their metric and sample; may be empty.
        limits: The smallest and the largest possible value.
        tests: Number of columns over which each head's value is the maximum.
    """

    value_LH: Array
    stderr_LH: Array
    count: int
    origin: str = ""
    limits: tuple[float, float] = UNLIMITED
    tests: int = 1

    def plus(self, other: "Grid") -> "Grid":
        """The sum with another column, whose errors are assumed to have the same sign."""
        return Grid(
            self.value_LH + other.value_LH,
            self.stderr_LH + other.stderr_LH,
            max(self.count, other.count),
            limits=(self.limits[0] + other.limits[0], self.limits[1] + other.limits[1]),
            tests=self.tests + other.tests,
        )

    def minus(self, other: "Grid") -> "Grid":
        """The difference from another column, likewise."""
        return self.plus(replace(other, value_LH=-other.value_LH, limits=(-other.limits[1], -other.limits[0])))


def disabled_columns() -> tuple[str, ...]:
    """Columns ``disable/<mode>/<kind>``: the change of score in points with each component of a kind disabled.

    Parts of layers, which have no mode, use ``disable/zero/<kind>``. ``disable/<mode>/<kind>/<metric>`` is the change
    of a metric of masked words, the only scores of a model before fine-tuning.
    """
    modes = mode_names(sweeps=True)
    names = [f"{mode}/{kind.name}" for kind in COMPONENTS for mode in (("zero",) if kind.done else modes)]
    return (*names, *(f"{name}/{metric}" for name in names for metric in MaskedHead.metrics))


class LackingError(Exception):
    """The runs of a model lack the data for a test.

    Args:
        what: What is missing, e.g. ``the column surface/cls``.
        settings: The settings of the analysis that provides it.
        too_few: Whether a run has that analysis, but with too few examples.
    """

    def __init__(self, what: str, settings: str, *, too_few: bool = False) -> None:
        super().__init__(what)
        self.what, self.settings, self.too_few = what, settings, too_few


@dataclass(frozen=True)
class Sheet:
    """One model: its training run and its analyses.

    Args:
        name: Label within its subject, e.g. ``seed 1``.
        checkpoint: The checkpoint for commands that analyse the model.
        runs: The runs.
        about: The state of the model that the numbers describe.
        random: The same model fine-tuned from random weights, one per seed.
        compared: Analyses that compare it with another model instead of itself before fine-tuning.
        next_seed: Checkpoint of the next seed, for commands that compare with it; empty with a single seed.
    """

    name: str
    checkpoint: str
    runs: tuple[FinishedRun, ...]
    about: About = "tuned"
    random: tuple[FinishedRun, ...] = ()
    compared: tuple[FinishedRun, ...] = ()
    next_seed: str = ""

    def grid(self, column: str) -> Grid:
        """A column ``measure/column`` for the sheet's state; for ``<column> or <column>``, the first that was measured.

        Raises:
            LackingError: If no run has it.
        """
        first, _, substitute = column.partition(OR)
        if column not in self._grids:
            try:
                self._grids[column] = self._read(first)
            except LackingError:
                if not substitute:
                    raise
                self._grids[column] = self.grid(substitute)
        return self._grids[column]

    def found(self, column: str) -> Grid | None:
        """:meth:`grid`; None if no run has it."""
        try:
            return self.grid(column)
        except LackingError:
            return None

    @cached_property
    def _grids(self) -> dict[str, Grid]:
        """The columns read so far, as many statements share columns."""
        return {}

    def _read(self, column: str) -> Grid:
        if column.startswith(SEEDS):
            return self._between_seeds(column.removeprefix(SEEDS))
        if column.startswith(TRAINING_OF):
            return self._over_training(column.removeprefix(TRAINING_OF))
        about: About = "before" if column.startswith(BEFORE) else self.about
        measure, _, name = column.removeprefix(BEFORE).partition("/")
        if measure == DISABLE:
            return self._disabled(name, about)
        if (made := MADE.get(column)) is not None:
            return made(self)
        for run in self.runs:
            if measure in run.experiments and (grid := _of_stage(run, measure, name, about)) is not None:
                return grid
        settings = self.settings_of(measure, about) if about == "before" else settings_for(column, about)
        head = _NEEDS_HEAD * (measure == MaskedLMGradient.name)
        raise LackingError(f"the column {measure}/{name}{_STATES[about]}{head}", settings)

    def _over_training(self, column: str) -> Grid:
        measure, _, name = column.partition("/")
        for run in (run for run in self.runs if measure in run.experiments):
            table = run.experiments[measure][1].rows.select(column=name, stage=TRAINING).table
            table = table.filter(pc.is_valid(table["head"]))
            if table.num_rows:
                means = table.group_by(["layer", "head"]).aggregate([("value", "mean")])
                layer_N, head_N = (means[key].to_numpy().astype(np.int64) for key in ("layer", "head"))
                value_LH = np.full((layer_N.max() + 1, head_N.max() + 1), np.nan)
                value_LH[layer_N, head_N] = means["value_mean"].to_numpy()
                return Grid(value_LH, np.full_like(value_LH, np.nan), 0)
        # It cannot be computed afterwards.
        raise LackingError(f"the column {column} by head during training", "")

    def _between_seeds(self, column: str) -> Grid:
        measure, _, name = column.partition("/")
        for run in self.compared:
            same = bool(self.next_seed) and Path(run.config["reference"]).resolve() == Path(self.next_seed).resolve()
            if same and measure in run.experiments and (grid := _of_stage(run, measure, name, "tuned")) is not None:
                return grid
        reference = f"reference={copied(self.next_seed)} "
        settings = reference + settings_for(column, "tuned") if self.next_seed else ""
        raise LackingError(f"the column {column} between two seeds", settings)

    def views(self, experiment: str) -> list[MeasureView]:
        """:meth:`measured`.

        Raises:
            LackingError: If no run has it.
        """
        if views := self.measured(experiment):
            return views
        raise LackingError(f"the results of {experiment}{_STATES[self.about]}", self.settings_of(experiment))

    def measured(self, experiment: str) -> list[MeasureView]:
        """An experiment in the sheet's state, from each run that has it."""
        if self.about == "before":
            views = (view_before(run, experiment) for run in self.runs)
            return [view for view in views if view is not None]
        trained = (run.experiments for run in self.runs if run.source != BEFORE_TRAINING)
        return [experiments[experiment][1] for experiments in trained if experiment in experiments]

    def columns(self, prefix: str) -> list[str]:
        """The columns ``measure/column`` with a prefix, without those of random words."""
        measure, _, beginning = prefix.partition("/")
        names = {column.name for view in self.measured(measure) for column in view.columns}
        return sorted(f"{measure}/{n}" for n in names if n.startswith(beginning) and not n.endswith(RANDOM))

    def settings_of(self, experiment: str, about: About | None = None) -> str:
        """The settings of ``analyze.py`` for an experiment in a state of the model; None for the sheet's state."""
        about = about or self.about
        if experiment == MaskedLMGradient.name and not self._predicts_words:
            return ""
        if about == "before" and experiment in _ANNOTATED:
            return f"{self._initial} {_ANNOTATED[experiment]}"
        # Without a fine-tuned model, there is nothing to compare with the model before fine-tuning.
        alone = all(run.source == BEFORE_TRAINING for run in self.runs)
        if about == "before" and (alone or experiment in _NOT_COMPARED):
            return f"{self._initial_on_task()} {settings_for(experiment, 'tuned')}"
        return settings_for(experiment, about)

    @property
    def _predicts_words(self) -> bool:
        """Whether the model before fine-tuning has, or may have, a head for masked words."""
        return self.runs[0].config["model"].get("objective") in (None, "masked_words")

    @property
    def _initial(self) -> str:
        """The settings that name the model before fine-tuning."""
        return shlex.join([ANY_MODEL, *model_settings(self.runs[0].config)])

    def _initial_on_task(self, *settings: str) -> str:
        """The settings that name the model before fine-tuning and the sheet's task and data, and further ones."""
        return f"{self._initial} {shlex.join([*text_settings(self.runs[0].config), *settings])}"

    def origin(self, column: str) -> str:
        """Identification of a column's numbers: for disabled heads, metric and sample."""
        return self.grid(column).origin if column.startswith(f"{DISABLE}/") else ""

    def _disabled(self, name: str, about: About) -> Grid:
        mode, kind, metric = _disabling(name)
        for run in self.runs:
            if Disabling.name not in run.experiments or (run.source == BEFORE_TRAINING) != (about == "before"):
                continue
            table = run.experiments[Disabling.name][1].run.ablation_table()
            rows = rows_of(KINDS[kind], table, None if KINDS[kind].done else mode, metric)
            if not rows:
                continue
            # A sweep of only the first layers does not know the number of layers.
            sizes = [run.size for run in self.runs if run.size is not None]
            layers, heads = max(sizes, default=(1 + max(row["layer"] for row in rows), 1))
            size = KINDS[kind].size(layers, heads)
            value_LH, stderr_LH = np.full(size, np.nan), np.full(size, np.nan)
            for row in rows:
                cell = KINDS[kind].cell(row)
                # The limits are valid even if few predictions change, when the bootstrap's standard error may be 0.
                value_LH[cell] = 100 * row["delta"]
                stderr_LH[cell] = 100 * stderr_of_width(row["high"] - row["low"], row["level"])
            # A sweep of only some layers does not describe the whole model.
            if np.isfinite(value_LH).all():
                return Grid(value_LH, stderr_LH, max(int(row["count"]) for row in rows), _origin(run, rows))
        what = f"the effects of disabling each {KINDS[kind].singular} (mode {mode})"
        settings = settings_for(f"{DISABLE}/{name}", "tuned")
        if about == "before":
            what += f" on masked words{_STATES[about]}{_NEEDS_HEAD}"
            named = self._initial_on_task(f"task.kind={MASKED}")
            settings = f"{named} {settings}" if self._predicts_words else ""
        raise LackingError(what, settings)


def _origin(run: FinishedRun, rows: Sequence[dict[str, Any]]) -> str:
    """Metric, evaluation set and sample of a sweep, e.g. ``accuracy on val, 408 of 872 examples``."""
    name, counts = rows[0]["evaluation"], sorted({int(row["count"]) for row in rows})
    of = run.scores.sets[name].count if name in run.scores.sets else None
    numbers = f"{counts[0]:,} to {counts[-1]:,}" if len(counts) > 1 else f"{counts[0]:,}"
    whole = "" if of is None or counts == [of] else f" of {of:,}"
    stopped = " (stopped early)" if len(counts) > 1 else ""
    return f"{rows[0]['metric']} on {name}, {numbers}{whole} examples{stopped}"


def _disabling(name: str) -> tuple[str, str, str | None]:
    """The mode, kind of component and metric of a column of :func:`disabled_columns`; None for the first metric."""
    mode, kind, *metric = name.split("/")
    return mode, kind, next(iter(metric), None)


def _layer(sheet: Sheet) -> Grid:
    layers, heads = next((run.size for run in sheet.runs if run.size is not None), (1, 1))
    return Grid(np.repeat(np.arange(layers, dtype=float)[:, None], heads, 1), np.zeros((layers, heads)), 0)


def _has_role(sheet: Sheet) -> Grid:
    view, *_ = sheet.views(VoitaRoles.name)
    roles = voita_roles(view)
    if not roles:
        raise LackingError("roles of heads", settings_for(VoitaRoles.name, sheet.about))
    value_LH = np.any(list(roles.values()), axis=0).astype(np.float64)
    return Grid(value_LH, np.zeros_like(value_LH), view.count(view.columns[0].name))


def _beyond_distance(sheet: Sheet) -> Grid:
    view, *_ = sheet.views(VoitaRoles.name)
    baselines = judged_relations(view)
    if not baselines:
        settings = settings_for(VoitaRoles.name, sheet.about)
        raise LackingError("enough pairs of words with a relation", settings, too_few=True)
    gain_CLH = np.stack([view.value(column) - share for column, share in baselines.items()])
    stderr_CLH = np.stack([view.stderr(column) for column in baselines])
    best_LH = np.where(np.isfinite(gain_CLH), gain_CLH, -np.inf).argmax(axis=0)[None]
    value_LH, stderr_LH = (np.take_along_axis(of_CLH, best_LH, 0)[0] for of_CLH in (gain_CLH, stderr_CLH))
    return Grid(value_LH, stderr_LH, max(view.count(name) for name in baselines), tests=len(baselines))


_LINKS = ("verb_to_subject", "subject_to_verb", "noun_to_pronoun", "pronoun_to_noun")


def _beyond_share(sheet: Sheet) -> Grid:
    shares, errors, count = [], [], 0
    for pair in _LINKS:
        weight, mean, beyond = (sheet.found(f"{TokenToToken.name}/{pair}{end}") for end in ("", MEAN, BEYOND))
        if weight and mean and beyond and np.isfinite(weight.value_LH).any():
            head = highest(weight.value_LH)
            if math.isfinite(beyond.value_LH[head]) and mean.value_LH[head] > 0:
                shares.append(beyond.value_LH[head] / mean.value_LH[head])
                errors.append(beyond.stderr_LH[head] / mean.value_LH[head])
                count = max(count, beyond.count)
    if not shares:
        raise LackingError("attention between such words", settings_for(TokenToToken.name, sheet.about))
    return Grid(np.array([shares]), np.array([errors]), count)


MADE: dict[str, Callable[[Sheet], Grid]] = {
    "place/layer": _layer,
    f"{VoitaRoles.name}/has_role": _has_role,
    f"{VoitaRoles.name}/beyond_distance": _beyond_distance,
    f"{TokenToToken.name}/beyond_share": _beyond_share,
}
"""Derived columns: the layer of each head; 1 if it has a role of Voita et al. (2019), else 0; the largest share of a
syntactic relation's pairs, over relations and directions, minus that of their most frequent distance, which is treated
as known; and, instead of heads, for each kind of words linked by syntax the head that attends most to them: its mean
attention beyond that to other words at the same distance, divided by the former.
"""


_STATES = {"tuned": "", "random": "", "before": " before fine-tuning", "change": " before and after fine-tuning"}


def settings_for(column: str, about: About) -> str:
    """The settings of ``analyze.py`` for a column."""
    column = column.removeprefix(BEFORE)
    measure, _, name = column.partition("/")
    if measure == DISABLE:
        mode, kind, _ = _disabling(name)
        if KINDS[kind].done:
            return f"analysis=disable 'ablation.components=[{','.join(part.component for part in PARTS)}]'"
        return f"analysis={'disable_all_but_one' if kind == 'all_but_one' else 'disable'} ablation.mode={mode}"
    settings = _ANALYSES.get(measure) or f"'measure=[{measure}]'"
    return settings if about in ("tuned", "random") else f"{settings} 'compare_with=[initial]'"


def _of_stage(run: FinishedRun, measure: str, name: str, about: About) -> Grid | None:
    view = run.experiments[measure][1]
    if about != "before" and run.source == BEFORE_TRAINING:
        return None
    if about == "change":
        grid = view.difference(name)
    elif about == "before":
        grid = view.first_of(name, [CHECKPOINT if run.source == BEFORE_TRAINING else INITIAL])
    else:
        grid = view.first_of(name, [CHECKPOINT, TRAINING])
    if grid is None:
        return None
    low, high = view.column(name).limits or UNLIMITED
    limits = (low - high, high - low) if about == "change" else (low, high)
    return Grid(grid[0], grid[1], int(grid[2].max()), limits=limits)


def _third(layers: int) -> int:
    return max(1, layers // 3)


LAYER_SETS: dict[str, Callable[[int], Sequence[int]]] = {
    "all": range,
    "first": lambda layers: range(1),
    "last": lambda layers: range(layers - 1, layers),
    "ends": lambda layers: (0, layers - 1),
    "first_two": lambda layers: range(min(2, layers)),
    "last_two": lambda layers: range(max(0, layers - 2), layers),
    "lower_half": lambda layers: range((layers + 1) // 2),
    "upper_half": lambda layers: range(layers // 2, layers),
    "lower_third": lambda layers: range(_third(layers)),
    "after_lower_third": lambda layers: range(min(_third(layers), layers - 1), layers),
    "middle": lambda layers: range(_third(layers), max(_third(layers) + 1, layers - _third(layers))),
    "upper_third": lambda layers: range(layers - _third(layers), layers),
    "all_but_last": lambda layers: range(max(1, layers - 1)),
    "all_but_last_two": lambda layers: range(max(1, layers - 2)),
    "all_but_first_two": lambda layers: range(min(2, layers - 1), layers),
    # Layers 6 to 10 of 12 in the paper's numbering.
    "five_of_twelve": lambda layers: range(
        round(5 * layers / 12), max(round(5 * layers / 12) + 1, round(10 * layers / 12))
    ),
}
"""Sets of layers by relative depth: a model's number of layers -> the layers of the set, from 0."""


def layers_of(layers: str, grid_LH: Array) -> list[int]:
    """The layers of a set in a grid ``[layers, heads]``.

    >>> [layers_of(name, np.zeros((6, 1))) for name in ("last_two", "upper_half", "middle", "ends")]
    [[4, 5], [3, 4, 5], [2, 3], [0, 5]]
    """
    return list(LAYER_SETS[layers](len(grid_LH)))


if TYPE_CHECKING:
    Layers: TypeAlias = str
else:
    # A type checker cannot read a computed literal.
    Layers = Literal[tuple(LAYER_SETS)]
