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
from bertsecrets.results.files import copied, quoted
from bertsecrets.results.run import plain
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
_GROUP = r"[\w*][\w*.-]*"
_RECORDED = (
    (r"hydra\.launcher\.(account|partition|qos)", r"[\w.,-]+"),
    (r"hydra\.launcher\.[\w.]+", r"-?\d{1,9}|auto|None"),
    (r"hydra\.sweep\.subdir", rf"{_FOLDER_NAME}(/{_FOLDER_NAME})*"),
    (r"hydra/launcher", _GROUP),
    # Hydra's other settings may hold shell commands, modules to import, addresses or paths.
    (r"hydra([./].*)?", r"(?!)"),
    (r"name|task\.name|model\.name", _FOLDER_NAME),
    (r".*", r".*"),
)
"""Patterns of the settings that are accepted from a sweep's folder and of their values; the first that matches the key
counts. Anything else has to be given again.
"""

_REFERENCE = re.compile(r"\$\{(name|task\.name|model\.name|init|seed)\}")
"""Interpolations that are accepted from a sweep's folder; each must resolve to a name or a number. Other resolvers can
read the environment, and other settings can contain paths.
"""

_DATA = (str, int, float, type(None), RangeSweep, IntervalSweep)
"""Valid values of a recorded setting."""

_LINKS_OF_OTHERS = ".submitit/.submission_file_*.sh"
"""Absolute links from submitit to its scripts, which lead out of a copied sweep. Each name is used once, so nothing is
ever written through them.
"""

_WANDB_RUNS = "*run-*"
"""W&B's run folders, which contain links to its log and are never written to again."""


@functools.cache
def project_targets() -> frozenset[str]:
    """The classes and functions named in the configurations of the project and of installed packages.

    Names rather than packages, because a module gives access to all that it imports.
    """
    files = sorted(path for folder in (CONF, *offered_folders("conf").values()) for path in folder.rglob("*.yaml"))
    contents = (yaml.safe_load(path.read_text("utf-8")) for path in files)
    named = {target for content in contents for _, target in code_in(content) if isinstance(target, str)}
    return frozenset(named | {dotted(point) for point in offers("measures").values()})


def code_in(content: Any) -> Iterator[tuple[str, Any]]:
    """Every class or function named in a configuration at any depth: its dotted key and its name.

    >>> list(code_in({"callbacks": {"mine": {"_target_": "a.B", "parts": [{"_target_": "c.d"}]}}}))
    [('callbacks.mine._target_', 'a.B'), ('callbacks.mine.parts.0._target_', 'c.d')]
    >>> list(code_in({"prune": {"scores": ["exact", "my_package:score"]}}))
    [('prune.scores', 'my_package:score')]
    """
    return ((key, name) for key, value in _settings(content) for name in code_of(key, value))


def code_of(key: str, value: Any) -> list[Any]:
    """The classes or functions named by one setting.

    >>> code_of("prune.scores", "exact"), code_of("trainer._target_", "pytorch_lightning.Trainer")
    ([], ['pytorch_lightning.Trainer'])
    """
    if f".{key}".endswith(f".{TARGET}"):
        return [value]
    texts = value if isinstance(value, (list, tuple)) else [value]
    named = [text for text in texts if isinstance(text, str) and ":" in text]
    return named if any(f".{key}".endswith(f".{end}") for end in _FUNCTIONS) else []


def _settings(content: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting at any depth by its dotted key; a list is one value, followed by the settings inside it."""
    if isinstance(content, Mapping):
        entries = [(str(name), value) for name, value in content.items()]
    else:
        yield key, content
        parts = enumerate(content) if isinstance(content, (list, tuple)) else ()
        entries = [(str(number), part) for number, part in parts if isinstance(part, (Mapping, list, tuple))]
    for name, value in entries:
        yield from _settings(value, f"{key}.{name}" if key else name)


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


def settings_to_repeat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the command line has to repeat if the run in a folder is to be resumed, by dotted key: those
    that name code outside the project, and those that write or send something outside the folder.

    >>> settings_to_repeat({"save": "model", "logger": {"wandb": {"mode": "online", "entity": None}}})
    {'save': 'model', 'logger.wandb.mode': 'online'}
    """
    return {
        key: value
        for key, value in _settings(config)
        if _is_outside(key, value) or not project_targets().issuperset(code_of(key, value))
    }


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
    now = dict(_settings(plain(present)))
    _refuse(
        {
            key: copied(value)
            for key, value in _settings(plain(merged))
            if _is_outside(key, value) and key not in again and now.get(key) != value
        },
        folder,
    )
    return merged


def _refuse(outside: Mapping[str, str], folder: Path) -> None:
    """Raise UserError for settings that write or send something outside a folder."""
    without = [f"{key}={'offline' if key.endswith('.mode') else 'null'}" for key in outside]
    if outside:
        raise UserError(
            f"The configuration in '{folder}' asks to write or send something outside the folder; repeat the setting "
            f"to allow it ({' '.join(f'{key}={value}' for key, value in outside.items())}), or continue without it "
            f"({shlex.join(without)})."
        )


def may_be_given_again(key: str) -> bool:
    """Whether a setting only controls what is written or sent outside a folder, and so may be given when resuming."""
    return key in _OUTSIDE or key.startswith("logger.")


def check_links(folder: Path) -> None:
    """Check that no symbolic link leads out of a folder, because resuming would write through it.

    Raises:
        UserError: If a link leads out of the folder; the message names the first.
    """
    home = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            leaves = path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home)
            if leaves and not path.match(_LINKS_OF_OTHERS):
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
    outside = {}
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
            outside[override.key_or_group] = shlex.quote(argument.partition("=")[2])
    _refuse(outside, folder)


def _is_data(override: Override) -> bool:
    key, values = override.key_or_group, list(_values(override.value()))
    # A section can contain any other setting, and a package option can go anywhere.
    if override.package is not None or not all(isinstance(value, _DATA) for value in values):
        return False
    if key.startswith("hydra."):
        # A single value, not a list.
        values = [override.value()]
    texts = [_REFERENCE.sub("x", str(value)) for value in values]
    if any("${" in text or TARGET in text for text in (key, *texts)) or code_of(key, texts):
        return False
    is_group = (CONF / key).is_dir()
    pattern = _GROUP if is_group else next(value for name, value in _RECORDED if re.fullmatch(name, key))
    return all(re.fullmatch(pattern, text) for text in texts)


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
