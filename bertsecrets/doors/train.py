"""Fine-tunes a model and writes everything that is known of its heads."""

import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

from bertsecrets.attention import prove
from bertsecrets.data.task import task_from_config
from bertsecrets.doors.build import (
    check_length,
    make_callbacks,
    make_data,
    make_loggers,
    make_trainer,
    resumed,
    run_folder,
)
from bertsecrets.doors.finish import close_loggers, finish
from bertsecrets.doors.plain import plain
from bertsecrets.doors.process import is_first_process
from bertsecrets.doors.unit import unit_of_work, write_config
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.loading import load_model, load_tokenizer
from bertsecrets.models.locate import BEST, LAST
from bertsecrets.models.metrics import check_metrics
from bertsecrets.models.optimisation import OptimizerConfig
from bertsecrets.models.spec import RANDOM_INIT, ModelSpec, check_init
from bertsecrets.results.run import Run

_log = logging.getLogger(__name__)


def train(config: DictConfig) -> dict[str, dict[str, float]]:
    """Runs one experiment in Hydra's output folder; returns the scores of every evaluation set.

    Raises:
        UserError: For everything that the user can mend, before the model is loaded where that is possible.
    """
    folder = run_folder()
    if config.resume is not None:
        config = resumed(config, folder)
    with unit_of_work(config, folder):
        return _train(config, folder)


def _train(config: DictConfig, folder: Path) -> dict[str, dict[str, float]]:
    started = time.monotonic()
    task = task_from_config(plain(config.task))
    check_metrics(task)
    check_init(config.init)
    spec = ModelSpec.from_config(plain(config.model))
    optimizer = OptimizerConfig.from_config(plain(config.optimizer))
    pl.seed_everything(config.seed, workers=True, verbose=False)

    tokenizer = load_tokenizer(spec)
    data = make_data(config, task, tokenizer)

    model = load_model(spec, task, config.init, config.seed)
    check_length(model, config.task.training.max_length)
    proof = prove(model)
    _log.info(
        f"Proved on one tiny batch: watching moves the logits by {proof.watched_difference:.0e}, zeroing a layer's heads "
        f"by {min(proof.override_differences):.1e} or more."
    )

    run = Run(folder, config.name, spec.name, task.name, config.init, writes=is_first_process())
    if run.writes:
        run.folder.mkdir(parents=True, exist_ok=True)
        write_config(config, folder)
        tokenizer.save_pretrained(run.folder / "tokenizer")
    record = {"name": config.name, "model": spec.as_dict(), "init": config.init}
    module = SequenceClassifier(
        model, task, optimizer, data.evaluation_names, record, seed=config.seed, compile_model=config.compile
    )
    untrained = partial(load_model, spec, task, RANDOM_INIT, config.seed)
    callbacks = [*make_callbacks(config.callbacks, run=run, random=untrained), *_checkpoints(config, module, run)]
    loggers = make_loggers(config, run)
    trainer = make_trainer(config, callbacks, loggers, folder)
    succeeded = False
    try:
        last = run.checkpoints / LAST
        resume_from = str(last) if config.resume is not None and last.is_file() else None
        trainer.fit(module, datamodule=data, ckpt_path=resume_from, weights_only=True)
        if trainer.interrupted:
            raise KeyboardInterrupt
        trainer.save_checkpoint(last)
        if module.scored_step != trainer.global_step:
            # The last step seldom falls on a validation where there are several in an epoch.
            trainer.validate(module, datamodule=data, verbose=False)
        finish(run, module, data, trainer, config, seconds=time.monotonic() - started)
        succeeded = True
    finally:
        close_loggers(loggers, succeeded)
    return module.scores


def _checkpoints(config: DictConfig, module: SequenceClassifier, run: Run) -> list[Callback]:
    """The best checkpoint by the task's first metric, and the last one, from which an interrupted run goes on."""
    folder: dict[str, Any] = {
        "dirpath": run.checkpoints,
        "enable_version_counter": False,
        "auto_insert_metric_name": False,
    }
    best = ModelCheckpoint(
        **folder, filename=Path(BEST).stem, monitor=module.monitor, mode="max", save_weights_only=True
    )
    last = ModelCheckpoint(**folder, filename=Path(LAST).stem, every_n_train_steps=config.checkpoint.every_n_steps)
    return [best, last]
