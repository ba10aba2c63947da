"""Doors: what other installed packages, or files, bring to the project.

A package opens a door with an entry point in one of these groups:

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

Names come from the packages' metadata; nothing is imported before it is used.
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
    """What installed packages offer of a kind, by name; nothing is imported.

    Of two packages that offer the same name the first in alphabetical order is taken, and the other named in a warning.

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
    """The object that a package offers under a name of :func:`offers`; None, after a warning, if its import fails."""
    point = offers(kind)[name]
    try:
        return point.load()
    except Exception as error:
        # Importing a user's module can raise anything.
        _skip(kind, point, error_text(error))
        return None


@functools.cache
def free_names(kind: str, taken: tuple[str, ...]) -> tuple[str, ...]:
    """The names that packages offer of a kind, without those that the project itself has, after a warning; nothing is
    imported.
    """
    points = offers(kind)
    for name in sorted(points.keys() & set(taken)):
        _skip(kind, points[name], "bertsecrets itself has this name")
    return tuple(name for name in points if name not in taken)


@functools.cache
def offered_folders(kind: str) -> Mapping[str, Path]:
    """The folders that packages offer of a kind, by name, found without importing the packages."""
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
            _skip(kind, point, f"'{point.value}' names no folder of an installed package")
        else:
            folders[name] = folder
    return folders


def dotted(point: EntryPoint) -> str:
    """The dotted name of what an entry point names, as ``_target_`` takes it.

    >>> dotted(EntryPoint("sharpness", "my_package.heads:Sharpness", "bertsecrets.measures"))
    'my_package.heads.Sharpness'
    """
    return point.value.replace(":", ".")


def with_colon(target: str) -> str:
    """A ``_target_`` as ``module:class``, the form in which runs name their classes; a target with a colon has it
    already.

    >>> with_colon("my_package.heads.Sharpness"), with_colon("my_package.heads:Sharpness")
    ('my_package.heads:Sharpness', 'my_package.heads:Sharpness')
    """
    return target if ":" in target else ":".join(target.rsplit(".", 1))


def resolve(name: str) -> Any:
    """What a dotted name (``package.module.Class``), ``package.module:name`` or a file (``folder/file.py:Class``)
    names.

    Raises:
        AttributeError: If a module lacks the name; the nearest one is in the message.
        Exception: Whatever importing the module raises.
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
    """What a setting names, as :func:`resolve` reads it.

    Args:
        setting: The setting, to begin the sentence of an error.
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
    """An error as part of a sentence.

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
    _log.warning(f"The entry point {_GROUP}{kind} '{point.name}'{package} is left out: {reason}.")
