"""Fine-tune a model and record what its attention heads do."""

import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from bertsecrets.attention import check_attention
from bertsecrets.cli.build import (
    check_length,
    make_callbacks,
    make_data,
    make_loggers,
    make_trainer,
    make_watcher,
    run_folder,
    trusted_classes,
)
from bertsecrets.cli.finish import closing, finish
from bertsecrets.cli.run_settings import resumed
from bertsecrets.cli.settings import TrainSettings, read_train
from bertsecrets.models.checkpoint import read_record
from bertsecrets.models.classifier import RECORD, SequenceClassifier
from bertsecrets.models.loading import load_model, load_tokenizer
from bertsecrets.models.spec import BEST, LAST, RANDOM_INIT
from bertsecrets.results.config_copy import plain, write_config
from bertsecrets.results.run import Run, is_first_process
from bertsecrets.sweeps.run_folder import exclusive_run

_log = logging.getLogger(__name__)


def train(config: DictConfig) -> dict[str, dict[str, float]]:
    """Run one experiment in Hydra's output folder; return the scores of every evaluation set.

    Raises:
        UserError: If a setting or the data are wrong; raised before the model is loaded where possible.
    """
    folder = run_folder()
    if config.resume is not None:
        config = resumed(config, folder)
    settings = read_train(plain(config))
    with exclusive_run(config, folder):
        return _train(config, settings, folder)


def _train(config: DictConfig, settings: TrainSettings, folder: Path) -> dict[str, dict[str, float]]:
    started = time.monotonic()
    keys, task, spec = settings.keys, settings.task, settings.model
    pl.seed_everything(keys.seed, workers=True, verbose=False)

    tokenizer = load_tokenizer(spec)
    data = make_data(settings, tokenizer)

    model = load_model(spec, task, keys.init, keys.seed)
    check_length(model, settings.training["max_length"])
    check = check_attention(model)
    _log.info(
        f"Checked on one tiny batch: watching changes the logits by {check.watched_difference:.0e}, zeroing a layer's heads "
        f"by {min(check.override_differences):.1e} or more."
    )

    run = Run(folder, keys.name, spec.name, task.name, keys.init, writes=is_first_process())
    if run.writes:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_config(config, folder)
        tokenizer.save_pretrained(run.folder / "tokenizer")
    record = {"name": keys.name, "model": spec.model_dump(), "init": keys.init}
    module = SequenceClassifier(
        model, task, settings.optimizer, data.evaluation_names, record, seed=keys.seed, compile_model=keys.compile
    )
    module.validated_after_training = True
    untrained = partial(load_model, spec, task, RANDOM_INIT, keys.seed)
    callbacks = [
        *make_watcher(settings, run=run, random=untrained),
        *make_callbacks(settings.callbacks, run=run, ablation=settings.ablation),
        *_checkpoints(settings, module, run),
    ]
    loggers = make_loggers(settings, run)
    trainer = make_trainer(settings, callbacks, loggers, folder)
    with closing(loggers):
        last = run.checkpoints / LAST
        resume_from = str(last) if keys.resume is not None and last.is_file() else None
        trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
        if trainer.interrupted:
            raise KeyboardInterrupt
        trainer.save_checkpoint(last)
        # Scores, measures and disabling of one page are all of one set of weights.
        best = run.checkpoints / BEST
        selected = settings.checkpoint.report == "best" and best.is_file()
        module.record["step"] = int(read_record(best)[RECORD]["step"]) if selected else trainer.global_step
        trainer.validate(
            module, datamodule=data, ckpt_path=str(best) if selected else None, verbose=False, weights_only=True
        )
        finish(
            run,
            module,
            data,
            trainer,
            heads=settings.report.heads,
            trusted=trusted_classes(settings),
            selected=selected,
            seconds=time.monotonic() - started,
        )
    return module.scores


class LaterAmongEquals(ModelCheckpoint):
    """Keep the best checkpoint, of equally good ones the later."""

    def check_monitor_top_k(self, trainer: pl.Trainer, current: Tensor | None = None) -> bool:
        if current is not None and self.best_model_score is not None:
            # An undefined score counts as the lowest, as in Lightning.
            score = -torch.inf if bool(current.isnan()) else current
            if bool(self.best_model_score == score):
                return True
        return super().check_monitor_top_k(trainer, current)


def _checkpoints(settings: TrainSettings, module: SequenceClassifier, run: Run) -> list[Callback]:
    """The best checkpoint by the task's first metric, and the last one, from which an interrupted run is resumed."""
    folder: dict[str, Any] = {
        "dirpath": run.checkpoints,
        "enable_version_counter": False,
        "auto_insert_metric_name": False,
    }
    best = LaterAmongEquals(
        **folder, filename=Path(BEST).stem, monitor=module.monitor, mode="max", save_weights_only=True
    )
    last = ModelCheckpoint(**folder, filename=Path(LAST).stem, every_n_train_steps=settings.checkpoint.every_n_steps)
    return [best, last]
