"""Plug-ins: extensions from other installed packages or from files.

A package declares an extension with an entry point in one of these groups:

===============================  ==========================================================================
``bertsecrets.measures``         a subclass of :class:`~bertsecrets.measures.base.Measure`
``bertsecrets.presenters``       a :class:`~bertsecrets.present.presenter.Presenter`
``bertsecrets.families``         a :class:`~bertsecrets.models.families.base.Family`
``bertsecrets.task_heads``       a subclass of :class:`~bertsecrets.task_heads.base.TaskHead`
``bertsecrets.sources``          a class that :func:`~bertsecrets.data.sources.make_source` can build
``bertsecrets.scores``           a :data:`~bertsecrets.pruning.sets.Score`
``bertsecrets.override_modes``   a mode of :func:`~bertsecrets.attention.override.override`
``bertsecrets.statements``       a folder of statements, as ``package.folder``
``bertsecrets.pages``            a folder of pages of statements, figures and tables, as ``package.folder``
``bertsecrets.conf``             a folder laid out like ``conf/``, as ``package.folder``
===============================  ==========================================================================

Names come from the packages' metadata; nothing is imported until it is used.
"""

import functools
import importlib
import importlib.util
import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from bertsecrets.errors import UserError, choices
from bertsecrets.files import load_file

_log = logging.getLogger(__name__)

_GROUP = "bertsecrets."

KINDS = (
    "conf",
    "measures",
    "presenters",
    "families",
    "task_heads",
    "sources",
    "scores",
    "override_modes",
    "statements",
    "pages",
)
"""The groups of entry points without their prefix."""


@functools.cache
def offers(kind: str) -> Mapping[str, EntryPoint]:
    """The entry points of a kind in installed packages, by name, without importing them.

    If two packages use the same name, the alphabetically first wins and a warning names the other.

    Args:
        kind: A group without its prefix, e.g. ``"measures"``.
    """
    points: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=f"{_GROUP}{kind}"), key=lambda point: (point.name, point.value)):
        first = points.setdefault(point.name, point)
        if first.value != point.value:
            _skip(kind, point, f"'{first.value}' already has this name")
    return points


@functools.cache
def load_offer(kind: str, name: str) -> Any:
    """The object behind a name of :func:`offers`; None, with a warning, if its import fails."""
    point = offers(kind)[name]
    try:
        return point.load()
    except Exception as error:
        # Importing a user's module can raise anything.
        _skip(kind, point, error_text(error))
        return None


@functools.cache
def free_names(kind: str, taken: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a kind in installed packages without those ``taken`` by bertsecrets, which cause a warning."""
    points = offers(kind)
    for name in sorted(points.keys() & set(taken)):
        _skip(kind, points[name], "bertsecrets itself has this name")
    return tuple(name for name in points if name not in taken)


@functools.cache
def offered_folders(kind: str) -> Mapping[str, Path]:
    """The folders of a kind in installed packages, by name, found without importing the packages."""
    folders: dict[str, Path] = {}
    for name, point in offers(kind).items():
        top, *rest = point.value.split(".")
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError) as error:
            _skip(kind, point, error_text(error))
            continue
        candidates = [Path(candidate, *rest) for candidate in (spec and spec.submodule_search_locations) or ()]
        folder = next((candidate for candidate in candidates if candidate.is_dir()), None)
        if folder is None:
            _skip(kind, point, f"no package has the folder '{point.value}' (does its wheel contain YAML files?)")
        else:
            folders[name] = folder
    return folders


def dotted(point: EntryPoint) -> str:
    """The value of an entry point as a dotted name, the form of ``_target_``.

    >>> dotted(EntryPoint("sharpness", "my_package.heads:Sharpness", "bertsecrets.measures"))
    'my_package.heads.Sharpness'
    """
    return point.value.replace(":", ".")


def with_colon(target: str) -> str:
    """A ``_target_`` as ``module:class``, the form in which runs store classes.

    >>> with_colon("my_package.heads.Sharpness"), with_colon("my_package.heads:Sharpness")
    ('my_package.heads:Sharpness', 'my_package.heads:Sharpness')
    """
    return target if ":" in target else ":".join(target.rsplit(".", 1))


def resolve(name: str) -> Any:
    """The object with a name: ``package.module.Class``, ``package.module:name`` or ``folder/file.py:Class``.

    Raises:
        AttributeError: If a module lacks the name; the message suggests the nearest one.
        Exception: Any error raised while importing the module.
    """
    module, _, attribute = name.rpartition(":")
    if module.endswith(".py"):
        return _attribute(load_file(Path(module)), module, attribute)
    first, *rest = name.replace(":", ".").split(".")
    value: Any = importlib.import_module(first)
    path = first
    for part in rest:
        parent, path = path, f"{path}.{part}"
        is_package = isinstance(value, ModuleType) and hasattr(value, "__path__")
        if not hasattr(value, part) and is_package and importlib.util.find_spec(path):
            value = importlib.import_module(path)
        else:
            value = _attribute(value, parent, part)
    return value


def load_named(setting: str, name: str) -> Any:
    """The object named by a setting, by :func:`resolve`.

    Args:
        setting: The setting's name, for the error message.
        name: Its value.

    Raises:
        UserError: If it cannot be imported.
    """
    try:
        return resolve(name)
    except Exception as error:
        # Importing a user's module can raise anything.
        raise UserError(f"{setting} is '{name}', which cannot be imported ({error_text(error)}).") from error


def error_text(error: BaseException) -> str:
    """Type and message of an error, without the final full stop.

    >>> error_text(ImportError("No module named 'heads'."))
    "ImportError: No module named 'heads'"
    """
    text = " ".join(str(error).split()).rstrip(".")
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def _attribute(value: Any, path: str, name: str) -> Any:
    if hasattr(value, name):
        return getattr(value, name)
    nearest = choices(name, [public for public in vars(value) if not public.startswith("_")]).partition("?")[0]
    hint = f"; {nearest}?" if nearest.startswith("did") else ""
    raise AttributeError(f"{path} has no '{name}'{hint}")


def _skip(kind: str, point: EntryPoint, reason: str) -> None:
    package = f" of {point.dist.name}" if point.dist is not None else ""
    _log.warning(f"The entry point {_GROUP}{kind} '{point.name}'{package} is skipped: {reason}.")
