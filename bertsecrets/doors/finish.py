"""What every run does at its end: scores, predictions, figures, report, Weights & Biases, and a summary to read."""

import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytorch_lightning as pl
import torch
import wandb
from matplotlib.figure import Figure
from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger, WandbLogger
from rich.console import Console

from bertsecrets.data.module import TaskData
from bertsecrets.doors.ablation_summary import ablation_scalars
from bertsecrets.doors.loggers import artifact_name
from bertsecrets.doors.scores import RunScores, SetScores
from bertsecrets.doors.summary import summarise
from bertsecrets.doors.unit import CONFIG_COPY
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.locate import BEST
from bertsecrets.models.metrics import Predictions, score
from bertsecrets.results import wandb as tracking
from bertsecrets.results.console import print_summary
from bertsecrets.results.figures.saving import save_figure
from bertsecrets.results.files import atomic_write
from bertsecrets.results.report.page import write_report
from bertsecrets.results.run import Run

_log = logging.getLogger(__name__)


def finish(
    run: Run, module: SequenceClassifier, data: TaskData, trainer: pl.Trainer, config: DictConfig, seconds: float
) -> None:
    """Writes everything that a run leaves behind; the first process does it alone.

    Args:
        run: Where it goes.
        module: Its last validation's scores and predictions are those of the run.
        data: Gives the constant baselines.
        trainer: Its loggers receive tables and summary.
        config: The run's configuration.
        seconds: How long the run took so far.
    """
    if not run.writes:
        return
    scores = collect_scores(module, data, seconds)
    run.write_json(run.scores_path, scores.as_dict())
    if data.task.is_labelled:
        _write_predictions(run, module)
    summary = summarise(run, scores, heads=config.report.heads, config=config)
    for name, figure in summary.figures.items():
        save_figure(figure, run.figures / f"{name}.png")
        save_figure(figure, run.figures / f"{name}.svg")
    write_report(run.report_path, summary.report)
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            pictures = {name: each for name, each in summary.figures.items() if "ablation" in name}
            _track(logger, run, scores, pictures)
    print_summary(Console(), scores.lines(), summary.heads, run.report_path)


def collect_scores(module: SequenceClassifier, data: TaskData, seconds: float) -> RunScores:
    """The scores of the last validation beside those of a constant predictor learned from the training set.

    A task without labels has sets and their sizes alone.
    """
    step = module.trainer.global_step or int(module.record.get("step", 0))
    if not data.task.is_labelled:
        sizes = {name: len(data.examples(split)) for name, split in data.evaluation.items()}
        return RunScores({name: SetScores(size, {}, {}) for name, size in sizes.items()}, "", step, seconds)
    constant = data.constant_prediction()
    sets = {}
    for name in module.evaluation_names:
        label_N = data.labels(data.evaluation[name])
        answers_N = torch.full_like(label_N, constant)
        sets[name] = SetScores(
            count=len(label_N), model=module.scores[name], constant=score(answers_N, label_N, data.task)
        )
    answer = f"{constant:.2f}" if data.task.is_regression else data.task.labels[int(constant)]
    return RunScores(sets=sets, constant_answer=answer, step=step, seconds=seconds)


def _write_predictions(run: Run, module: SequenceClassifier) -> None:
    """One row for each example: later tests are paired over examples."""
    folder = run.folder / "predictions"
    folder.mkdir(exist_ok=True)
    for name in module.evaluation_names:
        predictions = module.predictions[name]
        assert isinstance(predictions, Predictions)
        index_N, logits_NC, label_N = predictions.compute()
        columns = {"index": index_N.numpy(), "label": label_N.double().numpy()}
        columns |= {f"logit_{c}": logits_NC[:, c].numpy() for c in range(logits_NC.shape[1])}
        with atomic_write(folder / f"{name}.parquet") as temporary:
            pq.write_table(pa.table(columns), temporary, compression="zstd")


def _track(logger: WandbLogger, run: Run, scores: RunScores, ablation_figures: Mapping[str, Figure]) -> None:
    experiment = logger.experiment
    tracking.log_table(experiment, run.table())
    summary = {
        f"final/{name}/{metric}": value for name, each in scores.sets.items() for metric, value in each.model.items()
    }
    summary |= {
        f"constant/{name}/{metric}": value
        for name, each in scores.sets.items()
        for metric, value in each.constant.items()
    }
    summary |= ablation_scalars(run.ablation_table())
    tracking.log_summary(experiment, {**summary, "seconds": scores.seconds})
    if run.ablation_path.is_file():
        tracking.log_ablation(experiment, run.ablation_table(), ablation_figures)
    if experiment.settings.mode == "disabled":
        return
    artifact = wandb.Artifact(artifact_name(str(logger.version)), type="bertsecrets-run")
    best = run.checkpoints / BEST
    for path in (run.heads_path, run.ablation_path, run.report_path, run.scores_path, run.folder / CONFIG_COPY, best):
        if path.is_file():
            # Nothing changes these files any more: W&B need not copy them first.
            artifact.add_file(str(path), policy="immutable")
    experiment.log_artifact(artifact)
    source = experiment.config.get("source_artifact")
    if source is not None and not experiment.offline:
        try:
            experiment.use_artifact(source)
        except wandb.errors.CommError as error:
            _log.warning(
                f"W&B does not know the artifact '{source}' of the fine-tuning run ({error}); sync that run first."
            )


def close_loggers(loggers: Sequence[Logger], succeeded: bool) -> None:
    """Ends every logger's run, so that the next job in this process begins one of its own."""
    for logger in loggers:
        logger.finalize("success" if succeeded else "failed")
    if wandb.run is not None:
        wandb.finish(exit_code=0 if succeeded else 1)
