"""Settings taken from a run's folder, to resume or analyse the run."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bertsecrets.cli.settings import check_settings
from bertsecrets.data.sources import FILES
from bertsecrets.data.sources.base import ALL, HELD_OUT, VALIDATION
from bertsecrets.errors import UserError
from bertsecrets.keys import command_of
from bertsecrets.models.spec import INITIAL
from bertsecrets.results.files import resume_command
from bertsecrets.results.run import CONFIG_COPY, Run, plain, read_config
from bertsecrets.sweeps.hydra_arguments import key_of, register_resolver, unquoted, without_hydra
from bertsecrets.sweeps.run_folder import code_version, read_begun
from bertsecrets.sweeps.sweep import sweep_command
from bertsecrets.sweeps.trust import check_code, with_settings_given_again

_log = logging.getLogger(__name__)

_INHERITED = ("task", "model", "data", "annotation")
"""Sections of the run's configuration that its analyses inherit."""

_FIXED = ("init", "seed")
"""Facts of a run that an analysis cannot change."""


def resumed(config: DictConfig, folder: Path, overrides: Sequence[str]) -> DictConfig:
    """The interrupted run's own configuration, updated with new settings that cannot change its numbers.

    Args:
        config: Composed from the present command line.
        folder: The run's folder.
        overrides: The settings on the present command line.

    Raises:
        UserError: If it cannot be read, names a class that neither the project nor the command line names, or would
            write or send something outside the folder without the command line asking for it.
    """
    recorded = read_config(folder)
    check_code(plain(recorded), plain(config), folder)
    recorded = with_settings_given_again(recorded, config, overrides, folder)
    path = folder / CONFIG_COPY
    command = command_of(recorded)
    if command != command_of(config):
        raise UserError(
            f"'{path}' is the configuration of a run of {command}; resume it with {resume_command(folder)}."
        )
    try:
        check_settings(plain(recorded))
    except UserError as error:
        raise UserError(f"'{path}' was changed, or was written by another version: {error}") from error
    except OmegaConfBaseException as error:
        reason = " ".join(str(error).split())
        raise UserError(f"'{path}' cannot be used ({reason}); restore it, or start a new run.") from error
    begun = read_begun(folder)
    if begun is not None and begun.code != code_version():
        _log.warning(
            f"The run in {folder} was started with code version {begun.code} and is resumed with {code_version()}."
        )
    recorded.resume = config.resume
    recorded.debug, recorded.progress = config.debug, config.progress
    _log.info(f"Resuming the run in {folder}.")
    return recorded


def command_of_folder(folder: str | None) -> str | None:
    """The command that wrote the run or the sweep in a folder; None if the folder holds neither."""
    if folder is None:
        return None
    path = Path(unquoted(folder))
    if (command := sweep_command(path)) is not None:
        return command
    return command_of(plain(read_config(path))) if (path / CONFIG_COPY).is_file() else None


def run_of(checkpoint: Any) -> Run | None:
    """The run that a checkpoint belongs to: a run's folder or a file in its ``checkpoints``; None for any other
    path.
    """
    if not isinstance(checkpoint, str) or checkpoint == INITIAL:
        return None
    path = Path(checkpoint)
    folder = path.parent.parent if path.is_file() and path.parent.name == "checkpoints" else path
    return Run.open(folder) if (folder / CONFIG_COPY).is_file() else None


