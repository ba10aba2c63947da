"""A sweep as a whole: whose folder it is, what became of its jobs, and how it goes on after an interruption."""

import json
import logging
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Glob
from omegaconf import DictConfig
from rich.console import Console

from bertsecrets.doors.composition import Invocation, parse_overrides, quoted, sweeper_params
from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write
from bertsecrets.sweeps.gpus import visible_gpus
from bertsecrets.sweeps.identity import NO_INFLUENCE, code_version
from bertsecrets.sweeps.records import FAILED, FINISHED, SKIPPED, JobRecord, print_records, read_records, settled

SWEEP_FILE = "sweep.json"
"""Name of the file that makes a folder a sweep's."""

RECORDS = "BERTSECRETS_SWEEP"
"""Environment variable: the folder for the records of this sweep's jobs."""

SWEEP_PROCESS = "BERTSECRETS_SWEEP_PROCESS"
"""Environment variable: the process that runs the sweep."""

GPUS = "BERTSECRETS_GPUS"
"""Environment variable: the GPUs that the sweep may deal out to its jobs, by name, with commas."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sweep:
    """A sweep that is about to run.

    Args:
        folder: Where its jobs' folders go.
        records: Where this invocation's jobs leave their records.
        objective: Name of the score shown beside each job.
        compares: Whether a page that compares its runs is made at its end.
        paper: Whether a page that follows Kovaleva et al. is made, too.
    """

    folder: Path
    records: Path
    objective: str
    compares: bool
    paper: bool

    def overrides(self) -> list[str]:
        """What Hydra must be told beside the user's settings."""
        variables = {RECORDS: str(self.records), SWEEP_PROCESS: str(os.getpid()), GPUS: ",".join(visible_gpus())}
        return [
            f"hydra.sweep.dir={quoted(str(self.folder))}",
            *(f"++hydra.job.env_set.{name}={quoted(value)}" for name, value in variables.items()),
        ]

    def close(self) -> list[JobRecord]:
        """Prints what became of the jobs and returns their records."""
        records = settled(read_records(self.records))
        if records:
            print_records(Console(), records, self.objective)
        if self.compares and any(record.status in (FINISHED, SKIPPED) for record in records):
            # Matplotlib takes a second to import, which the other doors need not wait for.
            from bertsecrets.doors.compare import compare_sweep

            try:
                compare_sweep(self.folder, self.paper)
            except UserError as error:
                _log.warning(
                    f"The runs were not compared: {error} Then run analyze.py compare={quoted(str(self.folder))}."
                )
        return records


def open_sweep(invocation: Invocation, config: DictConfig, arguments: list[str]) -> Sweep:
    """Takes a folder for a sweep, or goes on with the one that is there.

    Args:
        invocation: The command line.
        config: Its first job's configuration, Hydra's part included.
        arguments: The command line as given, kept for ``resume=<folder>``.

    Raises:
        UserError: If the folder is another sweep's, or holds this one already and ``resume=true`` is not given.
    """
    folder = Path(config.hydra.sweep.dir).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"hydra.sweep.dir is '{folder}', and a file is in the way; choose another folder.") from error
    fixed, swept = _settings(invocation, config)
    content = {
        "door": config.hydra.job.config_name or invocation.config_name,
        "arguments": [each for each in arguments if not each.startswith("resume=")],
        "fixed": fixed,
        "swept": swept,
        "code": code_version(),
    }
    if not _claim(folder, content):
        before = _read(folder)
        if config.resume is not True:
            raise UserError(
                f"Folder '{folder}' holds a sweep already; add resume=true to run only what is missing, or choose "
                "another hydra.sweep.dir."
            )
        if before is not None:
            _compare(folder, before, content)
            _grow(folder, before, content)
        else:
            _log.warning(f"{folder / SWEEP_FILE} cannot be read; it is written anew.")
            _write(folder, content)
    records = folder / ".sweep" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(3)}"
    records.mkdir(parents=True)
    ending = config.get("sweep", {})
    return Sweep(
        folder,
        records,
        config.objective or "score",
        compares=bool(ending.get("compare", False)),
        paper=bool(ending.get("paper", False)),
    )


