"""The loggers of a run: metrics as CSV, and Weights & Biases."""

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import wandb
from pydantic import Field
from pytorch_lightning.loggers import CSVLogger, WandbLogger

from bertsecrets.cli.settings import OFFERED
from bertsecrets.cli.targets import accepted_arguments, load_target
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.present import wandb as tracking
from bertsecrets.present.wandb import artifact_name
from bertsecrets.results.disabled import named
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import Run
from bertsecrets.settings import shown
from bertsecrets.sweeps.run_folder import code_version

WandbMode = Literal["offline", "online", "disabled"]

GivenMode = Literal["offline", "online", "disabled", "dryrun", "run"]

_EARLIER: dict[str, WandbMode] = {"dryrun": "offline", "run": "online"}
"""Former names of modes: Lightning's logger still sets ``WANDB_MODE=dryrun`` for the rest of a process."""

TRACKED = "wandb.json"
"""Name of the file in a run's folder that identifies its W&B run."""

_LONGEST_TAG = 64

_log = logging.getLogger(__name__)


class HeadsLogger(WandbLogger):
    """Lightning's W&B logger, which also accepts grids of heads."""

    def log_grid(self, grid: HeadGrid, step: int, experiment: Experiment) -> None:
        """Log a grid as a heatmap of each column, a table, and scalars of layers."""
        tracking.log_grid(self.experiment, grid, step, title=experiment.title, effects=experiment.shown.effects)


def csv_logger(run: Run, config: Mapping[str, Any]) -> CSVLogger:
    """Metrics as ``csv/attempt_<n>/metrics.csv``; a resumed run adds an attempt and keeps the earlier ones."""
    folder = run.folder / "csv"
    attempt = len(list(folder.glob("attempt_*")))
    return CSVLogger(run.folder, name="csv", version=f"attempt_{attempt}", flush_logs_every_n_steps=50)


def wandb_logger(
    run: Run,
    config: Mapping[str, Any],
    project: Annotated[
        str, Field(pattern=r"^[^/\\#?%:]{1,128}$", description=r"a name of at most 128 characters without / \ # ? % :")
    ],
    entity: str | None,
    mode: GivenMode,
    job_type: str,
    init_timeout: Annotated[
        float, Field(gt=0, le=86_400, description="a number of seconds above 0, at most a day")
    ] = 90.0,
    **settings: Any,
) -> HeadsLogger:
    """Weights & Biases, with group, job type, tags and the resolved configuration set.

    If the server cannot be reached or nobody is logged in, the run warns and continues offline.

    Args:
        run: The run; gives folder, name and tags.
        config: The whole configuration; the sections that the run uses are recorded with the code version.
        project, entity: W&B project and entity.
        mode: ``offline``, ``online`` or ``disabled``, or by their former names ``dryrun`` or ``run``.
        job_type: ``train`` or ``analysis``.
        init_timeout: Seconds to wait for the server.
        settings: Further arguments to ``wandb.init``.
    """
    wanted: WandbMode = mode if mode in ("offline", "online", "disabled") else _EARLIER[mode]
    run.folder.mkdir(parents=True, exist_ok=True)
    _keep_files_in(run.folder / "wandb")
    attempt = len(list((run.folder / "wandb").glob("*run-*")))
    # An offline run cannot be resumed: every attempt is a new run in the same group.
    identity = hashlib.sha256(f"{run.folder.resolve()}{attempt}".encode()).hexdigest()[:12]
    if "WANDB_SWEEP_ID" in os.environ:
        # For a run started by its agent, W&B ignores any other id.
        identity = os.environ.get("WANDB_RUN_ID") or identity
        if wanted != "online" and run.writes:
            _log.warning(
                f"A W&B agent started this run, but logger.wandb.mode is {wanted}, so its sweep would get no score; "
                "start the agent with WANDB_MODE=online."
            )
    source = lineage(config)
    disabled = {"disabled": named(config)} if named(config) else {}
    wandb_arguments: dict[str, Any] = {
        "project": project,
        "entity": entity,
        "name": _name(run, config),
        "id": identity,
        "group": config["group"],
        "job_type": job_type,
        # W&B rejects longer tags; the configuration has the full names.
        "tags": [tag[:_LONGEST_TAG] for tag in (run.task, run.model, run.init, *config["tags"])],
        "config": {**used(config), **disabled, "code_version": code_version(), **source},
        "notes": f"Analysis of the run {source.get('source_url', source['source_run'])}" if source else None,
        **settings,
    }
    options = wandb.Settings(quiet=True, console="off", init_timeout=init_timeout, login_timeout=init_timeout)
    started = None
    if run.writes:
        started = _start(wanted, wandb_arguments, run.folder, options)
        wanted = "offline" if wanted == "online" and started.offline else wanted
        tracking.define_axes(started)
    run.write_json(run.folder / TRACKED, {"id": identity, "project": project, "entity": entity, "mode": wanted})
    logger = HeadsLogger(save_dir=str(run.folder), mode=wanted, settings=options, experiment=started, **wandb_arguments)
    # W&B warns that these arguments of Lightning's have no effect.
    for name in ("anonymous", "resume"):
        logger._wandb_init.pop(name, None)
    return logger


