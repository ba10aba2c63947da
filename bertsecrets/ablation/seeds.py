"""Effects of disabling in the runs of a condition, and over its seeds: which findings from a single run replicate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.predictions import PairedPredictions, find_metric
from bertsecrets.ablation.significance import bootstrap_changes
from bertsecrets.ablation.verdicts import (
    FALSE_DISCOVERY,
    FAMILY_WISE,
    Judging,
    p_against_margin,
    p_of_losses,
    p_of_mean_against_margin,
    verdicts_of,
)
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.errors import UserError
from bertsecrets.results.components import KINDS
from bertsecrets.results.disabled import rows_of
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED, joint_limits
from bertsecrets.results.views import MeasureView, Replicates
from bertsecrets.statistics.corrections import corrected, holm
from bertsecrets.statistics.intervals import stderr_of_width
from bertsecrets.statistics.non_inferiority import weighted_loss
from bertsecrets.statistics.replicates import (
    SeedEffects,
    effects_over_seeds,
    noise_of_examples,
    seeds_shown,
)
from bertsecrets.task_heads.metric import Array, Metric

# Pages are built without PyTorch, unless predictions of several seeds are read.
if TYPE_CHECKING:
    from bertsecrets.ablation.outcomes import Outcomes

_RESAMPLES = 2000
FEW_FLIPS = 10
"""With fewer changed predictions over all runs, resampling does not show how large an error is."""


@dataclass(frozen=True)
class OverSeeds:
    """Effects of single heads or whole layers over the seeds of a condition.

    Args:
        components: Layer and head (None for a whole layer) of each of V variants.
        effects: Their means over seeds, with their uncertainty over seeds and examples.
        verdict: Their verdicts over seeds.
        single: Their verdicts in each of S runs, ``[S][V]``.
        needed_in, spared_in: Lower bounds on the number of these S seeds in which each variant is needed, or loses less
            than the margin; 0 for none, ``[V]`` each.
        note: Sentences on settings in which the runs differ, and on what screened sweeps did not evaluate; empty for
            none.
    """

    components: tuple[tuple[int, int | None], ...]
    effects: SeedEffects
    verdict: tuple[str, ...]
    single: tuple[tuple[str, ...], ...]
    needed_in: NDArray[np.int64]
    spared_in: NDArray[np.int64]
    note: str


@dataclass(frozen=True, kw_only=True)
class RunSweep(PairedPredictions):
    """One run's sweep over V heads or layers: the predictions, and the rows of tested effects.

    Args:
        name: The run.
        rows: Its tested rows, ordered by variant.
        index_N: Index of each example.
        own: The metric that judges, of a task head that is not among ours; None to find it by its name in the rows.
    """

    name: str
    rows: Sequence[dict[str, Any]]
    index_N: NDArray[np.int64]
    own: Metric | None = None

    @property
    def metric(self) -> Metric:
        """The metric of the tests."""
        return self.own or find_metric(str(self.rows[0]["metric"]))

    @cached_property
    def change_V(self) -> Array:
        """Change of the score for each variant."""
        return self.changes(self.metric)

    @cached_property
    def resampled_RV(self) -> Array:
        """The same under resamples of the examples, ``[R, V]``."""
        # An identical generator draws the same examples for every seed.
        return bootstrap_changes(self.metric, self, _RESAMPLES, np.random.default_rng([0, 0]))


def over_seeds(replicates: Replicates, kind: str, mode: str | None = None) -> OverSeeds | None:
    """Effects of every head or layer (``kind``) over the runs of a condition, for their first mode or for a given mode.

    None with fewer than two runs that disabled the same variants and kept their predictions.

    Raises:
        UserError: If the runs disabled heads on different examples.
    """
    sweeps = [sweep for view in replicates.views if (sweep := read_sweep(view, kind, mode)) is not None]
    variants = [[row["variant"] for row in sweep.rows] for sweep in sweeps]
    # A mean over seeds needs the same variants in each run, in the same order.
    if len(sweeps) < 2 or any(names != variants[0] for names in variants):
        return None
    return judge_over_seeds(sweeps)


@dataclass(frozen=True)
class JudgedConditions:
    """The heads or layers of several conditions, with verdicts over the seeds of each.

    Args:
        by_label: The effects in each condition whose seeds can be combined.
        notes: Sentences on runs that cannot be combined, or that were tested with different settings.
    """

    by_label: Mapping[str, OverSeeds]
    notes: tuple[str, ...]


def judge_conditions(replicates: Mapping[str, Replicates], kind: str, mode: str | None = None) -> JudgedConditions:
    """Test each condition's heads or layers (``kind``) over its seeds.

    Args:
        replicates: The runs of each condition.
        kind: ``head`` or ``layer``.
        mode: The mode of disabling; None for the first of each run.
    """
    by_label, notes = {}, []
    for label, runs in replicates.items():
        disabled = [view for view in runs.views if KINDS[kind].of(view.run.ablation_table().rows())]
        if len(disabled) < 2:
            continue
        try:
            over = over_seeds(runs, kind, mode)
        except UserError as error:
            notes.append(str(error))
            continue
        if over is not None:
            by_label[label] = over
            notes += [over.note] if over.note else []
        else:
            notes.append(
                f"The {kind}s of {label} cannot be judged over seeds: fewer than two of its runs disabled the same "
                f"{kind}s and kept their predictions (ablation/*.safetensors)."
            )
    return JudgedConditions(by_label, tuple(dict.fromkeys(notes)))


def read_sweep(view: MeasureView, kind: str, mode: str | None = None) -> RunSweep | None:
    """A run's last sweep with the first set and metric, and with the first mode or a given mode.

    None if there is none, or its predictions were not kept.
    """
    rows = rows_of(KINDS[kind], view.run.ablation_table(), mode)
    if not rows:
        return None
    path = view.run.outcomes_path(*(rows[0][name] for name in ("stage", "step", "mode")))
    if not path.is_file():
        return None
    from bertsecrets.ablation.outcomes import Outcomes

    outcomes = Outcomes.read(path)
    return sweep_of(view.run.folder.name, rows, outcomes, task_from_config(view.run.config()["task"]))


def sweep_of(name: str, rows: Sequence[dict[str, Any]], outcomes: Outcomes, task: Task) -> RunSweep:
    """The sweep behind some tested rows of one kind and metric.

    Args:
        name: The run.
        rows: The rows, in any order.
        outcomes: The outcomes that were tested.
        task: The task.
    """
    rows = sorted(rows, key=lambda row: str(row["variant"]))
    index_of = {variant.name: index for index, variant in enumerate(outcomes.plan.variants)}
    paired = outcomes.predictions(task).of([index_of[row["variant"]] for row in rows])
    # Tests over seeds make no allowance for pairs that a screened sweep left out.
    data = (paired.label_N, paired.clean_N, paired.prediction_VN)
    own = task.head.metrics.get(str(rows[0]["metric"]))
    return RunSweep(*data, name=name, rows=rows, index_N=outcomes.index_N.numpy(), group_N=paired.group_N, own=own)


def judge_over_seeds(sweeps: Sequence[RunSweep]) -> OverSeeds:
    """Effects of the same variants in runs that differ in their seed.

    Raises:
        UserError: If there are fewer than two runs, or their examples differ.
    """
    first = sweeps[0]
    for other in sweeps[1:]:
        if not (np.array_equal(first.index_N, other.index_N) and np.array_equal(first.label_N, other.label_N)):
            raise UserError(
                f"Runs '{first.name}' and '{other.name}' disabled heads on different examples ({len(first.index_N)} "
                f"and {len(other.index_N)}), so their seeds cannot be combined; repeat one of them with the examples "
                "of the other."
            )
        if not np.array_equal(np.asarray(first.group_N), np.asarray(other.group_N)):
            raise UserError(
                f"Runs '{first.name}' and '{other.name}' group their examples differently, so their seeds cannot be "
                "combined; repeat one of them with data.group of the other."
            )
    judging = Judging.of(first.rows[0])
    noise = noise_of_examples(np.stack([sweep.resampled_RV for sweep in sweeps]))
    # Resamples of heads that change hardly any prediction over all runs have no spread, so these effects would look
    # certain; the mean width of the single runs' intervals is valid there.
    flips_V = np.sum([sweep.moved(sweep.metric).sum(-1) for sweep in sweeps], axis=0)
    width_V = np.mean([[row["high"] - row["low"] for row in sweep.rows] for sweep in sweeps], axis=0)
    least_V = np.where(flips_V < FEW_FLIPS, stderr_of_width(width_V, judging.level), 0.0)
    shared_V, noise_V = np.maximum(noise, least_V**2)
    margin = judging.margin
    seed_effects = effects_over_seeds(
        np.stack([sweep.change_V for sweep in sweeps]),
        shared_V,
        noise_V,
        margin=math.nan if margin is None else margin,
        level=judging.level,
        largest=first.metric.reach,
    )
    if margin is not None:
        seed_effects = replace(seed_effects, p_examples=p_of_mean_against_margin(first.metric, sweeps, margin))
    p_loss_SV = np.stack(
        [p_of_losses(sweep.change_V, np.array([one["p_value"] for one in sweep.rows])) for sweep in sweeps]
    )
    p_margin_SV = np.stack([p_against_margin(sweep.metric, sweep, margin) for sweep in sweeps])
    return OverSeeds(
        tuple((row["layer"], row["head"]) for row in first.rows),
        seed_effects,
        verdicts_over_seeds(seed_effects, judging)[1],
        tuple(tuple(row["verdict"] for row in sweep.rows) for sweep in sweeps),
        needed_in=seeds_shown(p_loss_SV, judging.alpha, family_wise=judging.correction == FAMILY_WISE),
        spared_in=seeds_shown(p_margin_SV, judging.false_discovery_rate, family_wise=False),
        note=_note(sweeps),
    )


def p_of_flips(common_2V: Array, own_2SV: Array, count: int, margin: float) -> Array:
    """The p-values of a mean loss given only the examples' noise, from numbers of lost and won predictions, ``[V]``.

    Args:
        common_2V: Numbers common to all seeds.
        own_2SV: Numbers for each of S seeds.
        count: Number of examples.
        margin: The loss.
    """
    weights = 1 / count, 1 / (count * own_2SV.shape[1])
    lost_2V, won_2V = np.stack(
        [common_2V * weights[0] ** power + own_2SV.sum(1) * weights[1] ** power for power in (1, 2)], axis=1
    )
    return weighted_loss(won_2V[0] - lost_2V[0], lost_2V, won_2V, weights[0])(np.array(margin))


def _note(sweeps: Sequence[RunSweep]) -> str:
    """Sentences on test settings in which runs differ from the first, and on what is not counted; empty for none."""
    first = sweeps[0]
    differing = [
        f"{name} ({first.rows[0][name]} in '{first.name}', {sweep.rows[0][name]} in '{sweep.name}')"
        for name in ("margin", "level", "correction", "false_discovery_rate")
        for sweep in sweeps[1:]
        if sweep.rows[0][name] != first.rows[0][name]
    ]
    notes = []
    if differing:
        notes.append(
            f"The runs differ in {'; '.join(differing)}; the verdicts over seeds use the settings of '{first.name}' "
            "for all of them."
        )
    if any(row["sweep"] == "screened" for sweep in sweeps for row in sweep.rows):
        notes.append("Changes of prediction that a screened sweep did not evaluate are not counted over seeds.")
    return " ".join(notes)


def verdicts_over_seeds(effects: SeedEffects, judging: Judging) -> tuple[Array, tuple[str, ...]]:
    """The corrected one-sided p-values of no loss of V effects over seeds, and the verdicts."""
    # A few seeds do not show how the errors of so many heads are correlated, hence Holm's correction instead of max-t.
    correct = corrected if judging.correction == FALSE_DISCOVERY else holm
    p_needed_V = correct(p_of_losses(effects.delta, effects.p_value))
    return p_needed_V, verdicts_of(p_needed_V, corrected(effects.p_margin), judging)


@dataclass(frozen=True)
class Effects:
    """The effects at the last step of the first metric.

    Args:
        delta_RLH: Changes of the score, ``[replicates, layers, heads]``; a whole layer is one head.
        certain_RLH: Which of them are significant.
        needed_RLH: Which heads are needed.
        dispensable_RLH: For which heads a loss of the margin or more is ruled out.
        limits_RLH2: Limits of each run's changes that hold for all of its heads together.
        baseline_R: Scores of the models with nothing disabled.
        count: Number of examples; the largest over heads where they differ.
        fewest: The smallest number of examples over heads.
        metric, mode: The score, and the mode of disabling.
        false_discovery_rate: Of significant changes.
        screened: Whether any run evaluated only the pairs whose prediction may change.
        judge: Returns the verdicts over seeds. Called once, and only if they are needed, because it reads all
            predictions.
    """

    delta_RLH: NDArray[np.float64]
    certain_RLH: NDArray[np.bool_]
    needed_RLH: NDArray[np.bool_]
    dispensable_RLH: NDArray[np.bool_]
    limits_RLH2: NDArray[np.float64]
    baseline_R: NDArray[np.float64]
    count: int
    fewest: int
    metric: str
    mode: str
    false_discovery_rate: float
    screened: bool
    judge: Callable[[], OverSeeds | None]

    @cached_property
    def over(self) -> OverSeeds | None:
        """The verdicts over seeds; None for a single seed, and where seeds cannot be combined."""
        return self.judge()

    @property
    def judged(self) -> bool:
        """Whether each head has a verdict: of the only seed, or over seeds."""
        return len(self.delta_RLH) == 1 or self.over is not None

    @property
    def needed_LH(self) -> NDArray[np.bool_]:
        """Which heads are needed, over seeds or by the only seed; none where several seeds cannot be combined."""
        return self._with_verdict(NEEDED, self.needed_RLH)

    @property
    def dispensable_LH(self) -> NDArray[np.bool_]:
        """Which heads can be spared, likewise."""
        return self._with_verdict(DISPENSABLE, self.dispensable_RLH)

    def _with_verdict(self, code: str, single_RLH: NDArray[np.bool_]) -> NDArray[np.bool_]:
        with_code_LH = np.zeros(single_RLH.shape[1:], bool)
        if len(single_RLH) == 1:
            with_code_LH |= single_RLH[0]
        elif self.over is not None:
            for (layer, head), verdict in zip(self.over.components, self.over.verdict, strict=True):
                with_code_LH[layer, head or 0] = verdict == code
        return with_code_LH

    @property
    def limits_LH2(self) -> NDArray[np.float64]:
        """Limits of the mean changes that hold for all heads together, likewise; NaN where a head has none."""
        limits_LH2 = np.full(self.limits_RLH2.shape[1:], np.nan)
        if len(self.limits_RLH2) == 1:
            limits_LH2[:] = self.limits_RLH2[0]
        elif self.over is not None:
            limits_V2 = np.stack(self.over.effects.limits_simultaneous, -1)
            for (layer, head), limits_2 in zip(self.over.components, limits_V2, strict=True):
                limits_LH2[layer, head or 0] = limits_2
        return limits_LH2

    @property
    def what(self) -> str:
        """Metric and mode, as printed in tables."""
        return f"{self.metric} ({self.mode}{', screened' * self.screened})"


def effects(
    replicates: Replicates,
    kind: str,
    judged: Mapping[str, OverSeeds] | None = None,
    label: str = "",
    mode: str | None = None,
) -> Effects | None:
    """Effects of each head or layer (``kind``); None if no replicate disabled any.

    Args:
        replicates: The runs of a condition.
        kind: Name of a kind of components.
        judged: Verdicts over seeds by condition, if the caller already has them.
        label: The condition.
        mode: The mode of disabling; None for the first of each run.
    """

    def judge() -> OverSeeds | None:
        known = judge_conditions({label: replicates}, kind, mode).by_label if judged is None else judged
        return known.get(label)

    deltas, flags, limits, baselines, last = [], [], [], [], None
    counts, screened = set(), False
    for view in replicates.views:
        singles = rows_of(KINDS[kind], view.run.ablation_table(), mode)
        run_size = view.run.size()
        if not singles or run_size is None:
            continue
        last = singles[0]
        size = KINDS[kind].size(*run_size)
        delta_LH, flag_LH3 = np.full(size, np.nan), np.zeros((*size, 3), bool)
        limits_LH2 = np.full((*size, 2), np.nan)
        for row in singles:
            cell = KINDS[kind].cell(row)
            delta_LH[cell] = row["delta"]
            flag_LH3[cell] = row["significant"], row["verdict"] == NEEDED, row["verdict"] == DISPENSABLE
            limits_LH2[cell] = joint_limits(row)
            counts.add(row["count"])
            screened |= row["sweep"] == "screened"
        deltas.append(delta_LH)
        limits.append(limits_LH2)
        flags.append(flag_LH3)
        baselines.append(last["baseline"])
    if last is None:
        return None
    certain_RLH, needed_RLH, dispensable_RLH = np.moveaxis(np.stack(flags), -1, 0)
    return Effects(
        np.stack(deltas),
        certain_RLH,
        needed_RLH,
        dispensable_RLH,
        np.stack(limits),
        np.array(baselines),
        max(counts),
        min(counts),
        last["metric"],
        last["mode"],
        last["false_discovery_rate"],
        screened,
        judge,
    )
