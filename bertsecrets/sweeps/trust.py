"""What a folder's configuration may make this process import or call.

A run's or a sweep's folder may come from somebody else. Its configuration is data: it may choose among the classes of the
project's own configuration and those that the present command line names, and nothing else.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bertsecrets.errors import UserError
from bertsecrets.settings import CONF, shown
from bertsecrets.sweeps.hydra_arguments import parse_overrides, quoted

TARGET = "_target_"
"""The key with which a section names the class or function to call."""

_HYDRA_SETTINGS = (
    "hydra.launcher.array_parallelism",
    "hydra.launcher.cpus_per_task",
    "hydra.launcher.gpus_per_node",
    "hydra.launcher.mem_gb",
    "hydra.launcher.n_jobs",
    "hydra.launcher.nodes",
    "hydra.launcher.partition",
    "hydra.launcher.tasks_per_node",
    "hydra.launcher.timeout_min",
    "hydra.mode",
    "hydra.sweep.subdir",
    "hydra.sweeper.direction",
    "hydra.sweeper.max_batch_size",
    "hydra.sweeper.n_jobs",
    "hydra.sweeper.n_trials",
    "hydra.sweeper.sampler.seed",
    "hydra.sweeper.study_name",
)
"""Hydra's settings that a sweep's folder may bring along. Others run shell commands, import modules or move files."""

_RESOLVER = re.compile(r"\$\{[^}]*:")
_LEAVES_FOLDER = re.compile(r"\.\.|(^|[\[(,'\"\s])[/~]")
"""In the name of a group's option or of a folder: a path out of the folder that it belongs to."""


@functools.cache
def project_targets() -> frozenset[str]:
    """The classes and functions that the project's own configurations name."""
    contents = (yaml.safe_load(path.read_text("utf-8")) for path in sorted(CONF.rglob("*.yaml")))
    return frozenset(target for content in contents for _, target in targets_in(content) if isinstance(target, str))


def targets_in(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every ``_target_`` of a configuration as plain values, at any depth: its dotted key and its value.

    >>> list(targets_in({"callbacks": {"mine": {"_target_": "a.B", "parts": [{"_target_": "c.d"}]}}}))
    [('callbacks.mine._target_', 'a.B'), ('callbacks.mine.parts.0._target_', 'c.d')]
    """
    if isinstance(content, Mapping):
        entries = [(str(name), value) for name, value in content.items()]
    elif isinstance(content, (list, tuple)):
        entries = [(str(number), value) for number, value in enumerate(content)]
    else:
        return
    for name, value in entries:
        place = f"{key}.{name}" if key else name
        if name == TARGET:
            yield place, value
        yield from targets_in(value, place)


def foreign_targets(config: Mapping[str, Any]) -> dict[str, str]:
    """The classes of a configuration that are not the project's own, by key."""
    return {key: target for key, target in targets_in(config) if target not in project_targets()}


def check_targets(config: Mapping[str, Any], present: Mapping[str, Any], folder: Path) -> None:
    """Check that a folder's configuration names no class but the project's own and those of the present command line.

    Args:
        config: Of the folder, as plain values.
        present: Composed from the present command line, as plain values.
        folder: Where ``config`` comes from.

    Raises:
        UserError: Naming the first other class, and how to allow it.
    """
    named = {target for _, target in targets_in(present) if isinstance(target, str)}
    for key, target in targets_in(config):
        if not isinstance(target, str) or target not in project_targets() | named:
            raise UserError(
                f"The configuration in '{folder}' names {key}={shown(target)}, which is not part of bertsecrets; if you "
                f"trust it, name it on the command line, too: ++{key}=<class>."
            )


def names_target(argument: str) -> bool:
    """Whether a setting of the command line does nothing but name a class."""
    return argument.split("=")[0].endswith(f".{TARGET}")


def check_sweep_arguments(arguments: Sequence[str], folder: Path) -> None:
    """Check that the command line recorded in a sweep's folder brings no code with it.

    Raises:
        UserError: Naming the first argument that could.
    """
    for argument in arguments:
        # The folder itself, put there by resume_arguments() in place of whatever its file says.
        if argument in ("-m", "--multirun", f"hydra.sweep.dir={quoted(str(folder.resolve()))}"):
            continue
        if argument.startswith("-") or not _is_data(argument):
            raise UserError(
                f"The sweep in '{folder}' was started with {shown(argument)}, which can run code or read files of its "
                "choice; if you trust it, repeat the sweep's own command with resume=true."
            )


def _is_data(argument: str) -> bool:
    override = parse_overrides([argument])[0]
    key, value = override.key_or_group, argument.partition("=")[2]
    # A resolver reads the environment, for one.
    if TARGET in argument or _RESOLVER.search(value) or key == "hydra":
        return False
    if key.startswith("hydra."):
        return key in _HYDRA_SETTINGS and not _LEAVES_FOLDER.search(value)
    is_group = key.startswith("hydra/") or (CONF / key.split("@")[0]).is_dir()
    return not (is_group and _LEAVES_FOLDER.search(value))
