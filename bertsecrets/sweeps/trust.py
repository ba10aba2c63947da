"""Limits on what a third party's folder can make this process do.

The folder of a run or sweep may come from a third party. Its configuration is data: it can choose only classes that the
project's configuration or the present command line names, and it can write outside the folder or send data only if the
present command line also asks for it.
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
"""Suffixes of dotted keys whose values may name a function or class to import, as ``module:function``: scores of
pruning, the source of data, the model's family, the override mode.
"""

_SECTIONS = {"annotation": AnnotationConfig, "data": SourceConfig}
_OUTSIDE = top_level(lambda meaning: meaning.outside) | {
    f"{section}.{name}"
    for section, settings in _SECTIONS.items()
    for name, meaning in meanings(settings).items()
    if meaning.outside
}
"""Settings that, if set to a text, write or send something outside the run's folder."""

_LOGGED_INSIDE = (TARGET, "project", "job_type", "init_timeout")
"""Logger settings that send nothing."""

_FOLDER_NAME = r"\w[\w.=,+ -]*"
_OPTION = r"[\w*][\w*.-]*"
_WORD = r"[\w.,-]+|None"
_HYDRA_SETTINGS = {
    # Other settings are shell commands, modules to import, addresses or paths.
    r"hydra\.(launcher|sweeper)\.[\w.]+": r"-?\d{1,9}|auto|None",
    r"hydra\.launcher\.(account|partition|qos)": _WORD,
    r"hydra\.sweeper\.(direction|sampler)": _WORD,
    r"hydra\.sweep\.subdir": rf"{_FOLDER_NAME}(/{_FOLDER_NAME})*",
}
"""Hydra settings that are accepted from a sweep's folder, and their valid values; others have to be given again."""

_HYDRA_GROUPS = ("hydra/launcher", "hydra/sweeper")

_NAMES = ("name", "task.name", "model.name")
"""Settings that name folders."""

_REFERENCE = re.compile(r"\$\{(name|task\.name|model\.name|init|seed)\}")
"""Interpolations that are accepted from a sweep's folder; each must resolve to a name or a number. Other resolvers can
read the environment, and other settings can contain paths.
"""

_DATA = (str, int, float, type(None), RangeSweep, IntervalSweep)
"""Valid values of a recorded setting."""

_WANDB_RUNS = "*run-*"
"""W&B's run folders, which contain links to its log and are never written to again."""

_SUBMITTED = ".submitit/.submission_file_*.sh"
"""Absolute links from submitit to its scripts, which lead out of a copied sweep. Each name is used once, so nothing is
ever written through them.
"""


@functools.cache
def project_targets() -> frozenset[str]:
    """The classes and functions named in the configurations of the project and of installed packages."""
    files = sorted(path for folder in (CONF, *offered_folders("conf").values()) for path in folder.rglob("*.yaml"))
    contents = (yaml.safe_load(path.read_text("utf-8")) for path in files)
    named = {target for content in contents for _, target in code_in(content) if isinstance(target, str)}
    return frozenset(named | {dotted(point) for point in offers("measures").values()})


def code_in(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every class or function named in a configuration at any depth: its dotted key and its name.

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
    """Check that a folder's configuration only names code of the project or of the present command line.

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
                "you trust it, repeat it on the command line: "
                f"++{key}=<{'class' if key.endswith(TARGET) else 'function'}>."
            )


def outside(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that write or send something outside the run's folder, by dotted key.

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
    """A folder's configuration with the present command line's settings for writing and sending outside the folder.

    Args:
        config: Of the folder.
        present: Composed from the present command line.
        overrides: The settings of the present command line.
        folder: Where ``config`` comes from.

    Raises:
        UserError: If the folder asks for something that neither the command line nor the environment asks for.
    """
    merged = config.copy()
    again = {override.key_or_group: override for override in parse_overrides(list(overrides))}
    again = {key: override for key, override in again.items() if may_be_given_again(key)}
    for key, override in again.items():
        section = key.rpartition(".")[0]
        if section and OmegaConf.select(merged, section) is None:
            raise UserError(
                f"'{override.input_line}' does not fit the run in '{folder}', which has no {section}; remove it."
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
        f"The configuration in '{folder}' asks to write or send something outside the folder; repeat the setting to "
        f"allow it ({' '.join(f'{key}={value}' for key, value in outside_settings.items())}), or continue without it "
        f"({shlex.join(without)})."
    )


def may_be_given_again(key: str) -> bool:
    """Whether a setting only controls what is written or sent outside a folder, and so may be given when resuming."""
    return key in _OUTSIDE or key.startswith("logger.")


def names_code(key: str) -> bool:
    """Whether a setting may name a class or a function."""
    return any(f".{key}".endswith(f".{end}") for end in (TARGET, *_FUNCTIONS))


def foreign_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that name code outside the project, by key."""
    return {key: _select(config, key) for key, target in code_in(config) if target not in project_targets()}


def check_links(folder: Path) -> None:
    """Check that no symbolic link leads out of a folder, because resuming would write through it.

    Raises:
        UserError: If a link leads out of the folder; the message names the first.
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
                    f"'{path}' is a symbolic link to '{os.readlink(path)}', outside the folder, and nothing is "
                    "written through it; replace the link with its target, or remove it."
                )
        if Path(parent).name == "wandb":
            folders[:] = [name for name in folders if not Path(name).match(_WANDB_RUNS)]


def check_sweep_arguments(arguments: Sequence[str], folder: Path) -> None:
    """Check that the command line recorded in a sweep's folder runs no foreign code and acts only in the folder.

    Raises:
        UserError: If an argument does otherwise; the message names the first.
    """
    if not str(folder.resolve()).isprintable():
        raise UserError(f"The path {shown(str(folder))} has control characters; rename the folder.")
    outside_settings = {}
    for argument in arguments:
        # The folder itself, which resume_arguments() inserts in place of the recorded value.
        if argument in ("-m", "--multirun", "hydra.mode=MULTIRUN", f"hydra.sweep.dir={quoted(str(folder.resolve()))}"):
            continue
        override = None if argument.startswith("-") or not argument.isprintable() else parse_overrides([argument])[0]
        if override is None or not _is_data(override):
            raise UserError(
                f"The sweep in '{folder}' was started with {shown(argument)}, which can run code or access arbitrary "
                "files; if you trust it, repeat the sweep's own command with resume=true."
            )
        if any(_is_outside(override.key_or_group, value) for value in _values(override.value())):
            outside_settings[override.key_or_group] = shlex.quote(argument.partition("=")[2])
    if outside_settings:
        raise _refused(outside_settings, folder)


def _is_data(override: Override) -> bool:
    key, values = override.key_or_group, list(_values(override.value()))
    # A section can contain any other setting, and a package option can go anywhere.
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
        # A single value, not a list.
        texts = [_REFERENCE.sub("x", str(override.value()))]
        patterns = [pattern for name, pattern in _HYDRA_SETTINGS.items() if re.fullmatch(name, key)]
    else:
        patterns = [_FOLDER_NAME if key in _NAMES else ".*"]
    return all(any(re.fullmatch(pattern, text) for pattern in patterns) for text in texts)


def _values(value: Any) -> Iterator[Any]:
    """The single values of a setting: the items of a list, or the values of a sweep."""
    if isinstance(value, ChoiceSweep):
        value = value.list
    elif isinstance(value, Glob):
        value = [*value.include, *value.exclude]
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _values(part)
    else:
        yield value.text if isinstance(value, QuotedString) else value
