"""What a folder of somebody else may make this process do.

A run's or a sweep's folder may come from somebody else. Its configuration is data: it may choose among the classes of
the project's own configuration and those that the present command line names, and it writes nothing outside of the
folder and sends nothing anywhere unless the present command line says so too.
"""

import functools
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, QuotedString, RangeSweep
from omegaconf import DictConfig, OmegaConf

from bertsecrets.data.annotation import AnnotationConfig
from bertsecrets.data.sources import SourceConfig
from bertsecrets.doors import dotted, offered_folders, offers
from bertsecrets.errors import UserError
from bertsecrets.keys import top_level
from bertsecrets.results.config_copy import plain
from bertsecrets.results.files import copied, quoted
from bertsecrets.settings import CONF, meanings, shown
from bertsecrets.sweeps.hydra_arguments import parse_overrides

TARGET = "_target_"
"""The key with which a section names the class or function to call."""

_FUNCTIONS = ("score", "scores", "source", "model.family", "ablation.mode")
"""Ends of dotted keys whose values may name a function or a class to import, as ``module:function``: scores of pruning,
the source of data, the model's family, the override mode."""

_SECTIONS = {"annotation": AnnotationConfig, "data": SourceConfig}
_OUTSIDE = top_level(lambda meaning: meaning.outside) | {
    f"{section}.{name}"
    for section, settings in _SECTIONS.items()
    for name, meaning in meanings(settings).items()
    if meaning.outside
}
"""Settings that write or send something outside of the run's folder if they are texts."""

_LOGGED_INSIDE = (TARGET, "project", "job_type", "init_timeout")
"""Settings of a logger that send nothing."""

_FOLDER_NAME = r"\w[\w.=,+ -]*"
_OPTION = r"[\w*][\w*.-]*"
_WORD = r"[\w.,-]+|None"
_HYDRA_SETTINGS = {
    # Others are commands of a shell, modules to import, addresses or paths.
    r"hydra\.(launcher|sweeper)\.[\w.]+": r"-?\d{1,9}|auto|None",
    r"hydra\.launcher\.(account|partition|qos)": _WORD,
    r"hydra\.sweeper\.(direction|sampler)": _WORD,
    r"hydra\.sweep\.subdir": rf"{_FOLDER_NAME}(/{_FOLDER_NAME})*",
}
"""Hydra's settings that a sweep's folder may bring along, and what they can be; others have to be given again."""

_HYDRA_GROUPS = ("hydra/launcher", "hydra/sweeper")

_NAMES = ("name", "task.name", "model.name")
"""Settings that name folders."""

_REFERENCE = re.compile(r"\$\{(name|task\.name|model\.name|init|seed)\}")
"""The interpolations that a sweep's folder may bring along: each is checked to be a name or a number. A resolver reads
the environment, for one, and other settings may hold the path of a folder elsewhere."""

_DATA = (str, int, float, type(None), RangeSweep, IntervalSweep)
"""What the values of a recorded setting can be."""

_WANDB_RUNS = "*run-*"
"""The folders of W&B's runs, which it never writes to again, and which hold links to its log."""

_SUBMITTED = ".submitit/.submission_file_*.sh"
"""The links that submitit leaves to its scripts by absolute paths, which lead out of a copied sweep; each name is used
once, so that nothing is ever written through them."""


@functools.cache
def project_targets() -> frozenset[str]:
    """The classes and functions that the configurations of the project and of installed packages name."""
    files = sorted(path for folder in (CONF, *offered_folders("conf").values()) for path in folder.rglob("*.yaml"))
    contents = (yaml.safe_load(path.read_text("utf-8")) for path in files)
    named = {target for content in contents for _, target in code_in(content) if isinstance(target, str)}
    return frozenset(named | {dotted(point) for point in offers("measures").values()})