def _keep_files_in(folder: Path) -> None:
    """Let W&B stage tables and artifacts in the run's folder if its folder in the user's home is not writable."""
    own = {
        "WANDB_DATA_DIR": Path(wandb.env.get_data_dir()),
        "WANDB_CACHE_DIR": Path(wandb.env.get_cache_dir()),
        "WANDB_CONFIG_DIR": Path(os.environ.get("WANDB_CONFIG_DIR") or Path.home() / ".config" / "wandb"),
    }
    for name, path in own.items():
        try:
            path.mkdir(parents=True, exist_ok=True)
            writable = os.access(path, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            os.environ[name] = str(folder)


def used(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a configuration that its run uses: ``ablation`` or ``prune`` only if a callback or an analysis
    needs it, ``annotation`` only with a pipeline. The section ``framenet`` belongs to its measure.
    """
    unused = {"framenet", *(() if (config.get("annotation") or {}).get("pipeline") else ("annotation",))}
    offered = {name: config[name] for name in OFFERED if name in config}
    taken: set[str] = set()
    for group in ("callbacks", "analysis"):
        for name, section in (config.get(group) or {}).items():
            if section:
                taken |= accepted_arguments(load_target(f"{group}.{name}", section), section, offered).keys()
    return {key: value for key, value in config.items() if key not in unused | (offered.keys() - taken)}


def _name(run: Run, config: Mapping[str, Any]) -> str:
    """Name of the W&B run: the analyses, if any, followed by the run's name."""
    # For train, the key checkpoint is a section: when to save one.
    if not isinstance(config.get("checkpoint"), str):
        return run.name
    if disabled := named(config):
        return f"without {disabled['what']} \N{MIDDLE DOT} {run.name}"
    analyses = [
        name for section in ("analysis", "measure") for name, entry in (config.get(section) or {}).items() if entry
    ]
    return f"{' + '.join(analyses)} \N{MIDDLE DOT} {run.name}" if analyses else run.name


def _start(mode: WandbMode, wandb_arguments: dict[str, Any], folder: Path, options: wandb.Settings) -> Any:
    """Start the W&B run, offline if the server cannot be reached."""
    if mode == "online":
        try:
            return wandb.init(mode=mode, dir=str(folder), settings=options, **wandb_arguments)
        except (wandb.errors.CommError, wandb.errors.UsageError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            wandb.teardown()
            _log.warning(
                f"W&B cannot be reached ({reason}): the run continues offline; send it later with "
                f"`wandb sync {folder}/wandb/offline-run-*`."
            )
            mode = "offline"
    # Print the folder of an offline run and how to view it; for an online run, only its address.
    options.silent = True
    return wandb.init(mode=mode, dir=str(folder), settings=options, **wandb_arguments)


def lineage(config: Mapping[str, Any]) -> dict[str, Any]:
    """The W&B run that an analysed checkpoint comes from, with its address if its entity is known; empty if unknown.

    Raises:
        UserError: If the run's folder has a record of it that cannot be read.
    """
    checkpoint = config.get("checkpoint")
    if not isinstance(checkpoint, str):
        return {}
    for folder in (Path(checkpoint), *Path(checkpoint).parents[:2]):
        if (folder / TRACKED).is_file():
            try:
                record = json.loads((folder / TRACKED).read_text("utf-8"))
                source = str(record["id"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UserError(f"'{folder / TRACKED}' cannot be read ({error}); delete or restore it.") from error
            if not re.fullmatch(r"\w[\w-]{0,127}", source, re.ASCII):
                raise UserError(
                    f"'{folder / TRACKED}' names the W&B run {shown(source)}; expected letters, digits and hyphens; "
                    "delete or restore it."
                )
            if record.get("mode") == "disabled":
                # W&B has no such run.
                return {}
            origin = {"source_run": source, "source_artifact": f"{artifact_name(source)}:latest"}
            if record.get("entity") and record.get("project"):
                path = quote(f"{record['entity']}/{record['project']}/runs/{source}")
                origin["source_url"] = f"{wandb.Settings().app_url}/{path}"
            return origin
    return {}
