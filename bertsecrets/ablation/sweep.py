"""A disabling sweep: what is disabled and how, the passes, the tests of the effects, and the tables of results."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from bertsecrets.ablation.arithmetic import by_onednn, why_not_bf16
from bertsecrets.ablation.closer_look import look_closer
from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.forecast import Decision, check_bf16, duration, forecast, seconds_of
from bertsecrets.ablation.judging import (
    CosineChange,
    cosine_change,
    judged_grids,
    judged_rows,
    over_examples,
    selection_checks,
    spared_heads,
    sublayer_differences,
)
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import (
    Plan,
    Variant,
    as_groups,
    check_heads,
    check_layers,
    every,
    groups,
    single_head,
)
from bertsecrets.ablation.planner import FEWEST as FEWEST_OF_A_PILOT
from bertsecrets.ablation.planner import Pilot, plan_power
from bertsecrets.ablation.predictions import judged_metrics
from bertsecrets.ablation.replacements import DISABLING, check_references, prepare
from bertsecrets.ablation.rows import Disabling, Power, Swept
from bertsecrets.ablation.screening import Screening, screened_sweep, why_not
from bertsecrets.ablation.seeds import sweep_of
from bertsecrets.ablation.settings import BF16, AblationSettings
from bertsecrets.ablation.similar_heads import head_distances, similar_groups, with_controls
from bertsecrets.analysis import Analysis, Context, Findings
from bertsecrets.attention.modes import OF_REFERENCES, ModeNeed, find_mode
from bertsecrets.attention.parts import check_parts
from bertsecrets.data.module import example_count
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices
from bertsecrets.models.encoder import Autocast, Encoder
from bertsecrets.models.sentence_embedder import SentenceEmbedder
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.captures import write_telling
from bertsecrets.results.components import COMPONENTS, HEAD
from bertsecrets.results.files import in_command
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.results.store import Store
from bertsecrets.results.verdicts import INCONCLUSIVE
from bertsecrets.settings import Meaning

_log = logging.getLogger(__name__)

_TIMES = (1, 1.5, 2, 3, 4, 8, 16)
"""Sizes of the sweeps simulated after each sweep, in about a second; the first of a plan's, for the same numbers."""

_HOW_MUCH = Meaning(conditions="alone")

SIMILAR_GROUPS = "similar_groups"
_OF_COMPONENTS = {kind.plan: partial(every, kind) for kind in COMPONENTS}
PLANS = (*_OF_COMPONENTS, "groups", SIMILAR_GROUPS)