def code_in(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every class or function that a configuration as plain values names, at any depth: its dotted key and its name.

    >>> list(code_in({"callbacks": {"mine": {"_target_": "a.B", "parts": [{"_target_": "c.d"}]}}}))
    [('callbacks.mine._target_', 'a.B'), ('callbacks.mine.parts.0._target_', 'c.d')]
    >>> list(code_in({"prune": {"scores": ["exact", "my_package:score"]}}))
    [('prune.scores', 'my_package:score')]
    """
    if isinstance(content, Mapping):
        entries = [(str(name), value) for name, value in content.items()]
    elif isinstance(content, (list, tuple)):
        entries = [(str(number), value) for number, value in enumerate(content)]
    else:
        return
    for name, value in entries:
        path = f"{key}.{name}" if key else name
        if name == TARGET:
            yield path, value
        elif names_code(path):
            texts = value if isinstance(value, (list, tuple)) else [value]
            yield from ((path, text) for text in texts if isinstance(text, str) and ":" in text)
        yield from code_in(value, path)


def check_code(config: Mapping[str, Any], present: Mapping[str, Any], folder: Path) -> None:
    """Check that a folder's configuration names no code but the project's own and that of the present command line.

    Args:
        config: Of the folder, as plain values.
        present: Composed from the present command line, as plain values.
        folder: Where ``config`` comes from.

    Raises:
        UserError: Naming the first other class or function, and how to allow it.
    """
    named = {target for _, target in code_in(present) if isinstance(target, str)}
    for key, target in code_in(config):
        if not isinstance(target, str) or target not in project_targets() | named:
            raise UserError(
                f"The configuration in '{folder}' names {key}={shown(target)}, which is not part of bertsecrets; if "
                "you trust it, name it on the command line, too: "
                f"++{key}=<{'class' if key.endswith(TARGET) else 'function'}>."
            )


def outside(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that write or send something outside of the run's folder, by dotted key.

    >>> outside({"save": "model", "logger": {"wandb": {"_target_": "a.b", "mode": "online", "entity": None}}})
    {'save': 'model', 'logger.wandb.mode': 'online'}
    """
    values = {key: _select(config, key) for key in _OUTSIDE}
    loggers = config.get("logger")
    for name, section in loggers.items() if isinstance(loggers, Mapping) else ():
        values |= {f"logger.{name}.{key}": value for key, value in section.items()} if isinstance(section, dict) else {}
    return {key: value for key, value in values.items() if _is_outside(key, value)}


def _select(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _is_outside(key: str, value: Any) -> bool:
    if key in _OUTSIDE:
        return isinstance(value, str)
    group, _, setting = key.partition(".")
    setting = setting.partition(".")[2]
    harmless = value is None or setting in _LOGGED_INSIDE or (setting == "mode" and value in ("offline", "disabled"))
    return group == "logger" and bool(setting) and not harmless


def with_settings_given_again(
    config: DictConfig, present: DictConfig, overrides: Sequence[str], folder: Path
) -> DictConfig:
    """A folder's configuration with what the present command line says on writing and sending outside of the folder.

    Args:
        config: Of the folder.
        present: Composed from the present command line.
        overrides: The settings of the present command line.
        folder: Where ``config`` comes from.

    Raises:
        UserError: If the folder asks for something that neither the command line nor its environment does.
    """
    merged = config.copy()
    again = {override.key_or_group: override for override in parse_overrides(list(overrides))}
    again = {key: override for key, override in again.items() if may_be_given_again(key)}
    for key, override in again.items():
        section = key.rpartition(".")[0]
        if section and OmegaConf.select(merged, section) is None:
            raise UserError(
                f"'{override.input_line}' does not fit the run in '{folder}', which has no {section}; leave it out."
            )
        OmegaConf.update(merged, key, override.value())
    now = plain(present)
    outside_settings = {
        key: value for key, value in outside(plain(merged)).items() if key not in again and _select(now, key) != value
    }
    if outside_settings:
        raise _refused(
            {key: copied(value) for key, value in outside_settings.items()},
            folder,
        )
    return merged


def _refused(outside_settings: Mapping[str, str], folder: Path) -> UserError:
    without = [f"{key}={'offline' if key.endswith('.mode') else 'null'}" for key in outside_settings]
    return UserError(
        f"The configuration in '{folder}' asks to write or send something outside of the folder; repeat it to allow "
        f"that ({' '.join(f'{key}={value}' for key, value in outside_settings.items())}), or go on without "
        f"({shlex.join(without)})."
    )


def may_be_given_again(key: str) -> bool:
    """Whether a setting only says what is written or sent outside of a folder, so that it can be given when
    resuming.
    """
    return key in _OUTSIDE or key.startswith("logger.")


def names_code(key: str) -> bool:
    """Whether a setting may name a class or a function."""
    return any(f".{key}".endswith(f".{end}") for end in (TARGET, *_FUNCTIONS))


def foreign_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with which a configuration names code that is not the project's own, by key."""
    return {key: _select(config, key) for key, target in code_in(config) if target not in project_targets()}


def check_links(folder: Path) -> None:
    """Check that no symbolic link in a folder leads out of it, through which resuming would write.

    Raises:
        UserError: Naming the first that does.
    """
    home = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if (
                path.is_symlink()
                and not path.match(_SUBMITTED)
                and not Path(os.path.realpath(path)).is_relative_to(home)
            ):
                raise UserError(
                    f"'{path}' is a symbolic link to '{os.readlink(path)}', outside of the folder; nothing is written "
                    "through it: put what it names in its place, or remove it."
                )
        if Path(parent).name == "wandb":
            folders[:] = [name for name in folders if not Path(name).match(_WANDB_RUNS)]


def check_sweep_arguments(arguments: Sequence[str], folder: Path) -> None:
    """Check that the command line recorded in a sweep's folder brings no code with it, and acts in the folder only.

    Raises:
        UserError: Naming the first argument that does otherwise.
    """
    if not str(folder.resolve()).isprintable():
        raise UserError(f"The path {shown(str(folder))} has control characters; rename the folder.")
    outside_settings = {}
    for argument in arguments:
        # The folder itself, put there by resume_arguments() in place of whatever its file says.
        if argument in ("-m", "--multirun", "hydra.mode=MULTIRUN", f"hydra.sweep.dir={quoted(str(folder.resolve()))}"):
            continue
        override = None if argument.startswith("-") or not argument.isprintable() else parse_overrides([argument])[0]
        if override is None or not _is_data(override):
            raise UserError(
                f"The sweep in '{folder}' was started with {shown(argument)}, which can run code, or read or write "
                "files of its choice; if you trust it, repeat the sweep's own command with resume=true."
            )
        if any(_is_outside(override.key_or_group, value) for value in _values(override.value())):
            outside_settings[override.key_or_group] = shlex.quote(argument.partition("=")[2])
    if outside_settings:
        raise _refused(outside_settings, folder)


def _is_data(override: Override) -> bool:
    key, values = override.key_or_group, list(_values(override.value()))
    # A section can hold any other setting, and a package puts a group's option anywhere.
    if override.package is not None or not all(isinstance(value, _DATA) for value in values):
        return False
    texts = [_REFERENCE.sub("x", str(value)) for value in values]
    if any("${" in text or TARGET in text for text in (key, *texts)):
        return False
    if names_code(key):
        return not any(":" in text for text in texts)
    if key in _HYDRA_GROUPS or (CONF / key).is_dir():
        patterns = [_OPTION]
    elif re.match("hydra[./]", key) or key == "hydra":
        # Neither a list nor several values.
        texts = [_REFERENCE.sub("x", str(override.value()))]
        patterns = [pattern for name, pattern in _HYDRA_SETTINGS.items() if re.fullmatch(name, key)]
    else:
        patterns = [_FOLDER_NAME if key in _NAMES else ".*"]
    return all(any(re.fullmatch(pattern, text) for pattern in patterns) for text in texts)


def _values(value: Any) -> Iterator[Any]:
    """The single values of a setting's value: those of a list, and those that a sweep takes."""
    if isinstance(value, ChoiceSweep):
        value = value.list
    elif isinstance(value, Glob):
        value = [*value.include, *value.exclude]
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _values(part)
    else:
        yield value.text if isinstance(value, QuotedString) else value
