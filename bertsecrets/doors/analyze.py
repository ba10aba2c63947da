"""Analyses a finished checkpoint: the same numbers, figures and report, without training."""

import time
from functools import partial
from pathlib import Path

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf

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
from bertsecrets.errors import UserError
from bertsecrets.models.checkpoint import initial_checkpoint, load_checkpoint
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.loading import load_model, load_tokenizer
from bertsecrets.models.locate import INITIAL, find_checkpoint
from bertsecrets.models.metrics import check_metrics
from bertsecrets.models.optimisation import OptimizerConfig
from bertsecrets.models.spec import RANDOM_INIT, ModelSpec, check_init
from bertsecrets.results.run import Run


def analyze(config: DictConfig) -> dict[str, dict[str, float]]:
    """Runs the chosen analyses of one checkpoint in Hydra's output folder; returns its scores.

    A checkpoint inside a run's folder brings that run's history (drift and gradients through training) along.

    Raises:
        UserError: For everything that the user can mend, before a model is loaded where that is possible.
    """
    folder = run_folder()
    if config.resume is not None:
        config = resumed(config, folder)
    if config.checkpoint is None:
        raise UserError("Config key 'checkpoint' has no value; give it on the command line as checkpoint=<value>.")
    with unit_of_work(config, folder):
        return _analyze(config, folder)


def _analyze(config: DictConfig, folder: Path) -> dict[str, dict[str, float]]:
    started = time.monotonic()
    task = task_from_config(plain(config.task))
    check_metrics(task)
    check_init(config.init)
    spec = ModelSpec.from_config(plain(config.model))
    path = None if config.checkpoint == INITIAL else find_checkpoint(Path(config.checkpoint))
    pl.seed_everything(config.seed, workers=True, verbose=False)
    tokenizer = load_tokenizer(spec)
    data = make_data(config, task, tokenizer)

    if path is None:
        checkpoint = initial_checkpoint(task, spec, config.init, config.seed)
    else:
        checkpoint = load_checkpoint(path, task, spec)
    record = checkpoint.record
    init, seed = record.get("init", config.init), record.get("seed", config.seed)
    reference_spec = spec if config.reference is None else ModelSpec("reference", config.reference)
    reference = load_model(reference_spec, task, init, seed)
    check_length(checkpoint.model, config.task.training.max_length)
    prove(checkpoint.model)

    run = Run(folder, record.get("name", config.name), spec.name, task.name, init, writes=is_first_process())
    if run.writes:
        run.folder.mkdir(parents=True, exist_ok=True)
        told = config.copy()
        OmegaConf.update(told, "trained", {"name": run.name, "init": init, "seed": seed}, force_add=True)
        write_config(told, folder)
    # A model may be analysed on another task's sentences; the history of its own is no part of that.
    if path is not None and path.is_file() and record["task"] == task.name:
        origin = Run(path.parent.parent, run.name, run.model, run.task, run.init, writes=False)
        if origin.heads_path.is_file():
            run.add(origin.table())
    module = SequenceClassifier(
        checkpoint.model,
        task,
        OptimizerConfig(learning_rate=0.0),
        data.evaluation_names,
        record={**record, "step": record.get("step", 0)},
        seed=seed,
    )
    loggers = make_loggers(config, run)
    untrained = partial(load_model, spec, task, RANDOM_INIT, seed)
    callbacks = make_callbacks(config.analysis, run=run, reference=reference, random=untrained)
    trainer = make_trainer(config, callbacks, loggers, folder)
    succeeded = False
    try:
        trainer.validate(module, datamodule=data, verbose=False)
        finish(run, module, data, trainer, config, seconds=time.monotonic() - started)
        succeeded = True
    finally:
        close_loggers(loggers, succeeded)
    return module.scores
