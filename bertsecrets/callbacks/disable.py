"""Disable heads and layers at validation time and judge the effects."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytorch_lightning as pl
from pydantic import Field
from pytorch_lightning.loggers import WandbLogger
from torch import nn
from torch.utils.data import DataLoader

from bertsecrets.ablation.arithmetic import Arithmetic, choose, why_not_bf16
from bertsecrets.ablation.experiment import Disabling
from bertsecrets.ablation.forecast import Decision, duration, forecast, seconds_of
from bertsecrets.ablation.judging import judged_grids, judged_rows, selection_checks
from bertsecrets.ablation.looks import LOOKS, STOPPING_KINDS, LooksRecord, look_positions, sweep_in_looks
from bertsecrets.ablation.outcomes import Outcomes, Parts, fingerprint
from bertsecrets.ablation.plan import (
    Plan,
    Variant,
    all_but_one,
    as_groups,
    cumulative,
    every_head,
    every_layer,
    groups,
    random_groups,
    read_groups,
)
from bertsecrets.ablation.screening import SWEEP, Screening, ScreeningRecord, screened_sweep, why_not
from bertsecrets.ablation.section import SAMPLE
from bertsecrets.ablation.settings import BF16, FP32, AblationSettings
from bertsecrets.ablation.similar_heads import head_distances, similar_groups, with_controls
from bertsecrets.ablation.sweep import sweep
from bertsecrets.callbacks.head_analysis import check_scorable, replacements_of
from bertsecrets.callbacks.trainer_state import current_step, is_last_validation, shows_progress, stage_of
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData, sample_positions
from bertsecrets.errors import UserError, choices
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import Encoder, describe
from bertsecrets.results import wandb as tracking
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import CHECKPOINT, Run

_log = logging.getLogger(__name__)

PLANS = ("heads", "layers", "all_but_one", "groups", "cumulative", "random", "similar_groups")
MOMENTS = ("end", "every")


class DisableHeads(pl.Callback):
    """Disable heads and layers of the model at validation time and judge which effects are more than noise.

    Training is not affected: no random number is drawn, the model returns to its mode, and the final weights equal those
    of a run without this callback. Any number of processes gives the results of one.

    Args:
        run: The run to write results to.
        ablation: What is disabled, how, and how the effect is judged.
        plans: What to disable, of ``PLANS``: each head, each layer, every head of a layer but one, the groups that the
            settings name, the first heads of a ranking, random groups, or groups of heads with similar maps (each head
            alone, each group, each group but one, and random groups of the same size).
        every_n_validations: Sweep at every n-th validation and at the last; 0: only at the last.
        limit: Seconds. A sweep is exact, or screened where that takes too long, and left out if even that is predicted to take
            longer than this. None: every sweep is run, during training exactly.

    Raises:
        UserError: If a setting names a plan, head or set that does not exist, or the plan is empty.
    """

    def __init__(
        self,
        run: Run,
        ablation: AblationSettings | None = None,
        plans: Annotated[Sequence[str], Field(min_length=1)] = ("heads", "layers"),
        every_n_validations: Annotated[
            int, Field(ge=0, description="a whole number from 1, or 0 for the last validation only")
        ] = 0,
        limit: Annotated[float | None, Field(gt=0, description="a positive number of seconds, or null")] = None,
    ) -> None:
        for plan in plans:
            if plan not in PLANS:
                raise UserError(f"Unknown disabling plan '{plan}'; {choices(str(plan), PLANS)}.")
        if not plans:
            raise UserError(f"No disabling plan is given; choose from {', '.join(PLANS)}.")
        if type(every_n_validations) is not int or every_n_validations < 0:
            raise UserError(f"every_n_validations is {every_n_validations!r}; expected 0 (at the end) or more.")
        self.run = run
        self.settings = ablation or AblationSettings()
        self.plans = tuple(plans)
        self.every_n_validations = every_n_validations
        self.limit = limit
        layer = self.settings.layer
        self.only_layers = [layer] if isinstance(layer, int) else layer
        self.groups = as_groups(self.settings.heads)
        plan_file = self.settings.plan_file
        self.file_groups = [] if plan_file is None else read_groups(Path(plan_file))
        self.seconds = 0.0
        """Duration of the last sweep, including the judging."""
        if "groups" in self.plans and not (self.groups or self.file_groups or self.settings.layers):
            raise UserError(
                "No group of heads is given; set ablation.heads=[[3,1],[7,10]], ablation.layers=[0,11] or "
                "ablation.plan_file=<file>, or use analysis=redundancy for groups of similar heads."
            )
        if "cumulative" in self.plans and self.settings.ranking is None:
            raise UserError("Plan 'cumulative' needs ablation.ranking, the heads in the order to disable them.")
        self._validations = 0
        self._parts: Parts | None = None
        self._screened: ScreeningRecord | None = None
        self._looked: LooksRecord | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        # Settings that do not fit the model or the task are reported now, not after hours of training.
        data = getattr(trainer, "datamodule", None)
        if isinstance(data, TaskData):
            data.check_evaluation(self.settings.evaluation)
            check_scorable(data, self.settings)
        encoder = describe(pl_module.model)
        if "similar_groups" in self.plans and encoder.num_layers * encoder.num_heads < 2:
            raise UserError(
                "The model has one attention head, so there are no groups of heads with similar maps; use analysis=disable."
            )
        variants = self.variants(encoder)
        if variants or "similar_groups" not in self.plans:
            Plan(self.settings.mode, encoder.num_layers, encoder.num_heads, tuple(variants))
        kinds = {variant.kind for variant in variants} | ({"group"} if "similar_groups" in self.plans else set())
        if self.settings.looks > 1 and not kinds <= set(STOPPING_KINDS):
            raise UserError(
                f"ablation.looks is {self.settings.looks}, but groups of heads are compared with others on the same examples; "
                "use ablation.looks=1, or disable single heads and layers alone."
            )

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check_bf16(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check_bf16(trainer, pl_module)

    def _check_bf16(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Refuse bf16 where it is out of the question before the training, and not at its end; the model is on its device."""
        if self.settings.precision != BF16:
            return
        assert isinstance(module, SequenceClassifier)
        encoder = describe(module.model)
        variants = self.variants(encoder)
        # Groups of similar heads are only known after a pass over the data.
        plan = Plan(self.settings.mode, encoder.num_layers, encoder.num_heads, tuple(variants)) if variants else None
        unscreened = None if plan is None else why_not(module.task, plan, encoder)
        choose(BF16, None, why_not_bf16(encoder, trainer.precision_plugin.forward_context, unscreened))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._validations += 1
        due = self.every_n_validations and self._validations % self.every_n_validations == 0
        if not (due or is_last_validation(trainer)):
            return
        assert isinstance(pl_module, SequenceClassifier)
        started = time.monotonic()
        outcomes = self.take(trainer, pl_module.model)
        if trainer.is_global_zero and outcomes is not None:
            self._keep(trainer, pl_module, outcomes)
        self.seconds = time.monotonic() - started

    def take(self, trainer: pl.Trainer, model: nn.Module) -> Outcomes | None:
        """Run the sweep over the evaluation set, on all processes; None if only its plan is wanted, or it takes too long."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        encoder = describe(model)
        context = trainer.precision_plugin.forward_context
        variants = self.variants(encoder)
        if "similar_groups" in self.plans:
            variants = _unique([*variants, *self._similar(trainer, data, encoder)])
        plan = Plan(self.settings.mode, encoder.num_layers, encoder.num_heads, tuple(variants))
        evaluation = data.check_evaluation(self.settings.evaluation)
        loader = data.evaluation_loader(evaluation, max_examples=self.settings.max_examples)
        self._parts, self._screened, self._looked, identity = None, None, None, ""
        if stage_of(trainer) == CHECKPOINT:
            asked = [data.task.name, evaluation, self.settings.max_examples, *self._replacing()]
            identity = fingerprint(model, plan, [trainer.precision, *asked])
        decision = self._decide(trainer, data, model, plan, loader, identity)
        if self.settings.plan_only or decision is None:
            return None
        loader = data.evaluation_loader(evaluation, max_examples=decision.examples)
        if identity:
            kept = identity if decision.kind == "exact" else f"{identity} screened {self._screening(decision)}"
            self._parts = Parts(self.run.folder / "ablation" / "parts", kept)
        settings: dict[str, Any] = {
            "replacements": replacements_of(
                trainer,
                model,
                plan,
                self.settings,
                # A sweep during training has another model each time.
                saved=self.run.folder / "ablation" / "optimal.safetensors" if identity else None,
                fingerprint=identity,
            ),
            "max_tokens": self.settings.max_tokens,
            "context": context,
            "parts": self._parts,
        }
        total = sum(len(spec.positions) for spec in loader.sampler) * len(plan.variants)
        with progress_over(total, "disabling", visible=shows_progress(trainer), unit="variant·example") as advance:
            if self.settings.looks > 1:
                outcomes, self._looked = self._sweep_in_looks(data, model, plan, decision.examples, advance, settings)
            elif decision.kind == "exact":
                outcomes = sweep(model, plan, loader, progress=advance, **settings)
            else:
                outcomes, record = screened_sweep(
                    model, plan, loader, self._screening(decision), progress=advance, **settings
                )
                self._screened = replace(record, **asdict(decision.arithmetic))
        if self._parts is not None and self._parts.loaded:
            _log.info(f"Resumed an interrupted sweep: {self._parts.loaded} batches were already finished.")
        return outcomes

    def _sweep_in_looks(
        self,
        data: TaskData,
        model: nn.Module,
        plan: Plan,
        examples: int,
        advance: Callable[[int], object],
        settings: dict[str, Any],
    ) -> tuple[Outcomes, LooksRecord]:
        dataset = data.evaluation_dataset(data.check_evaluation(self.settings.evaluation))
        sample = sample_positions(len(dataset), examples, 0)
        looks = [
            [sample[place] for place in places]
            for places in look_positions(len(sample), self.settings.looks, self.settings.seed)
        ]
        saved = settings.pop("parts")

        def evaluate(part: Plan, batches: Iterable[Batch]) -> Outcomes:
            names = [variant.name for variant in part.variants]
            parts = saved and Parts(saved.folder, f"{saved.fingerprint} {names}")
            outcomes = sweep(model, part, batches, parts=parts, progress=advance, **settings)
            if saved is not None and parts is not None:
                saved.loaded += parts.loaded
            return outcomes

        return sweep_in_looks(
            plan,
            [(len(positions), partial(data.loader_of, dataset, positions)) for positions in looks],
            evaluate,
            data.task,
            self.settings.judging(),
            progress=advance,
        )

    def _screening(self, decision: Decision) -> Screening:
        return Screening(
            audit=self.settings.audit,
            seed=self.settings.seed,
            precision=decision.arithmetic.precision,
            onednn=decision.arithmetic.onednn,
        )

    def _decide(
        self,
        trainer: pl.Trainer,
        data: TaskData,
        model: nn.Module,
        plan: Plan,
        loader: DataLoader[Batch],
        identity: str,
    ) -> Decision | None:
        """How to sweep, said in one line, or None for not at all; a resumed sweep goes on as it began."""
        # Parts of one plan must be of one kind, and so must the sweeps of one training; bf16 is for screened sweeps alone.
        implied = "exact" if self.settings.looks > 1 else "screened" if self.settings.precision == BF16 else None
        open_choice = self.limit is not None or (identity and self.settings.layer is None)
        wish = self.settings.sweep or implied or (None if open_choice else "exact")
        asked = [wish, self.settings.budget, self.settings.precision]
        path = self.run.folder / "ablation" / f"decision-{identity[:16]}.json"
        begun = json.loads(path.read_text("utf-8")) if identity and path.is_file() else {}
        resumed = begun.get("asked") == asked
        # Parts of one plan may run on different machines, but must share one precision.
        alike = FP32 if self.settings.layer is not None else None
        dataset = data.evaluation_dataset(data.check_evaluation(self.settings.evaluation))
        predicted = forecast(
            describe(model),
            plan,
            loader,
            sum(len(spec.positions) * max(dataset.lengths[at] for at in spec.positions) for spec in loader.sampler),
            min(len(dataset), self.settings.max_examples or len(dataset)),
            data.task.metrics[0],
            self.settings.draws if plan.mode == "resample" else 1,
            why_not(data.task, plan, describe(model)),
            trainer.precision_plugin.forward_context,
            begun["arithmetic"]["precision"] if resumed else self.settings.precision or alike,
            bool(begun["arithmetic"].get("onednn")) if resumed else None,
        )
        if resumed:
            decision = Decision(begun["kind"], begun["examples"], Arithmetic(**begun["arithmetic"]))
        else:
            budget = None if self.settings.budget is None else seconds_of(self.settings.budget)
            decision = predicted.decide(wish, budget)
            if identity and trainer.is_global_zero:
                self.run.write_json(path, {"asked": asked, **asdict(decision)})
        seconds = predicted.nominal.of(decision.kind)
        if self.limit is not None and self.settings.budget is None and seconds > self.limit:
            _log.info(
                f"Not disabling heads: {len(plan.variants):,} variants take about {duration(seconds)}; run python analyze.py "
                f"checkpoint={self.run.folder} analysis=disable, with ablation.budget=10min for an answer in that time."
            )
            return None
        _log.info(predicted.in_words(decision, wish))
        return decision

    def _keep(self, trainer: pl.Trainer, module: SequenceClassifier, outcomes: Outcomes) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        step, stage = current_step(trainer, module), stage_of(trainer)
        identity = {
            "run": self.run.name,
            "model": self.run.model,
            "task": self.run.task,
            "init": self.run.init,
            "stage": stage,
            "step": step,
            "evaluation": data.check_evaluation(self.settings.evaluation),
        }
        looks = None if self._looked is None else self._looked.by_count()
        rows = judged_rows(outcomes, data.task, identity, looks=looks, **self.settings.judging())
        self.run.folder.mkdir(parents=True, exist_ok=True)
        table = self.run.ablation_table().append(AblationTable.from_rows(rows))
        table.write(self.run.ablation_path)
        self.run.add_checks(selection_checks(outcomes, data.task, rows, self.settings.seed))
        if self._screened is not None:
            self.run.add_checks({f"{SWEEP}_{self.settings.mode}": asdict(self._screened)})
        looked = {} if self._looked is None else asdict(self._looked)
        self.run.add_checks(
            {f"{LOOKS}_{self.settings.mode}": looked, f"{SAMPLE}_{self.settings.mode}": self._sample(data, outcomes)}
        )
        outcomes.write(self.run.folder / "ablation" / f"{stage}-{step:08d}-{self.settings.mode}.safetensors", data.task)
        if self._parts is not None:
            self._parts.clear()
        grids = judged_grids(outcomes.plan, rows)
        self.run.declare(Disabling(tuple(column for grid in grids for column in grid.described)).declaration())
        self.run.add(*(self.run.rows(grid, stage, step) for grid in grids))
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                for grid in grids:
                    tracking.define_axis(logger.experiment, grid.measure)
                    tracking.log_grid(logger.experiment, grid, step, title=Disabling.title, effects=Disabling.effects)

    def _sample(self, data: TaskData, outcomes: Outcomes) -> dict[str, Any]:
        """Which part of the examples was swept, and the budget if that was why; empty if all were."""
        whole = len(data.evaluation_dataset(data.check_evaluation(self.settings.evaluation)))
        count = len(outcomes.index_N)
        if count == whole:
            return {}
        budget = self.settings.budget if count < (self.settings.max_examples or whole) else None
        return {"examples": count, "of": whole, "budget": budget}

    def variants(self, encoder: Encoder) -> list[Variant]:
        """The variants of a model, without groups of similar heads."""
        layers, heads = encoder.num_layers, encoder.num_heads
        variants: list[Variant] = []
        for plan in self.plans:
            if plan == "heads":
                variants += every_head(layers, heads, self.only_layers)
            elif plan == "layers":
                variants += every_layer(layers, heads, self.only_layers)
            elif plan == "all_but_one":
                variants += all_but_one(layers, heads, self.only_layers)
            elif plan == "groups":
                together = (
                    []
                    if self.settings.layers is None
                    else [[[at, h] for at in self.settings.layers for h in range(heads)]]
                )
                variants += groups([*self.groups, *together, *self.file_groups])
            elif plan == "cumulative":
                assert self.settings.ranking is not None
                variants += cumulative(self.settings.ranking)
            elif plan == "random":
                variants += random_groups(
                    layers, heads, self.settings.group_size, self.settings.group_count, self.settings.seed
                )
        return variants

    def _similar(self, trainer: pl.Trainer, data: TaskData, encoder: Encoder) -> list[Variant]:
        loader = data.evaluation_loader(
            data.check_evaluation(self.settings.evaluation), max_examples=self.settings.similarity_examples
        )
        with progress_over(len(loader), "comparing heads", visible=shows_progress(trainer)) as advance:
            distance_HH = head_distances(
                encoder.model, loader, context=trainer.precision_plugin.forward_context, progress=lambda: advance(1)
            )
        similar = similar_groups(distance_HH, encoder.num_heads, self.settings.group_size)
        if not similar:
            raise UserError(
                "No two heads have similar maps, so there is no group to disable; give groups with ablation.heads."
            )
        return with_controls(similar, encoder.num_heads, self.settings.group_count, self.settings.seed)

    def _replacing(self) -> list[int]:
        """The settings that the replacements of the mode depend on."""
        names = {"resample": ["draws", "seed"], "optimal": ["optimal_steps", "seed"], "mean": []}
        if self.settings.mode not in names:
            return []
        return [getattr(self.settings, name) for name in ["reference_examples", *names[self.settings.mode]]]

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validations = state_dict["validations"]

    @property
    def state_key(self) -> str:
        return self._generate_state_key(plans=self.plans, mode=self.settings.mode, evaluation=self.settings.evaluation)


def _unique(variants: Sequence[Variant]) -> list[Variant]:
    return list({variant.name: variant for variant in variants}.values())
