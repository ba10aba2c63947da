"""Callbacks on heads for anybody's LightningModule: it holds a Hugging Face encoder, and that is all that is asked of
it.

They take any data loader, any logger and no data module of ours. What the encoder is called with in ``validation_step``
is recorded and replayed: training is not affected.

>>> callbacks = [MeasureHeads("entropy", "drift"), DisableHeads(), CaptureMaps(4), GradientFlow()]

Findings go to a run's folder, ``heads`` beside the logger's files, which ``python -m bertsecrets report`` makes a page
of, and ``compare`` compares with others.
"""

import importlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from pytorch_lightning.utilities.seed import isolate_rng
from torch import nn
from transformers import PreTrainedModel

from bertsecrets.ablation.forecast import duration
from bertsecrets.ablation.own_outcome import Group, OwnMetric, logits_and_labels
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.sweep import DisableAnalysis
from bertsecrets.analysis import Analysis, Context, Findings, find, record
from bertsecrets.callbacks.gradient_flow import GradientFlow as _GradientFlow
from bertsecrets.callbacks.own_module import OwnModule, write_identity
from bertsecrets.callbacks.run_analysis import LogsGrids, RunAnalysis
from bertsecrets.data.sources import TRAIN
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.analysis import MeasureAnalysis, Watched
from bertsecrets.measures.base import OF_LOSS
from bertsecrets.measures.capture import CaptureAnalysis
from bertsecrets.measures.shipped import MeasureMaker, makers
from bertsecrets.models.encoder import evaluating
from bertsecrets.present import wandb as tracking
from bertsecrets.results.files import displayed, in_command
from bertsecrets.results.run import CHECKPOINT, INITIAL, TRAINING, Run
from bertsecrets.results.scores import RunScores, SetScores
from bertsecrets.sweeps.run_folder import config_digest, mark_finished


def _other_callback() -> type:
    """The callback of the package ``lightning``, whose trainer takes no other; ``object`` where it is not installed."""
    try:
        # Releases that stole credentials run their code when they are imported.
        if metadata.version("lightning") not in ("2.6.2", "2.6.3"):
            return importlib.import_module("lightning.pytorch").Callback  # type: ignore[no-any-return]
    except (metadata.PackageNotFoundError, ImportError):
        pass
    return object


_OtherCallback: Any = _other_callback()


