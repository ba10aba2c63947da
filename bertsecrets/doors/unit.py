"""A run as a unit of work: its key, and its folder held and marked while it runs."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from bertsecrets.doors.plain import plain
from bertsecrets.doors.process import is_first_process
from bertsecrets.errors import BusyError
from bertsecrets.models.locate import find_checkpoint
from bertsecrets.sweeps.identity import config_digest, unit_key
from bertsecrets.sweeps.unit import hold, mark_finished, read_finished, unmark

CONFIG_COPY = "config.yaml"
"""Name of a run's own copy of its resolved configuration."""

FAILURE = "BERTSECRETS_FAILURE"
"""Environment variable: the file in which a job of a sweep leaves the reason of its failure."""


def key_of(config: Mapping[str, Any]) -> str:
    """The key of a run's resolved configuration; an analysis counts the content of the checkpoint it starts from.

    Raises:
        UserError: If that checkpoint does not exist.
    """
    checkpoint = config.get("checkpoint")
    return unit_key(config, [find_checkpoint(Path(checkpoint))] if isinstance(checkpoint, str) else [])


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
        yield
        mark_finished(folder, key, config_digest(resolved), time.monotonic() - started)


def _check_unfinished(folder: Path, key: str) -> None:
    """A job of a sweep is not run again if another sweep has finished it while this process was starting."""
    if FAILURE not in os.environ:
        return
    finished = read_finished(folder)
    if finished is not None and finished.key == key:
        raise BusyError(f"Another sweep has finished '{folder}' in the meantime; nothing is left to do there.")