def with_run_settings(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration of an analysis, with the task, data, model and annotation of its run.

    Settings on the command line take precedence.

    Args:
        config: The composed configuration.
        overrides: The settings on the command line.

    Raises:
        UserError: If the command line contradicts the run (another model, initialisation or seed), or the run names a
            class that neither the project nor the command line names.
    """
    run = run_of(config.get("checkpoint"))
    if run is None:
        return config
    recorded = run.config()
    trained = recorded.get("trained", recorded)
    missing = [name for name in _INHERITED if not isinstance(recorded.get(name), dict)]
    missing += [name for name in _FIXED if name not in trained]
    if missing:
        raise UserError(f"'{run.config_path}' lacks {' and '.join(missing)}; restore it, or analyse another run.")
    keys = [key_of(override) for override in overrides]
    for name in _FIXED:
        if name in keys and config[name] != trained[name]:
            raise UserError(
                f"{name}={config[name]} contradicts the run in '{run.folder}', which has {name}={trained[name]}; "
                "remove it, or analyse another checkpoint."
            )
    path, trained_from = config.model.path, recorded["model"].get("path")
    if "model" in keys and path != trained_from:
        raise UserError(
            f"model={config.model.name} with model.path='{path}' contradicts the run in '{run.folder}', which was "
            f"trained from model.path='{trained_from}'; remove it, or analyse another checkpoint."
        )
    inherited = config.copy()
    OmegaConf.set_struct(inherited, False)
    other_task = "task" in keys and config.task.name != recorded["task"]["name"]
    sections = [name for name in _INHERITED if name not in keys and (name == "model" or not other_task)]
    check_code({name: recorded[name] for name in sections}, plain(without_hydra(config)), run.folder)
    for section in sections:
        changed = {key: OmegaConf.select(config, key) for key in keys if key.startswith(f"{section}.")}
        inherited[section] = recorded[section]
        for key, value in changed.items():
            OmegaConf.update(inherited, key, value)
    if "task" in sections:
        _evaluate_other_rows(inherited, recorded["data"], keys)
    for name in _FIXED:
        inherited[name] = trained[name]
    OmegaConf.set_struct(inherited, True)
    return inherited


def _evaluate_other_rows(config: DictConfig, of_run: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Let a task that splits off held-out rows evaluate on all rows of a file that the run was not trained on.

    Args:
        config: The configuration of the analysis, which is changed.
        of_run: The run's ``data`` section.
        keys: The settings on the command line.

    Raises:
        UserError: If the held-out rows would differ from the run's.
    """
    data, path = config.data, of_run.get("path")
    # Most tasks use the default.
    evaluation = dict(config.task.get("evaluation") or {})
    if HELD_OUT not in evaluation.values():
        return
    for name in ("eval_fraction", "split_by", "group"):
        # Runs without this setting held out rows by position, each row by itself.
        was = of_run.get(name, {"split_by": "order", "group": None}.get(name, data[name]))
        if f"data.{name}" in keys and data[name] != was:
            raise UserError(
                f"data.{name}={data[name]} contradicts the run, which held out rows with data.{name}={was}, so it "
                "would be evaluated on its training rows; remove it."
            )
    known = path is not None and os.path.exists(os.path.expanduser(path))
    other = path is not None and known and data.path is not None and _absolute(data.path) != _absolute(path)
    named = data.eval_path if data.get("eval_path") is not None else data.path if other else None
    split = None
    if data.source not in FILES:
        split = ALL if other else None
    elif named is not None and known:
        # Comparing with its training rows shows whether the named rows are new.
        split, data.eval_path = VALIDATION, named
        data.path = data.path if data.path is not None and data.path != named else path
    elif named is not None:
        split, data.path, data.eval_path = ALL, named, None
    if split is not None:
        config.task.evaluation = {name: split if part == HELD_OUT else part for name, part in evaluation.items()}
    elif "data" in keys:
        # The same rows are given again.
        data.eval_fraction = of_run.get("eval_fraction", data.eval_fraction)
        data.split_by = of_run.get("split_by", "order")


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def analysis_name(checkpoint: Any, default: str) -> str:
    """Name of an analysis: the analysed run's name or a default, followed by ``-analysis``.

    >>> analysis_name(None, "mrpc-minilm")
    'mrpc-minilm-analysis'
    """
    try:
        run = run_of(checkpoint)
    except UserError:
        # A damaged run is reported when the analysis starts.
        run = None
    return f"{default if run is None else run.name}-analysis"


register_resolver("analysis_name", analysis_name, replace=True)