class AnalyseHeads(RunAnalysis, _OtherCallback):  # type: ignore[misc]
    """Run an analysis at every n-th validation, as it says, and at the end of training or of ``trainer.validate``.

    Args:
        analysis: The analysis, such as ``bertsecrets.ablation.shapley.ShapleyHeads()`` or one of your own.
        name: Tells apart callbacks of one training in its checkpoints; None for the name of the analysis's class.
        reference: The model before fine-tuning; None for the encoder as it is before the first step.
        own: Of :class:`~bertsecrets.callbacks.own_module.OwnModule`: ``folder``, ``encoder``, ``dataloader``,
            ``tokenizer``, ``outcome``, ``metric``, ``group``, ``classes``.

    Raises:
        UserError: If the module's encoder is not called in validation, or the analysis does not fit; raised after the
            sanity check of the trainer, before training.
    """

    def __init__(
        self, analysis: Analysis, *, name: str | None = None, reference: PreTrainedModel | None = None, **own: Any
    ) -> None:
        self.own = OwnModule(**own)
        name = f"{name or type(analysis).__name__} {self.own.path} {self.own.dataloader} {self.own.folder}"
        super().__init__(analysis, no_run(), name, reference)
        self._loaded: int | None = None
        self._validated, self._copied = False, False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage not in ("fit", "validate"):
            return
        self._started, self._loaded, self._validated = time.monotonic(), None, False
        self.run = self.own.begin(trainer, pl_module)
        if stage == "fit":
            # Of an earlier training; a checkpoint restores the number later.
            self._validations = 0
            self.reference = None if self._copied else self.reference
        needs_reference = self.analysis.needs_reference(self.own.bare(pl_module))
        if self.reference is None and needs_reference and stage == "fit":
            # Copied before a checkpoint is restored: a resumed training needs the same reference.
            self.reference, self._copied = self.own.untrained(trainer, pl_module), True

    def fresh(self) -> Analysis:
        """The analysis for a run: one that prepares for its examples is made anew."""
        return self.analysis

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Nothing is known of the examples before the sanity check.
        pass

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.own.recorder(pl_module).start(pl_module, self)

    @isolate_rng()
    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.own.recorder(pl_module).pause(pl_module)
        if trainer.sanity_checking:
            # What does not fit is reported now, not after hours of training.
            with evaluating(pl_module), torch.no_grad():
                context, *_ = self.examples(trainer, pl_module, last=False)
                analysis = self.fresh()
                analysis.check(context)
                analysis.check_on_device(context)
            return
        self._validations += 1
        self._validated = True
        last = trainer.state.fn != "fit"
        if self.analysis.is_due(self.own.bare(pl_module, validation=self._validations, last=last)):
            self.analyse(trainer, pl_module, last=last)

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.own.recorder(pl_module).clear()

    @isolate_rng()
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Which validation is the last one is known only now: a callback may have stopped the training.
        if self._validated:
            try:
                self.analyse(trainer, pl_module, last=True)
            except UserError as error:
                # The training is done, and must not be lost.
                rank_zero_warn(f"{type(self).__name__} has no numbers of the end of this training. {error}")
        else:
            rank_zero_warn(
                f"This training ended without a validation, so {type(self).__name__} has no numbers of its end; run "
                "trainer.validate with the callback."
            )

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._loaded = checkpoint.get("global_step")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.own.recorder(pl_module).pause(pl_module)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage in ("fit", "validate"):
            self.own.recorder(pl_module).clear()
            announce()

    def examples(
        self, trainer: pl.Trainer, module: pl.LightningModule, last: bool
    ) -> tuple[Context, dict[str, SetScores], str]:
        """What the analysis sees, the scores of its set and the majority baseline's answer."""
        references = {}
        if self.reference is not None:
            self.reference = trainer.precision_plugin.convert_module(self.reference).to(module.device).eval()
            references = {INITIAL: self.reference}
        makes = self.own.scored if self.reads_labels(module) else self.own.watched
        return makes(
            trainer,
            module,
            stage=CHECKPOINT if last else TRAINING,
            # Of a checkpoint that is validated, the trainer keeps the steps of its own training.
            step=trainer.global_step if trainer.state.fn == "fit" or self._loaded is None else self._loaded,
            validation=self._validations,
            last=last,
            sample=None if last else self.sample,
            references=references,
        )

    def reads_labels(self, module: pl.LightningModule) -> bool:
        """Whether the analysis reads the examples' labels."""
        return bool(self.analysis.without_labels)

    def analyse(self, trainer: pl.Trainer, module: pl.LightningModule, last: bool) -> None:
        """Run the analysis on what the last validation recorded, and write what it finds."""
        with evaluating(module), torch.no_grad():
            context, scores, answer = self.examples(trainer, module, last)
            analysis = self.fresh()
            analysis.check(context)
            found = find(analysis, context)
        if not trainer.is_global_zero:
            return
        record(self.run, found, context.stage, context.step)
        for findings in found:
            log_findings(trainer.loggers, findings, context.step)
        if last:
            if isinstance(self.analysis, DisableAnalysis):
                experiments: list[Any] = [getattr(one, "experiment", None) for one in trainer.loggers if is_wandb(one)]
                for experiment in experiments:
                    tracking.log_ablation(experiment, self.run.ablation_table())
            seconds = time.monotonic() - self._started
            finish(self.run, module, context.task, RunScores(scores, answer, context.step, seconds, self.own.notes))


def no_run() -> Run:
    """In place of a run that begins with the trainer."""
    return Run(Path(), "", "", "", "", writes=False)


def finish(run: Run, module: nn.Module, task: Task | None, scores: RunScores) -> None:
    """Write what makes a folder that of a finished run: its scores, its task and the marker.

    Args:
        run: The run.
        module: The module.
        task: The task; None, or without metrics, where examples were not scored.
        scores: The scores; those of a set that was scored before stay where it is not scored now.
    """
    earlier = RunScores.read(run.scores_path) if run.scores_path.is_file() else replace(scores, sets={})
    if task is None or not task.metrics:
        sets, answer = {**scores.sets, **earlier.sets}, earlier.constant_answer
    elif earlier.step > scores.step:
        # A page is of the last step.
        scored = {name: of_set for name, of_set in earlier.sets.items() if of_set.model}
        sets, answer = {**earlier.sets, **scores.sets, **scored}, earlier.constant_answer or scores.constant_answer
    else:
        sets, answer = {**earlier.sets, **scores.sets}, scores.constant_answer
    if task is not None and task.metrics:
        write_identity(run, module, task.model_dump(mode="json", exclude_defaults=True))
    # A page is of some examples: those of the training where there are no others.
    others = {name: of_set for name, of_set in sets.items() if name != TRAIN} or {TRAIN: SetScores(0, {}, {})}
    step = max(earlier.step, scores.step)
    notes = tuple(dict.fromkeys((*earlier.notes, *scores.notes)))
    written = replace(scores, sets=others, constant_answer=answer, step=step, notes=notes)
    run.write_json(run.scores_path, written.as_dict())
    key = config_digest(run.config())
    mark_finished(run.folder, key, key, scores.seconds)
    _unannounced[run.folder] = None


