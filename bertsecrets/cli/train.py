"""Fine-tune a model and record what its attention heads do."""

import logging
import re
import time
from functools import partial
from pathlib import Path

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from bertsecrets.cli.build import (
    begin,
    check_model,
    check_trainer,
    make_callbacks,
    make_watcher,
    run_folder,
)
from bertsecrets.cli.export import check_save, save_model
from bertsecrets.cli.finish import finish, open_trainer
from bertsecrets.cli.last_checkpoint import LastCheckpoint
from bertsecrets.cli.rows import record_rows
from bertsecrets.cli.settings import TrainSettings, read_train
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources.base import CHOOSING
from bertsecrets.errors import UserError
from bertsecrets.models.checkpoint import check_resumable, read_record
from bertsecrets.models.classifier import RECORD, SequenceClassifier
from bertsecrets.models.loading import load_masked_lm, load_model
from bertsecrets.models.origin import INITIAL_WEIGHTS, weights_digest
from bertsecrets.models.spec import BEST, FINAL, LAST, RANDOM_INIT
from bertsecrets.pages.model_card import VERSIONS, versions
from bertsecrets.results.files import displayed, folder_write
from bertsecrets.results.run import Run, is_first_process, plain
from bertsecrets.sweeps.run_folder import exclusive_run

_log = logging.getLogger(__name__)


def train(config: DictConfig) -> dict[str, dict[str, float]]:
    """Run one experiment in Hydra's output folder; return the scores of every evaluation set.

    Raises:
        UserError: If a setting or the data are wrong; raised before the model is loaded where possible.
    """
    folder = run_folder()
    settings = read_train(plain(config))
    check_trainer(settings)
    if settings.keys.save is not None and is_first_process():
        check_save(settings.keys.save)
    with exclusive_run(config, folder):
        return _train(settings, folder)


def _train(settings: TrainSettings, folder: Path) -> dict[str, dict[str, float]]:
    started = time.monotonic()
    keys, task, spec = settings.keys, settings.task, settings.model
    if is_first_process():
        _log.info(f"Fine-tuning {spec.name} on {task.name} in {displayed(folder)}")
    chooses = settings.checkpoint.report == "best"
    tokenizer, data = begin(settings, settings.checkpoint.choosing if chooses else None)
    model = load_model(spec, task, keys.init, keys.seed)
    check_model(model, settings.training["max_length"])

    run = Run(folder, keys.name, spec.name, task.name, keys.init, is_first_process(), keys.seed)
    record = {
        "name": keys.name,
        "model": spec.model_dump(),
        "init": keys.init,
        "seed": keys.seed,
        INITIAL_WEIGHTS: weights_digest(model),
        VERSIONS: versions(),
    }
    last_path = run.checkpoints / LAST
    resume_from = last_path if keys.resume is not None and last_path.exists() else None
    if resume_from is not None:
        check_resumable(resume_from, record)
    record_rows(data, folder)
    if run.writes:
        run.folder.mkdir(parents=True, exist_ok=True)
        with folder_write(run.folder / "tokenizer"):
            tokenizer.save_pretrained(run.folder / "tokenizer")
    module = SequenceClassifier(
        model, task, settings.optimizer, data.evaluation_names, record, seed=keys.seed, compile_model=keys.compile
    )
    module.validated_after_training = True
    untrained = partial(load_model, spec, task, RANDOM_INIT, keys.seed)
    last = LastCheckpoint(last_path, settings.checkpoint.every_n_steps)
    callbacks = [
        *make_watcher(
            settings,
            run=run,
            sample=keys.validation_examples,
            random=untrained,
            masked_lm=partial(load_masked_lm, spec, keys.init),
        ),
        *make_callbacks(settings.callbacks, run=run, **settings.offered),
        last,
    ]
    if chooses:
        best_weights = LaterAmongEquals(
            dirpath=run.checkpoints,
            filename=Path(BEST).stem,
            # Select on the validation rows, by the task's first metric.
            monitor=f"{CHOOSING}/{task.metrics[0]}",
            mode="max",
            save_weights_only=True,
            enable_version_counter=False,
            auto_insert_metric_name=False,
        )
        callbacks.insert(-1, best_weights)
    with open_trainer(settings, run, callbacks) as trainer:
        _fit(trainer, module, data, resume_from)
        if not chooses:
            trainer.save_checkpoint(run.checkpoints / FINAL, weights_only=True)
        last.finish(trainer)
        # Scores, measures and disabling on one page must use the same weights.
        best = run.checkpoints / BEST
        selected = chooses and best.is_file()
        module.record["step"] = int(read_record(best)[RECORD]["step"]) if selected else trainer.global_step
        module.is_scored = module.scored_step == module.record["step"]
        trainer.validate(
            module, datamodule=data, ckpt_path=str(best) if selected else None, verbose=False, weights_only=True
        )
        finish(run, module, data, trainer, settings, seconds=time.monotonic() - started)
    if settings.keys.save is not None and run.writes:
        save_model(settings, settings.keys.save, run)
    return module.scores


def _fit(trainer: pl.Trainer, module: SequenceClassifier, data: TaskData, resume_from: Path | None) -> None:
    try:
        # Nothing in a checkpoint is unpickled.
        trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
    except ValueError as error:
        # Only Lightning knows the number of batches, which depends on limits, epochs and processes.
        counts = re.search(r"`val_check_interval` \((\d+)\) must be less than or equal to .* \((\d+)\)", str(error))
        if counts is None:
            raise
        raise UserError(
            f"trainer.val_check_interval is {counts.group(1)}, but an epoch has {counts.group(2)} batches; set at "
            f"most {counts.group(2)}, or add trainer.check_val_every_n_epoch=null to count batches across epochs."
        ) from error


class LaterAmongEquals(ModelCheckpoint):
    """Keep the best checkpoint; among ties, the latest."""

    def check_monitor_top_k(self, trainer: pl.Trainer, current: Tensor | None = None) -> bool:
        if current is not None and self.best_model_score is not None:
            # An undefined score counts as the lowest, as in Lightning.
            score = -torch.inf if bool(current.isnan()) else current
            if bool(self.best_model_score == score):
                return True
        return super().check_monitor_top_k(trainer, current)
