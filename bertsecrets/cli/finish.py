"""The trainer of a run, and the end of every run: scores, predictions, figures, report, W&B and a printed summary."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger, WandbLogger
from rich.console import Console
from torch import Tensor

from bertsecrets.cli.build import build_trainer, make_all
from bertsecrets.cli.last_checkpoint import AtomicCheckpointIO, RunGuard
from bertsecrets.cli.quiet import in_job
from bertsecrets.cli.settings import RunSettings
from bertsecrets.cli.training_progress import EpochLines, TrainingProgress
from bertsecrets.data.classes import labels_setting
from bertsecrets.data.module import TaskData
from bertsecrets.data.task import Task
from bertsecrets.models.checkpoint import OUTPUTS
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.metrics import other_classes, set_scores, set_scores_of_statistics
from bertsecrets.models.spec import BEST, FINAL
from bertsecrets.present import wandb as tracking
from bertsecrets.present.console import print_summary
from bertsecrets.present.disabling import named_scalars
from bertsecrets.present.wandb import artifact_name
from bertsecrets.reporting.run_report import RunReport, report_run
from bertsecrets.results.disabled import named_rows, objective
from bertsecrets.results.files import write_parquet
from bertsecrets.results.progress import redraws
from bertsecrets.results.rows import FINDINGS
from bertsecrets.results.run import CONFIG_COPY, PREDICTIONS, Run
from bertsecrets.results.scores import RunScores, SetScores
from bertsecrets.sweeps.job_processes import watched

_log = logging.getLogger(__name__)


@contextmanager
def open_trainer(settings: RunSettings, run: Run, callbacks: Sequence[pl.Callback]) -> Iterator[pl.Trainer]:
    """Build the trainer of a run; leaving the block ends its loggers, and losing one process ends the others.

    Raises:
        UserError: If a setting does not exist or this machine cannot satisfy it.
    """
    loggers: list[Logger] = make_all("logger", settings.loggers, run=run, config=settings.config)
    # A sweep prints one line for each job.
    shown = settings.keys.progress and not in_job()
    progress = TrainingProgress() if redraws() else EpochLines()
    succeeded = False
    try:
        with watched(run.folder) as processes:
            yield build_trainer(
                settings,
                callbacks=[RunGuard(processes), *callbacks, *([progress] if shown else [])],
                logger=loggers or False,
                default_root_dir=str(run.folder),
                enable_progress_bar=shown,
                plugins=AtomicCheckpointIO(),
            )
        succeeded = True
    finally:
        # The next job in this process starts its own.
        for logger in loggers:
            logger.finalize("success" if succeeded else "failed")
        # It is imported if a logger of this process started a run.
        wandb = sys.modules.get("wandb")
        if wandb is not None and wandb.run is not None:
            wandb.finish(exit_code=0 if succeeded else 1)


def finish(
    run: Run,
    module: SequenceClassifier,
    data: TaskData,
    trainer: pl.Trainer,
    settings: RunSettings,
    *,
    seconds: float,
) -> None:
    """Write all results of a run, log them to W&B and print the summary; only the first process does so.

    Args:
        run: The run to write to.
        module: The model with the scores and predictions of its last validation.
        data: The task's data, for the constant baselines: the majority class or the mean score.
        trainer: The trainer; its loggers receive tables and summary.
        settings: The settings of the run.
        seconds: Duration of the run so far.
    """
    if not run.writes:
        return
    scores = collect_scores(module, data, seconds)
    if data.task.is_labelled:
        # One row per example, so that later tests can be paired by example.
        (run.folder / PREDICTIONS).mkdir(exist_ok=True)
        for name in module.evaluation_names:
            index_N, logits_NC, label_N = module.answers[name]
            columns = {"index": index_N.numpy(), "label": label_N.double().numpy()}
            statistics = data.task.head.statistics
            names = statistics or [f"logit_{c}" for c in range(logits_NC.shape[1])]
            columns |= {column: logits_NC[:, c].numpy() for c, column in enumerate(names)}
            write_parquet(run.folder / PREDICTIONS / f"{name}.parquet", pa.table(columns))
    run.write_json(run.scores_path, scores.as_dict())
    summary = report_run(run, settings.report.heads, settings.report.figures)
    summary.write(run)
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            _track(logger, run, summary)
    if in_job():
        return
    print_summary(
        Console(),
        scores.lines(),
        summary.highlights,
        run.report_path,
        findings=summary.printed,
        steps=summary.report.steps[:1],
    )


def collect_scores(module: SequenceClassifier, data: TaskData, seconds: float) -> RunScores:
    """The scores of the last validation and of the best constant prediction.

    For a task without labels, only the sets and their sizes.
    """
    step = int(module.record.get("step", module.trainer.global_step))
    if not data.task.is_labelled:
        sizes = {name: len(data.examples(split)) for name, split in data.evaluation.items()}
        return RunScores(
            {name: SetScores(size, {}, {}) for name, size in sizes.items()}, "", step, seconds, notes=data.notes
        )
    sets: dict[str, SetScores] = {}
    notes = list(data.notes)
    head = data.task.head
    if head.statistics:
        answer = ""
        for name in module.evaluation_names:
            index_N, answer_NF, _ = module.answers[name]
            # As they were evaluated: a sentence may be several windows, and windows may have one answer together.
            example_of = {one.index: one for one in data.evaluation_dataset(name).examples}
            examples = [example_of[index] for index in index_N.tolist()]
            of_name, baseline_NF = head.baseline([one.label for one in examples])
            answer = answer or of_name
            groups = [one.group for one in examples if one.group is not None]
            units = groups if len(groups) == len(examples) else None
            scores = set_scores_of_statistics(answer_NF, baseline_NF, data.task, units)
            sets[name] = replace(scores, model=module.scores[name])
        return RunScores(sets, answer, step, seconds, tuple(notes))
    constant = data.constant_prediction()
    for name in module.evaluation_names:
        label_N = data.labels(data.evaluation[name])
        _, logits_NC, gold_N = module.answers[name]
        notes += _misnamed(module, data.task, head.predictions(logits_NC), gold_N)
        scores = set_scores(logits_NC, gold_N.to(label_N.dtype), data.task, constant)
        # With the loss.
        sets[name] = replace(scores, model=module.scores[name])
    answer = f"{constant:.2f}" if data.task.is_regression else data.task.labels[int(constant)]
    return RunScores(sets, answer, step, seconds, tuple(notes))


def _misnamed(module: SequenceClassifier, task: Task, prediction_N: Tensor, label_N: Tensor) -> list[str]:
    """A warning, also logged, if a third-party model's outputs seem to be in another class order."""
    outputs = module.record.get(OUTPUTS)
    other = None if outputs is None else other_classes(prediction_N, label_N, task.labels, outputs)
    if other is None:
        return []
    note = f"{other.sentence}; if these are its classes, set {labels_setting(other.outputs)}."
    _log.warning(note)
    return [note]