_unannounced: dict[Path, None] = {}
"""Folders of findings that nothing was said of."""


def announce() -> None:
    """Print once what disabling found, where the findings of the callbacks are, and how to see them."""
    # Imported here because most trainings start long before there is anything to report.
    from bertsecrets.reporting.overview import DisabledHeads

    for folder in _unannounced:
        run = Run.open(folder)
        learned = RunScores.read(run.scores_path).learned
        disabled = None if learned is False else DisabledHeads.of(run)
        answer = "" if disabled is None else f"{disabled.title()} "
        rank_zero_info(
            f"{answer}Findings on heads: {displayed(folder)}. Make their page: python -m bertsecrets report "
            f"run={in_command(folder)}"
        )
    _unannounced.clear()


def log_findings(loggers: Iterable[Any], findings: Findings, step: int) -> None:
    """Log findings: scalars, and the lowest of effects, to any logger, and grids to W&B."""
    effects = findings.experiment.shown.effects
    for grid in findings.logged:
        scalars = dict(findings.scalars)
        if effects:
            scalars |= {
                f"{grid.measure}/{name}/lowest": grid.column(name).nan_to_num(1.0).min().item() for name in grid.columns
            }
        for logger in loggers:
            logger.log_metrics(scalars, step=step)
            if is_wandb(logger):
                tracking.log_grid(logger.experiment, grid, step, title=findings.experiment.title, effects=effects)
            elif isinstance(logger, LogsGrids):
                logger.log_grid(grid, step, findings.experiment)


def is_wandb(logger: Any) -> bool:
    """Whether a logger is Lightning's own of W&B, of either of its packages."""
    return type(logger).__name__ == "WandbLogger"


class MeasureHeads(AnalyseHeads):
    """Measure every head: ``MeasureHeads("entropy", "drift")``.

    Args:
        measures: Names of measures, or classes derived from ``Measure``.
        every_n_validations: At every n-th validation and at the end; 0: only at the end.
        validation_examples: Size of the random sample measured at validations before the end of training; None for all
            examples, as at the end.
        options: Of :class:`AnalyseHeads`: ``folder``, ``encoder``, ``tokenizer``, ``reference``, ...
    """

    def __init__(
        self,
        *measures: str | MeasureMaker,
        every_n_validations: int = 1,
        validation_examples: int | None = 200,
        **options: Any,
    ) -> None:
        if not measures:
            raise UserError("MeasureHeads has no measure; name at least one, e.g. MeasureHeads('entropy').")
        if validation_examples is not None and validation_examples < 1:
            raise UserError(f"validation_examples is {validation_examples}; expected at least 1, or None for all.")
        self.watched = [Watched(make, every_n_validations or None) for make in makers(measures)]
        name = " ".join(str(getattr(measure, "__name__", measure)) for measure in measures)
        super().__init__(self.fresh(), name=name, **options)
        self.sample = validation_examples

    def fresh(self) -> MeasureAnalysis:
        return MeasureAnalysis(self.watched)

    def reads_labels(self, module: pl.LightningModule) -> bool:
        measures = self.fresh().made(self.own.bare(module))
        return any(measure.needs & OF_LOSS for measure in measures)

    def examples(
        self, trainer: pl.Trainer, module: pl.LightningModule, last: bool
    ) -> tuple[Context, dict[str, SetScores], str]:
        context, scores, answer = super().examples(trainer, module, last)
        if context.outcome is not None:
            raise UserError(
                "Measures of gradients take the loss of a library model with a classification head, and this module "
                "answers in its own way; choose measures of attention, e.g. 'entropy'."
            )
        return context, scores, answer


