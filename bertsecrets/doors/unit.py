"""A run as a unit of work: its key, and its folder held and marked while it runs."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from bertsecrets.doors.plain import plain
from bertsecrets.doors.process import is_first_process
from bertsecrets.errors import BusyError, UserError
from bertsecrets.models.locate import INITIAL, find_checkpoint
from bertsecrets.results.files import atomic_write
from bertsecrets.sweeps.identity import config_digest, unit_key
from bertsecrets.sweeps.unit import hold, mark_begun, mark_finished, read_finished, unmark

CONFIG_COPY = "config.yaml"
"""Name of a run's own copy of its resolved configuration."""

FAILURE = "BERTSECRETS_FAILURE"
"""Environment variable: the file in which a job of a sweep leaves the reason of its failure."""


def write_config(config: DictConfig, folder: Path) -> None:
    """Writes a run's own copy of its configuration, interpolations resolved."""
    with atomic_write(folder / CONFIG_COPY) as temporary:
        OmegaConf.save(config, temporary, resolve=True)


def read_config(folder: Path) -> DictConfig:
    """A run's own copy of its configuration.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        own = OmegaConf.load(folder / CONFIG_COPY)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(
            f"'{folder / CONFIG_COPY}' cannot be read ({str(error).splitlines()[0]}); run it again in another folder."
        ) from error
    if not isinstance(own, DictConfig) or not own:
        raise UserError(f"'{folder / CONFIG_COPY}' holds no configuration; run it again in another folder.")
    return own


def key_of(config: Mapping[str, Any]) -> str:
    """The key of a run's resolved configuration; an analysis counts the content of the checkpoint it starts from.

    Raises:
        UserError: If that checkpoint does not exist.
    """
    checkpoint = config.get("checkpoint")
    files = [find_checkpoint(Path(checkpoint))] if isinstance(checkpoint, str) and checkpoint != INITIAL else []
    return unit_key(config, files)


@contextmanager
def unit_of_work(config: DictConfig, folder: Path) -> Iterator[None]:
    """Holds a run's folder against other processes and marks the run as finished when the block ends well.

    Raises:
        BusyError: If another process is writing to the folder.
    """
    if not is_first_process():
        yield
        return
    with hold(folder):
        started = time.monotonic()
        resolved = plain(config)
        key = key_of(resolved)
        _check_unfinished(folder, key)
        unmark(folder)
        mark_begun(folder, key)
        yield
        mark_finished(folder, key, config_digest(resolved), time.monotonic() - started)


def _check_unfinished(folder: Path, key: str) -> None:
    """A job of a sweep is not run again if another sweep has finished it while this process was starting."""
    if FAILURE not in os.environ:
        return
    finished = read_finished(folder)
    if finished is not None and finished.key == key:
        raise BusyError(f"Another sweep has finished '{folder}' in the meantime; nothing is left to do there.")
