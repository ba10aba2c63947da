"""Settings that follow from data of the user's own: ``data=csv``, ``data=hub data.dataset=...`` and ``task=<file>.yaml``."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from bertsecrets.cli.run_settings import run_of
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError
from bertsecrets.results.files import read_yaml
from bertsecrets.sweeps.hydra_arguments import Invocation, as_argument, parse_overrides, unquoted

OWN = "own"
"""The option of ``conf/task`` for data of the user's own."""

_COLUMNS = ("data.text", "data.label", "data.target", "data.dataset", "data.dataset_config")
"""Keys from which the task is made, and which mean nothing to any other task."""

_TASK = "task="
_FILE = "file"
"""The option of ``conf/task`` whose keys are those of a file."""

_KEY = re.compile(r"[^\W\d]\w*|0|[1-9]\d*", re.ASCII)
"""What Hydra reads as a key."""


def with_task_file(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a task that is given as a YAML file replaced by its keys; those of the command line take precedence.

    From then on the command line holds the task, so that the processes and the analyses of the run need no file.

    Raises:
        UserError: If the file cannot be read, holds something else than keys and values, or has a key that Hydra cannot read.
    """
    given = {argument.partition("=")[0].lstrip("+~") for argument in arguments}
    named = any(map(_names_file, arguments))
    completed = []
    for argument in arguments:
        if not _names_file(argument):
            # The file may have keys that no other task has.
            completed.append(f"++{argument}" if named and argument.startswith("task.") else argument)
            continue
        path = unquoted(argument.removeprefix(_TASK))
        advice = "give one YAML file laid out as those of conf/task"
        content = read_yaml(Path(path).expanduser(), "the task file", advice)
        if not isinstance(content, Mapping):
            raise UserError(f"The task file {path} holds no keys and values; {advice}.")
        completed.append(f"{_TASK}{_FILE}")
        for key, value in _leaves(content, "task"):
            for name in key.split("."):
                if not _KEY.fullmatch(name):
                    raise UserError(
                        f"The task file {path} has the key '{name}'; use letters, digits and underscores in keys."
                    )
            if key not in given:
                completed.append(f"++{key}={as_argument(value)}")
    return completed


def _names_file(argument: str) -> bool:
    return argument.startswith(_TASK) and unquoted(argument.removeprefix(_TASK)).endswith((".yaml", ".yml"))


def _leaves(content: Mapping[Any, Any], place: str) -> Iterator[tuple[str, Any]]:
    """The values of nested sections by dotted keys."""
    for name, value in content.items():
        key = f"{place}.{name}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, key)
        else:
            yield key, value


def own_data(invocation: Invocation) -> list[str]:
    """The arguments to add to a command line that names data and no task: the task that the data tell.

    They are part of the command line from then on, so the run's folder, its copy of the configuration and its analyses know
    the columns, classes and metrics. Settings that the user gives are kept.

    Raises:
        UserError: If the data cannot be read, or name no classes or scores, or columns are named for a task that has its own,
            or an experiment is given, which names its tasks.
    """
    given = {override.key_or_group: override for override in parse_overrides(invocation.overrides)}
    if "resume" in given or _of_a_run(invocation, given):
        return []
    values = {key: override.value() for key, override in given.items() if key.partition(".")[0] in ("data", "task")}
    source, task = values.get("data"), values.get("task", OWN)
    named = [key for key in _COLUMNS if key in given]
    if task != OWN:
        if named and isinstance(task, str):
            raise UserError(f"{named[0]} is for data without a task, but task={task} is given; leave one of them out.")
        return []
    if "task.csv" in given or "task.hub" in given:
        return []
    if "experiment" in given and "task" not in given:
        if source == "csv" or named:
            setting = given["data"].input_line if source == "csv" else given[named[0]].input_line
            raise UserError(
                f"'{setting}' is for data without a task, but {given['experiment'].input_line} names its tasks; leave one of "
                "them out, or add task=own."
            )
        return []
    if source != "csv" and not (source == "hub" and {"data.dataset", "data.path"} & set(given)):
        if "task" in given:
            raise UserError(
                "task=own needs data of your own: give data=csv data.path=<CSV file>, or data=hub data.dataset=<name>."
            )
        return []
    for key in (*_COLUMNS, "data.path", "data.eval_path"):
        if key in given and given[key].is_sweep_override():
            raise UserError(f"'{given[key].input_line}' names several data sets; run one command for each of them.")
    section = {
        key.partition(".")[2]: value
        for key, value in values.items()
        if key.startswith("data.") and not given[key].is_sweep_override()
    }
    # A slow import that only this path needs.
    from bertsecrets.data.own import own_task

    facts = own_task(SourceConfig.read("data", {"source": source, **section}))
    added = {f"task.{key}": value for key, value in facts.items() if f"task.{key}" not in given}
    choice = [] if "task" in given else [f"task={OWN}"]
    return [*choice, *(f"{key}={as_argument(value)}" for key, value in added.items())]


def _of_a_run(invocation: Invocation, given: dict[str, Override]) -> bool:
    """Whether the command analyses a run, which knows its task, or no checkpoint at all."""
    if invocation.config_name == "train":
        return False
    checkpoint = given.get("checkpoint")
    return checkpoint is None or checkpoint.is_sweep_override() or run_of(checkpoint.value()) is not None
