"""The loggers of a run: metrics as CSV, and Weights & Biases."""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import wandb
from omegaconf import DictConfig
from pytorch_lightning.loggers import CSVLogger, WandbLogger

from bertsecrets.doors.plain import plain
from bertsecrets.results.run import Run
from bertsecrets.results.wandb import STEP
from bertsecrets.sweeps.identity import code_version

TRACKED = "wandb.json"
"""Name of the file in a run's folder that says which W&B run it is."""

_log = logging.getLogger(__name__)


def csv_logger(run: Run, config: DictConfig) -> CSVLogger:
    """Metrics as ``csv/attempt_<n>/metrics.csv``; a resumed run adds an attempt and leaves the earlier ones alone."""
    folder = run.folder / "csv"
    attempt = len(list(folder.glob("attempt_*")))
    return CSVLogger(run.folder, name="csv", version=f"attempt_{attempt}", flush_logs_every_n_steps=50)


def wandb_logger(
    run: Run,
    config: DictConfig,
    project: str,
    entity: str | None,
    mode: str,
    job_type: str,
    init_timeout: float = 90.0,
    **settings: Any,
) -> WandbLogger:
    """Weights & Biases, with group, job type, tags and the resolved configuration set.

    A server that cannot be reached, or that knows no account, costs a warning: the run goes on offline.

    Args:
        run: Whose folder, name and tags it has.
        config: Recorded whole, with the version of the code.
        project, entity: Where it goes.
        mode: ``offline``, ``online`` or ``disabled``.
        job_type: ``train`` or ``analysis``.
        init_timeout: Seconds to wait for the server.
        settings: More arguments of ``wandb.init``.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    attempt = len(list((run.folder / "wandb").glob("*run-*")))
    # An offline run cannot be gone on with: every attempt is a run of its own in the same group.
    identity = hashlib.sha256(f"{run.folder.resolve()}{attempt}".encode()).hexdigest()[:12]
    given: dict[str, Any] = {
        "project": project,
        "entity": entity,
        "name": run.name,
        "id": identity,
        "group": config.group,
        "job_type": job_type,
        "tags": [run.task, run.model, run.init, *config.tags],
        "config": {**plain(config), "code_version": code_version(), **_lineage(config)},
        **settings,
    }
    options = wandb.Settings(quiet=True, console="off", init_timeout=init_timeout, login_timeout=init_timeout)
    online = _start_online(given, run.folder, options) if run.writes and mode == "online" else None
    mode = "offline" if mode == "online" and online is None else mode
    run.write_json(run.folder / TRACKED, {"id": identity, "project": project, "entity": entity, "mode": mode})
    return WandbLogger(save_dir=str(run.folder), mode=mode, settings=options, experiment=online, **given)


def artifact_name(identity: str) -> str:
    """Name of the artifact that holds what a run left behind."""
    return f"run-{identity}"


def _start_online(given: dict[str, Any], folder: Path, options: wandb.Settings) -> Any:
    """The W&B run, started; None where the server cannot be reached."""
    try:
        online = wandb.init(mode="online", dir=str(folder), settings=options, **given)
    except (wandb.errors.CommError, wandb.errors.UsageError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        wandb.teardown()
        _log.warning(
            f"W&B cannot be reached ({reason}): the run goes on offline; send it later with "
            f"`wandb sync {folder}/wandb/offline-run-*`."
        )
        return None
    # What Lightning's logger does for the runs that it starts itself.
    online.define_metric(STEP)
    online.define_metric("*", step_metric=STEP, step_sync=True)
    return online


def _lineage(config: DictConfig) -> dict[str, Any]:
    """Which W&B run an analysed checkpoint comes from; nothing where that is not known."""
    checkpoint = config.get("checkpoint")
    if not isinstance(checkpoint, str):
        return {}
    for folder in (Path(checkpoint), *Path(checkpoint).parents[:2]):
        if (folder / TRACKED).is_file():
            source = json.loads((folder / TRACKED).read_text("utf-8"))
            return {"source_run": source["id"], "source_artifact": f"{artifact_name(source['id'])}:latest"}
    return {}