@dataclass(frozen=True)
class Judged:
    """A finished sweep: its outcomes, the settings of the tests, and how the sweep was run.

    Args:
        outcomes: Logits of every variant for every example.
        task: The task, with its metrics.
        evaluation: Name of the evaluation set.
        settings: How effects are tested.
        made: How the sweep was run, as rows: :class:`~bertsecrets.ablation.rows.Swept`, and ``Screened`` for a screened
            sweep.
    """

    outcomes: Outcomes
    task: Task
    evaluation: str
    settings: AblationSettings
    made: Sequence[Any] = ()

    def rows(self, identity: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A row of the ablation table for each metric and variant, with additional columns that are the same in all
        rows.
        """
        identity = {**identity, "evaluation": self.evaluation}
        return judged_rows(self.outcomes, self.task, identity, self.settings.judging())

    def beside(self, rows: Sequence[dict[str, Any]], stage: str) -> list[Any]:
        """The results beside the ablation table, as rows of :data:`~bertsecrets.ablation.rows.BESIDE_TABLE`.

        Args:
            rows: From :meth:`rows`.
            stage: The stage of the sweep; larger sweeps are not simulated during training, where later sweeps follow
                anyway.
        """
        outcomes, task, level = self.outcomes, self.task, self.settings.level
        found = [
            *self.made,
            *selection_checks(outcomes, task, rows, self.settings.seed),
            *spared_heads(outcomes, task, self.settings.judging()),
            *sublayer_differences(outcomes, task, level),
            *over_examples(outcomes, task, level),
        ]
        heads = [row for row in HEAD.of(rows) if row["metric"] == rows[0]["metric"]]
        undecided = any(row["verdict"] == INCONCLUSIVE for row in heads)
        # Plans assume independent examples, and need a margin.
        plans = outcomes.group_N is None and self.settings.margin is not None
        if stage == CHECKPOINT and undecided and plans and len(outcomes.label_N) >= FEWEST_OF_A_PILOT:
            pilot = Pilot.of([sweep_of("", heads, outcomes, task)], rows)
            found.append(Power(outcomes.plan.mode, **plan_power(pilot, times=_TIMES).record()))
        return found

    def findings(self, stage: str, context: Context | None = None) -> Findings:
        """Everything that is written to a run's folder: grids, rows, the ablation table and the outcomes.

        Args:
            stage: As in :meth:`beside`.
            context: The model, for what else a page shows of single heads; None for nothing.
        """
        rows, mode = self.rows({}), self.outcomes.plan.mode
        grids = judged_grids(self.outcomes.plan, rows)
        together, telling = ([], {}) if context is None else look_closer(context, self.outcomes, self.settings, rows)

        def finish(run: Run, stage: str, step: int) -> None:
            identity: dict[str, Any] = {"run": run.name, "model": run.model, "task": run.task, "init": run.init}
            identity |= {"stage": stage, "step": step}
            run.ablation_table().append(AblationTable.from_rows([{**row, **identity} for row in rows])).write(
                run.ablation_path
            )
            self.outcomes.write(run.outcomes_path(stage, step, mode), self.task)
            if telling:
                write_telling(run.folder / "ablation", telling)

        return Findings(
            Disabling(tuple(column for grid in grids for column in grid.described)),
            grids,
            [*self.beside(rows, stage), *together],
            # Sweeps at the same step may differ in their mode.
            equal={"mode": mode},
            tracked=judged_grids(self.outcomes.plan, rows, tracked=True),
            finish=finish,
        )


class DisableAnalysis(Analysis):
    """Disable parts of a model in turn and test which effects on its score are more than noise.

    No random numbers are drawn. Results do not depend on the number of processes.

    Args:
        plans: What to disable, of ``PLANS``: each head, each layer, all heads of a layer but one, each attention
            sublayer, feed-forward sublayer or block, the groups given in the settings, or groups of heads with similar
            maps (each head alone, each group, each group without one head, and random groups of the same layers).
            ``ablation.components`` replaces plans of components.
        ablation: How parts are disabled, and how effects are tested.
        every_n_validations: Sweep at every n-th validation and at the last; 0: only at the last.
        limit: Seconds. A sweep is exact, or screened if that would take longer than this, and skipped if even the
            screened sweep would. None: every sweep is run, and those during training are exact.

    Raises:
        UserError: If there is no plan, a plan does not exist, or its settings are missing.
    """

    without_labels = DISABLING
    tests_loss = True

    def __init__(
        self,
        plans: Annotated[Sequence[str], Field(min_length=1), _HOW_MUCH] = ("heads", "layers"),
        ablation: AblationSettings | None = None,
        every_n_validations: Annotated[
            int, Field(ge=0, description="a whole number from 1, or 0 for the last validation only"), _HOW_MUCH
        ] = 0,
        limit: Annotated[
            float | None, Field(gt=0, description="a positive number of seconds, or null"), _HOW_MUCH
        ] = None,
    ) -> None:
        settings = ablation or AblationSettings.read("ablation", {})
        super().__init__(settings.evaluation)
        self.every_n_validations = every_n_validations
        for plan in plans:
            if plan not in PLANS:
                raise UserError(f"Unknown disabling plan '{plan}'; {choices(str(plan), PLANS)}.")
        if not plans:
            raise UserError(f"No disabling plan is given; choose from {', '.join(PLANS)}.")
        self.plans = tuple(plans)
        if settings.components is not None:
            others = [plan for plan in plans if plan not in _OF_COMPONENTS]
            if others:
                raise UserError(
                    f"ablation.components lists what to disable one at a time, but the plan is {others[0]}; remove "
                    "one of them."
                )
            self.plans = tuple(kind.plan for kind in COMPONENTS if kind.component in settings.components)
        if settings.head is not None:
            self.plans = ("groups",)
        self.settings = settings
        self.limit = limit
        self.groups = as_groups(settings.heads)
        if "groups" in self.plans and not (settings.head or self.groups or settings.layers):
            raise UserError(
                "No group of heads is given; set ablation.heads=[[3,1],[7,10]] or ablation.layers=[0,11], or use "
                "analysis=redundancy for groups of similar heads."
            )

    def variants(self, encoder: Encoder) -> list[Variant]:
        """The variants of a model, without groups of similar heads."""
        settings, size = self.settings, (encoder.num_layers, encoder.num_heads)
        if asked := settings.named_heads:
            check_heads(asked, *size, "ablation.head")
            return [single_head(*asked[0])] if len(asked) == 1 else groups([asked])
        only = [settings.layer] if isinstance(settings.layer, int) else settings.layer
        variants: list[Variant] = []
        for plan in self.plans:
            if plan in _OF_COMPONENTS:
                check_layers(only or (), encoder.num_layers, "ablation.layer")
                variants += _OF_COMPONENTS[plan](*size, only)
            elif plan == "groups":
                check_layers(settings.layers or (), encoder.num_layers, "ablation.layers")
                together = [[layer, head] for layer in settings.layers or () for head in range(encoder.num_heads)]
                for group in groups(self.groups):
                    check_heads(group.heads, *size, "ablation.heads")
                variants += groups([*self.groups, *([together] if together else [])])
        return variants

    def check(self, context: Context) -> None:
        super().check(context)
        check_references(context, self.settings)
        judged = [metric.name for metric in judged_metrics(context.task)]
        for metric in context.task.metrics:
            if metric not in judged and context.is_first:
                _log.info(f"Effects of disabling heads are tested with {' and '.join(judged)}, not with {metric}.")
        encoder = context.encoder
        if context.outcome is not None:
            self.check_outcome()
        if SIMILAR_GROUPS in self.plans and encoder.num_layers * encoder.num_heads < 2:
            raise UserError(
                "The model has one attention head, so there are no groups of heads with similar maps; use "
                "analysis=disable."
            )
        plan = self._plan_before_passes(encoder)
        if plan is not None and any(variant.parts for variant in plan.variants):
            check_parts(encoder)

    def check_outcome(self) -> None:
        """Raise UserError if the plans or the mode need the inputs of single examples, which a user's module lacks."""
        needs = find_mode(self.settings.mode).needs
        asks = {
            "Plan 'similar_groups'": SIMILAR_GROUPS in self.plans,
            f"Mode '{self.settings.mode}'": bool({ModeNeed.DONORS, ModeNeed.FITTED_OUTPUTS} & needs),
        }
        for what, does in asks.items():
            if does:
                raise UserError(
                    f"{what} runs single examples, but a module with its own outcome runs whole batches; choose "
                    "another, such as plans=['heads'] with mode zero, uniform or mean."
                )

    def check_on_device(self, context: Context) -> None:
        if self.settings.precision == BF16:
            plan = self._plan_before_passes(context.encoder)
            unscreened = None if plan is None else why_not(context.task, plan, context.encoder)
            check_bf16(why_not_bf16(context.encoder, context.autocast, unscreened))

    def _plan_before_passes(self, encoder: Encoder) -> Plan | None:
        """The plan without groups of similar heads, which need a pass over the data; None if nothing is left."""
        variants = self.variants(encoder)
        if not variants and SIMILAR_GROUPS in self.plans:
            return None
        return self._plan_of(encoder, variants)

    def _plan_of(self, encoder: Encoder, variants: Sequence[Variant]) -> Plan:
        # Parts are left out in the same way in any mode, so without heads the mode would only cost time.
        mode = self.settings.mode if any(variant.heads for variant in variants) else "zero"
        return Plan(mode, encoder.num_layers, encoder.num_heads, tuple(variants))

    def plan(self, context: Context) -> Plan:
        """What is disabled in a model."""
        encoder, settings = context.encoder, self.settings
        variants = self.variants(encoder)
        if SIMILAR_GROUPS in self.plans:
            batches = context.batches(settings.similarity_examples)
            with progress_over(len(batches), "comparing heads", visible=context.progress) as advance:
                distance_HH = head_distances(
                    encoder.model, batches, context=context.autocast, progress=lambda: advance(1)
                )
            similar = similar_groups(distance_HH, encoder.num_heads, settings.group_size)
            if not similar:
                raise UserError(
                    "No two heads have similar maps, so there is no group to disable; give groups with ablation.heads."
                )
            variants += with_controls(similar, encoder.num_heads, settings.group_count, settings.seed)
            # Heads of groups may be in the plan already.
            variants = list({variant.name: variant for variant in variants}.values())
        return self._plan_of(encoder, variants)

    def run(self, context: Context) -> Iterator[Findings]:
        judged = self.judged(context)
        if judged is not None:
            yield judged.findings(context.stage, context)
            moved = cosine_change(judged.outcomes) if isinstance(context.model, SentenceEmbedder) else None
            if moved is not None:
                yield Findings(CosineChange(), [moved])

    def judged(self, context: Context) -> Judged | None:
        """Sweep and test the effects; None if only the plan is requested, or the sweep would take too long.

        An interrupted sweep is resumed from its finished batches.

        Raises:
            UserError: If the plan does not fit the model, an example has no label, or logits are not finite.
        """
        plan, settings = self.plan(context), self.settings
        needs, replacing = find_mode(settings.mode).needs, []
        if needs & OF_REFERENCES:
            names = {ModeNeed.DONORS: ["draws", "seed"], ModeNeed.FITTED_OUTPUTS: ["optimal_steps", "seed"]}
            of_mode = [name for need, of_need in names.items() if need in needs for name in of_need]
            replacing = [getattr(settings, name) for name in ("reference_examples", *of_mode)]
        store = context.store.of(context.model, plan, settings.max_examples, replacing)
        fast = by_onednn(context.encoder, context.autocast)
        fp32 = fast or context.autocast
        decision: Decision | None = Decision("exact", len(context.positions(settings.max_examples)))
        # Without a run, and for sentence-embedding models, sweeps are always exact.
        if context.output is not None and not isinstance(context.model, SentenceEmbedder):
            decision = self._decide(context, plan, store, fp32)
        if settings.plan_only or decision is None:
            return None
        screening = Screening(settings.audit, settings.seed, precision=decision.precision)
        batch_store = store.of("batches")
        options: dict[str, Any] = {
            "replacements": prepare(context, plan, settings, store),
            "store": batch_store,
            "max_tokens": settings.max_tokens,
            "context": fp32,
        }
        batches = context.batches(decision.examples)
        total = sum(len(spec.positions) for spec in batches.sampler) * len(plan.variants)
        made: list[Any] = []
        started = time.monotonic()
        with progress_over(total, "disabling", visible=context.progress, unit="variant·example") as options["progress"]:
            if decision.kind == "exact":
                outcomes = exact_sweep(context.model, plan, batches, outcome=context.outcome, **options)
            else:
                outcomes, record = screened_sweep(context.model, plan, batches, screening, **options)
                made.append(replace(record, reason=decision.reason, onednn=fast is not None))
        if batch_store.loaded:
            _log.info(f"Resumed an interrupted sweep: {batch_store.loaded} batches were already finished.")
        seconds = None if batch_store.loaded else time.monotonic() - started
        whole, count = example_count(context.split), len(outcomes.index_N)
        sample: dict[str, Any] = {}
        if count < whole:
            budget = settings.budget if count < (settings.max_examples or whole) else None
            sample = {"examples": count, "whole": whole, "budget": budget}
        made.append(Swept(plan.mode, find_mode(plan.mode).words, **sample, seconds=seconds))
        return Judged(outcomes, context.task, context.evaluation, settings, made)

    def _decide(self, context: Context, plan: Plan, store: Store, fp32: Autocast) -> Decision | None:
        """How to sweep, logged in one line, or None for not at all; a resumed sweep continues as it began."""
        settings = self.settings
        # The sweeps of one training run must be of the same kind; bf16 is for screened sweeps only.
        implied = "screened" if settings.precision == BF16 else None
        free = context.stage == CHECKPOINT or self.limit is not None
        requested = settings.sweep or implied or (None if free else "exact")
        request = ("decision", requested, settings.budget, settings.precision)
        begun = store.get(*request)
        decision = None if begun is None else Decision(**begun)
        precision = settings.precision if decision is None else decision.precision
        predicted = forecast(context, plan, settings, precision, fp32)
        budget = None if settings.budget is None else seconds_of(settings.budget)
        if decision is None:
            decision = predicted.decide(requested, budget, self.limit)
            if context.is_first:
                store.put(asdict(decision), *request)
        seconds = predicted.nominal.of(decision.kind) + predicted.nominal.fit
        if self.limit is not None and budget is None and seconds > self.limit:
            _log.info(
                f"Heads were not disabled, because {len(plan.variants):,} variants would take about "
                f"{duration(seconds)}; to disable them later, run python -m bertsecrets analyze "
                f"checkpoint={in_command(context.run.folder)} analysis=disable, with ablation.budget=10min to limit "
                "the time."
            )
            return None
        _log.info(predicted.in_words(decision, requested, budget, self.limit))
        return decision