class DisableHeads(AnalyseHeads):
    """Disable every head and layer in turn and judge the effects: ``DisableHeads(mode="zero")``.

    Where the module answers with its library model's logits, variants share passes; else each takes a pass of the
    module over the validation.

    Args:
        plans: What is disabled in turn: ``heads``, ``layers``, ``all_but_one``, ...
        outcome: From the module and a batch to a prediction and a gold label for each example; a prediction is a row of
            logits, a class or a score.
        metric: ``accuracy`` (the default of classes), ``f1``, ``macro_f1``, ``matthews``; ``pearson`` (the default of
            scores) or ``spearman``; or a function from the means of F statistics over examples ``[..., F]`` to scores
            ``[...]``, for which ``outcome`` returns the statistics of each example, ``[B, F]``.
        group: What names the group of each example, such as its review, whose examples are tested together: a key of
            the batch, a function of a batch, or a value for each ``index``; None for ``group`` in the batch, if any.
        classes: The names of the classes; None for those in ``config.id2label`` of the library model.
        every_n_validations: At every n-th validation and at the end; 0: only at the end.
        folder, encoder, dataloader, tokenizer: Of :class:`AnalyseHeads`.
        settings: Of :class:`~bertsecrets.ablation.settings.AblationSettings`: ``mode``, ``margin``, ``max_examples``...

    Raises:
        UserError: If the mode or a plan needs the inputs of single examples, and ``metric`` is a function of
            statistics; for other modules, this is known only when they are first called.
    """

    def __init__(
        self,
        plans: Sequence[str] = ("heads", "layers"),
        *,
        outcome: Any = logits_and_labels,
        metric: OwnMetric = None,
        group: Group | None = None,
        classes: Sequence[str] | None = None,
        every_n_validations: int = 0,
        folder: Any = None,
        encoder: str | None = None,
        dataloader: int = 0,
        tokenizer: Any = None,
        **settings: Any,
    ) -> None:
        analysis = DisableAnalysis(plans, AblationSettings.read("settings", settings), every_n_validations)
        if not isinstance(metric, str | None):
            analysis.check_outcome()
        own = {"folder": folder, "encoder": encoder, "dataloader": dataloader, "tokenizer": tokenizer}
        own |= {"group": group, "classes": classes}
        called = metric if isinstance(metric, str | None) else getattr(metric, "name", getattr(metric, "__name__", ""))
        name = f"{' '.join(plans)} {analysis.settings.mode} {called}"
        self._disable = analysis
        super().__init__(analysis, name=name, outcome=outcome, metric=metric, **own)

    def examples(
        self, trainer: pl.Trainer, module: pl.LightningModule, last: bool
    ) -> tuple[Context, dict[str, SetScores], str]:
        context, scores, answer = super().examples(trainer, module, last)
        if context.outcome is not None and not trainer.sanity_checking:
            variants = len(self._disable.variants(context.encoder))
            rank_zero_info(
                f"Disabling {variants:,} variants, each with a pass of the module over {len(context.split):,} "
                f"examples: about {duration(variants * self.own.seconds)}."
            )
        return context, scores, answer


class CaptureMaps(AnalyseHeads):
    """Keep all heads' maps of a few examples: ``CaptureMaps(4)``.

    Args:
        examples: The number of examples, spread evenly over the validation by length, or a list of their positions.
        every_n_validations: At every n-th validation and at the end; 0: only at the end.
        max_megabytes: Limit on the maps of one step, in units of 10^6 bytes.
        options: Of :class:`AnalyseHeads`.
    """

    def __init__(
        self,
        examples: int | Sequence[int] = 4,
        *,
        every_n_validations: int = 1,
        max_megabytes: float = 64,
        **options: Any,
    ) -> None:
        super().__init__(CaptureAnalysis(examples, None, max_megabytes, every_n_validations), **options)


class GradientFlow(_GradientFlow, _OtherCallback):  # type: ignore[misc]
    """Record gradient norms and update sizes of each layer and head during training.

    The Trainer of Hugging Face clips gradients first: norms are those after clipping, unless ``max_grad_norm=0``.

    Args:
        points: Approximate number of training steps to record, spread evenly, including the first; every 100th where
            the number of steps is not known.
        folder, encoder: Of :class:`AnalyseHeads`.
    """

    def __init__(self, points: int = 30, *, folder: str | Path | None = None, encoder: str | None = None) -> None:
        super().__init__(no_run(), points)
        self.own = OwnModule(folder, encoder)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            self._started = time.monotonic()
            self.run = self.own.begin(trainer, pl_module, validates=False)

    def holder(self, module: pl.LightningModule) -> nn.Module:
        return self.own.holder(module)

    def log_layers(self, trainer: pl.Trainer, grid: HeadGrid, step: int) -> None:
        if trainer.is_global_zero:
            log_findings(trainer.loggers, Findings(self, [grid]), step)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if trainer.is_global_zero:
            seconds = time.monotonic() - self._started
            finish(self.run, pl_module, None, RunScores({}, "", trainer.global_step, seconds))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        announce()
