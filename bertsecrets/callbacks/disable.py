"""Disables heads and layers at validation time, and judges the effect."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import WandbLogger
from torch import Tensor, nn

from bertsecrets.ablation.judging import judged_grids, judged_rows, selection_checks
from bertsecrets.ablation.outcomes import Outcomes, Parts, fingerprint
from bertsecrets.ablation.plan import (
    Plan,
    Variant,
    all_but_one,
    cumulative,
    every_head,
    every_layer,
    groups,
    random_groups,
    read_groups,
)
from bertsecrets.ablation.similar import similar_groups, with_controls
from bertsecrets.ablation.similarity import head_distances
from bertsecrets.ablation.sweep import sweep
from bertsecrets.attention.means import mean_head_outputs
from bertsecrets.callbacks.stage import current_step, is_last_validation, shows_progress, stage_of
from bertsecrets.data.module import TaskData
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
    """Disables heads and layers of the model at validation time and says which changes are more than noise.

    Nothing of the training is touched: no random number is drawn, the model returns to its mode, and weights after a
    run with it equal those of a run without. Under any number of processes the results are those of one.

    Args:
        run: Where results go.
        plans: What to disable, of ``PLANS``: each head, each layer, every head of a layer but one, the groups below,
            the first heads of a ranking, random groups, or groups of heads with similar maps (each head alone, each
            group, each group but one, and random groups of the same size).
        mode: ``uniform``, ``zero`` or ``mean``.
        layer: Only this layer, or these layers, of plans ``heads``, ``layers`` and ``all_but_one``; None for all.
        heads: One group, ``[[3, 1], [7, 10]]``, or a list of such groups, for plan ``groups``.
        layers: Layers that are disabled together, as one more group of plan ``groups``.
        plan_file: YAML or JSON file with more groups.
        ranking: Heads in the order in which plan ``cumulative`` disables them.
        group_size, group_count: Of plan ``random``; the largest size and the number of controls of ``similar_groups``.
        similarity_examples: How many examples the similarity of maps is taken from.
        reference_examples: How many training examples the means of mode ``mean`` are taken from.
        evaluation: Evaluation set; None for the task's first.
        max_examples: A random sample of this many of its examples; None for all.
        every_n_validations: Sweep at each n-th validation and at the last; 0: at the last validation alone.
        max_tokens: See :class:`bertsecrets.ablation.engine.Engine`.
        level: Of the confidence intervals.
        false_discovery_rate: Of what is called significant.
        resamples, permutations: Of bootstrap and permutation test.
        seed: Of these and of the random groups.

    Raises:
        UserError: If a setting names what does not exist, or the plan is empty.
    """

    def __init__(
        self,
        run: Run,
        plans: Sequence[str] = ("heads", "layers"),
        mode: str = "uniform",
        layer: int | Sequence[int] | None = None,
        heads: Sequence[Any] | None = None,
        layers: Sequence[int] | None = None,
        plan_file: str | None = None,
        ranking: Sequence[Sequence[int]] | None = None,
        group_size: int = 4,
        group_count: int = 20,
        similarity_examples: int = 64,
        reference_examples: int = 512,
        evaluation: str | None = None,
        max_examples: int | None = None,
        every_n_validations: int = 0,
        max_tokens: int | None = None,
        level: float = 0.95,
        false_discovery_rate: float = 0.05,
        resamples: int = 2000,
        permutations: int = 9999,
        seed: int = 0,
    ) -> None:
        for plan in plans:
            if plan not in PLANS:
                raise UserError(f"Unknown disabling plan '{plan}'; {choices(plan, PLANS)}.")
        if not plans:
            raise UserError(f"No disabling plan is named; choose from {', '.join(PLANS)}.")
        if every_n_validations < 0:
            raise UserError(f"every_n_validations is {every_n_validations}; expected 0 (at the end) or more.")
        if max_examples is not None and max_examples < 1:
            raise UserError(f"max_examples is {max_examples}; expected 1 or more, or null for all.")
        self.run = run
        self.plans = tuple(plans)
        self.mode = mode
        self.only_layers = [layer] if isinstance(layer, int) else None if layer is None else list(layer)
        self.groups = _as_groups(heads)
        self.together = None if layers is None else list(layers)
        self.file_groups = [] if plan_file is None else read_groups(Path(plan_file))
        self.ranking = ranking
        self.group_size, self.group_count = group_size, group_count
        self.similarity_examples, self.reference_examples = similarity_examples, reference_examples
        self.evaluation = evaluation
        self.max_examples = max_examples
        self.every_n_validations = every_n_validations
        self.max_tokens = max_tokens
        self.judging = {
            "level": level,
            "false_discovery_rate": false_discovery_rate,
            "resamples": resamples,
            "permutations": permutations,
            "seed": seed,
        }
        self.seed = seed
        self.seconds = 0.0
        """How long the last sweep took, verdicts included."""
        self._validations = 0
        self._parts: Parts | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        # What does not fit the model or the task is known now, not after hours of training.
        data = getattr(trainer, "datamodule", None)
        if isinstance(data, TaskData):
            self._name(data)
            if not data.task.is_labelled:
                raise UserError(
                    f"Task '{data.task.name}' has no labels, so that disabling a head can do it no harm; choose a "
                    "labelled task."
                )
        encoder = describe(pl_module.model)
        variants = self.variants(encoder)
        if variants or "similar_groups" not in self.plans:
            Plan(self.mode, encoder.num_layers, encoder.num_heads, tuple(variants))

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
        if trainer.is_global_zero:
            self._keep(trainer, pl_module, outcomes)
        self.seconds = time.monotonic() - started

    def take(self, trainer: pl.Trainer, model: nn.Module) -> Outcomes:
        """The sweep over the evaluation set, on all processes."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        encoder = describe(model)
        context = trainer.precision_plugin.forward_context
        variants = self.variants(encoder)
        if "similar_groups" in self.plans:
            variants = _unique([*variants, *self._similar(trainer, data, encoder)])
        plan = Plan(self.mode, encoder.num_layers, encoder.num_heads, tuple(variants))
        loader = data.evaluation_loader(self._name(data), max_examples=self.max_examples)
        self._parts = None
        if stage_of(trainer) == CHECKPOINT:
            self._parts = Parts(
                self.run.folder / "ablation" / "parts", fingerprint(model, plan, [trainer.precision, data.task.name])
            )
        total = sum(len(spec.positions) for spec in loader.sampler) * len(plan.variants)
        with progress_over(total, "disabling", visible=shows_progress(trainer), unit="variant·example") as advance:
            outcomes = sweep(
                model,
                plan,
                loader,
                means_LHd=self._means(trainer, data, model, context),
                max_tokens=self.max_tokens,
                context=context,
                parts=self._parts,
                progress=advance,
            )
        if self._parts is not None and self._parts.found:
            _log.info(f"Went on with an interrupted sweep: {self._parts.found} batches were finished before.")
        return outcomes

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
            "evaluation": self._name(data),
        }
        rows = judged_rows(outcomes, data.task, identity, **self.judging)
        self.run.folder.mkdir(parents=True, exist_ok=True)
        table = self.run.ablation_table().append(AblationTable.from_rows(rows))
        table.write(self.run.ablation_path)
        self.run.add_checks(selection_checks(outcomes, data.task, self.seed))
        outcomes.write(self.run.folder / "ablation" / f"{stage}-{step:08d}-{self.mode}.safetensors", data.task)
        if self._parts is not None:
            self._parts.clear()
        grids = judged_grids(outcomes.plan, rows)
        self.run.add(*(self.run.rows(grid, stage, step) for grid in grids))
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                for grid in grids:
                    tracking.define_axis(logger.experiment, grid.measure)
                    tracking.log_grid(logger.experiment, grid, step=step)

    def variants(self, encoder: Encoder) -> list[Variant]:
        """What is disabled in a model, groups of similar heads left out."""
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
                together = [] if self.together is None else [[[at, h] for at in self.together for h in range(heads)]]
                named = [*self.groups, *together, *self.file_groups]
                if not named:
                    raise UserError(
                        "No group of heads is named; give ablation.heads=[[3,1],[7,10]], ablation.layers=[0,11] or "
                        "ablation.plan_file=<file>, or take analysis=redundancy for groups of similar heads."
                    )
                variants += groups(named)
            elif plan == "cumulative":
                if self.ranking is None:
                    raise UserError("Plan 'cumulative' needs ablation.ranking, heads in the order of their disabling.")
                variants += cumulative(self.ranking)
            elif plan == "random":
                variants += random_groups(layers, heads, self.group_size, self.group_count, self.seed)
        return variants

    def _similar(self, trainer: pl.Trainer, data: TaskData, encoder: Encoder) -> list[Variant]:
        loader = data.evaluation_loader(self._name(data), max_examples=self.similarity_examples)
        with progress_over(len(loader), "comparing heads", visible=shows_progress(trainer)) as advance:
            distance_HH = head_distances(
                encoder.model, loader, context=trainer.precision_plugin.forward_context, progress=lambda: advance(1)
            )
        found = similar_groups(distance_HH, encoder.num_heads, self.group_size)
        if not found:
            raise UserError(
                "No two heads have similar maps, so that there is no group to disable; name groups yourself."
            )
        return with_controls(found, encoder.num_layers, encoder.num_heads, self.group_count, self.seed)

    def _means(
        self, trainer: pl.Trainer, data: TaskData, model: nn.Module, context: Callable[[], Any]
    ) -> Tensor | None:
        if self.mode != "mean":
            return None
        network = describe(model).model
        training = network.training
        network.eval()
        try:
            batches = data.training_sample(self.reference_examples)
            with context():
                device = next(network.parameters()).device
                return mean_head_outputs(network, (batch.to(device).inputs() for batch in batches))
        finally:
            network.train(training)

    def _name(self, data: TaskData) -> str:
        name = self.evaluation or data.evaluation_names[0]
        if name not in data.evaluation_names:
            raise UserError(
                f"Evaluation set '{name}' does not exist; task '{data.task.name}' has {', '.join(data.evaluation_names)}."
            )
        return name

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validations = state_dict["validations"]

    @property
    def state_key(self) -> str:
        return self._generate_state_key(plans=self.plans, mode=self.mode, evaluation=self.evaluation)


def _as_groups(heads: Sequence[Any] | None) -> list[Any]:
    """One group or several, as several."""
    if heads is None:
        return []
    chosen = list(heads)
    one = bool(chosen) and all(isinstance(place, Sequence) and all(type(n) is int for n in place) for place in chosen)
    return [chosen] if one else chosen


def _unique(variants: Sequence[Variant]) -> list[Variant]:
    return list({variant.name: variant for variant in variants}.values())