def _track(logger: WandbLogger, run: Run, summary: RunReport) -> None:
    experiment = logger.experiment
    tracking.log_table(experiment, run.table())
    scores = {
        f"{prefix}/{name}/{metric}": value
        for name, scores in summary.scores.sets.items()
        for prefix, values in (("final", scores.model), ("constant", scores.constant))
        for metric, value in values.items()
    }
    values = {
        "answer": summary.report.title,
        "objective": objective(run, run.config().get("objective")),
        "learned": summary.scores.learned,
        **scores,
        **named_scalars(named_rows(run)),
        **summary.scalars,
        "seconds": summary.scores.seconds,
    }
    tracking.log_summary(experiment, values)
    tracking.log_curves(experiment, summary.curves)
    tracking.log_figures(experiment, summary.report.figures)
    if run.ablation_path.is_file():
        tracking.log_ablation(experiment, run.ablation_table())
    if experiment.settings.mode == "disabled":
        return
    import wandb

    artifact = wandb.Artifact(artifact_name(str(logger.version)), type="bertsecrets-run")
    weights = (run.checkpoints / BEST, run.checkpoints / FINAL)
    for path in (
        run.heads_path,
        run.ablation_path,
        run.report_path,
        run.scores_path,
        run.folder / CONFIG_COPY,
        *sorted((run.folder / FINDINGS).glob("*.parquet")),
        *weights,
    ):
        if path.is_file():
            # These files no longer change, so W&B need not copy them first.
            artifact.add_file(str(path), str(path.relative_to(run.folder)), policy="immutable")
    experiment.log_artifact(artifact)
    source = experiment.config.get("source_artifact")
    if source is not None and not experiment.offline:
        try:
            experiment.use_artifact(source)
        except wandb.errors.CommError as error:
            _log.warning(
                f"W&B does not know the artifact '{source}' of the fine-tuning run ({error}); sync that run first."
            )
