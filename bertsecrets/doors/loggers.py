"""The loggers of a run: metrics as CSV, and Weights & Biases."""

import hashlib
from typing import Any

import wandb
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import CSVLogger, WandbLogger

from bertsecrets import __version__
from bertsecrets.errors import UserError, choices
from bertsecrets.results.run import Run

_MODES = ("offline", "online", "disabled")


def csv_logger(run: Run, config: DictConfig) -> CSVLogger:
    """Metrics as ``csv/attempt_<n>/metrics.csv``; a resumed run adds an attempt and leaves the earlier ones alone."""
    folder = run.folder / "csv"
    attempt = len(list(folder.glob("attempt_*")))
    return CSVLogger(run.folder, name="csv", version=f"attempt_{attempt}", flush_logs_every_n_steps=50)


def wandb_logger(
    run: Run, config: DictConfig, project: str, entity: str | None, mode: str, job_type: str, **settings: Any
) -> WandbLogger:
    """Weights & Biases, with group, job type, tags and the resolved configuration set.

    Raises:
        UserError: If there is no such mode.
    """
    if mode not in _MODES:
        raise UserError(f"Unknown W&B mode '{mode}'; {choices(mode, _MODES)}.")
    run.folder.mkdir(parents=True, exist_ok=True)
    attempt = len(list((run.folder / "wandb").glob("*run-*")))
    # An offline run cannot be gone on with: every attempt is a run of its own in the same group.
    identity = hashlib.sha256(f"{run.folder.resolve()}{attempt}".encode()).hexdigest()[:12]
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return WandbLogger(
        project=project,
        entity=entity,
        name=run.name,
        id=identity,
        save_dir=str(run.folder),
        group=config.group,
        job_type=job_type,
        tags=[run.task, run.model, run.init, *config.tags],
        mode=mode,
        settings=wandb.Settings(quiet=True, console="off"),
        config={**resolved, "bertsecrets_version": __version__},
        **settings,
    )