def arguments_of(folder: Path) -> list[str] | None:
    """The command line with which a sweep's folder goes on; None if the folder is not a sweep's.

    Raises:
        UserError: If the folder's record of itself cannot be read.
    """
    if not (folder / SWEEP_FILE).is_file():
        return None
    content = _read(folder)
    if content is None:
        raise UserError(f"{folder / SWEEP_FILE} cannot be read; give the sweep's own command with resume=true instead.")
    arguments = [each for each in content["arguments"] if not each.startswith("hydra.sweep.dir=")]
    return [*arguments, f"hydra.sweep.dir={quoted(str(folder.resolve()))}", "resume=true"]


def has_failed(records: list[JobRecord]) -> bool:
    """Whether any job failed."""
    return any(record.status == FAILED for record in records)


def _settings(invocation: Invocation, config: DictConfig) -> tuple[dict[str, str], list[str]]:
    """What all jobs share, by key, and the keys that the sweep varies."""
    fixed: dict[str, str] = {}
    swept = set(sweeper_params(config))
    for override in parse_overrides(invocation.overrides):
        key = override.get_key_element().lstrip("+")
        if override.is_sweep_override():
            swept.add(key)
        elif key.split(".")[0] not in {*NO_INFLUENCE, "launcher", "sweeper"} and not key.startswith("hydra"):
            fixed[key] = override.get_value_element_as_str()
    return fixed, sorted(swept)


def _claim(folder: Path, content: Mapping[str, Any]) -> bool:
    """Writes the folder's record of itself, unless there is one; of two that try at once, one succeeds."""
    temporary = folder / f".{secrets.token_hex(4)}.json"
    temporary.write_text(json.dumps(content, indent=1), "utf-8")
    try:
        os.link(temporary, folder / SWEEP_FILE)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _write(folder: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(folder / SWEEP_FILE) as temporary:
        temporary.write_text(json.dumps(content, indent=1), "utf-8")


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        content = json.loads((folder / SWEEP_FILE).read_text("utf-8"))
    except ValueError:
        return None
    needed = {"door", "arguments", "fixed", "swept"}
    return content if isinstance(content, dict) and needed <= content.keys() else None


def _grow(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Keeps the wider of two commands, so that ``resume=<folder>`` goes on with all of the sweep."""
    old, new = (_values(content["arguments"]) for content in (before, now))
    if all(values <= new.get(key, set()) for key, values in old.items()):
        if old != new:
            _write(folder, now)
    elif not all(values <= old.get(key, set()) for key, values in new.items()):
        _log.warning(
            f"resume={folder} goes on with the jobs of the first command given for it; to go on with this one's, give "
            "this command again."
        )


def _values(arguments: list[str]) -> dict[str, set[str]]:
    """The values that a command line gives to each setting; a sweep over a range as its text."""
    found: dict[str, set[str]] = {}
    for override in parse_overrides([each for each in arguments if not each.startswith("-")]):
        key = override.get_key_element().lstrip("+")
        # What a pattern means depends on the files that there are.
        several = override.is_discrete_sweep() and not isinstance(override.value(), Glob)
        if key.split(".")[0] not in NO_INFLUENCE:
            found[key] = set(override.sweep_string_iterator()) if several else {override.get_value_element_as_str()}
    return found


def _compare(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UserError if what all jobs share has changed; what a sweep varies may grow."""
    free = {*before["swept"], *now["swept"]}
    changed = [
        f"{key} was {before['fixed'].get(key, 'the default')}, now {now['fixed'].get(key, 'the default')}"
        for key in sorted({*before["fixed"], *now["fixed"]} - free)
        if before["fixed"].get(key) != now["fixed"].get(key)
    ]
    if before["door"] != now["door"]:
        changed.insert(0, f"it is a sweep of {before['door']}.py, not of {now['door']}.py")
    if changed:
        raise UserError(
            f"Sweep folder '{folder}' belongs to another configuration ({'; '.join(changed)}); choose another "
            "hydra.sweep.dir, or leave these settings as they were."
        )
