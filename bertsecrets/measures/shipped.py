"""The measures of ``conf/measure`` and of installed packages with their default settings."""

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from functools import partial

from omegaconf import DictConfig, OmegaConf

from bertsecrets.doors import dotted, error_text, offers, resolve
from bertsecrets.errors import UserError, choices
from bertsecrets.measures.base import Measure
from bertsecrets.settings import CONF, configurations, unconfigured

_log = logging.getLogger(__name__)

MeasureMaker = Callable[[int, int], Measure]
"""Builds a measure from the numbers of layers and heads, for example its class."""


def shipped_names() -> list[str]:
    """The names of all measures of ``conf/measure`` and of installed packages."""
    return sorted([*configurations("measure"), *unconfigured("measures", "measure")])


def shipped_measure(name: str) -> partial[Measure]:
    """A measure's class with its arguments in ``train.py``; called with the numbers of layers and heads.

    Hydra composes in only one thread of a program; this reads the same files in any thread.

    Args:
        name: One of :func:`shipped_names`.

    Raises:
        UserError: If a package's class cannot be imported.
    """
    files = configurations("measure")
    if name in files:
        section = DictConfig(OmegaConf.load(files[name]))
    else:
        # A package may provide a measure without a configuration.
        section = OmegaConf.create({name: {"_target_": dotted(offers("measures")[name])}})
    for default in section.pop("defaults", []):
        ((key, option),) = default.items()
        group, _, section_path = key.lstrip("/").partition("@")
        OmegaConf.update(section, section_path, OmegaConf.load(configurations(group)[option]))
    section["every_n_validations"] = 1
    section["framenet"] = OmegaConf.load(CONF / "framenet" / "default.yaml")
    content = OmegaConf.to_container(section, resolve=True)
    assert isinstance(content, dict)
    # How often a measure is computed, and which columns W&B tracks, are not arguments of its class.
    arguments = {key: value for key, value in content[name].items() if key not in ("every_n_validations", "tracked")}
    target = arguments.pop("_target_")
    try:
        return partial(resolve(target), **arguments)
    except Exception as error:
        # Importing a user's module can raise anything.
        raise UserError(f"The measure '{name}' cannot be imported from '{target}' ({error_text(error)}).") from error


def makers(measures: Sequence[str | MeasureMaker]) -> list[MeasureMaker]:
    """The builders of measures given by name or class.

    Raises:
        UserError: If there is no such measure.
    """
    names = [name for name in measures if isinstance(name, str)]
    for name in names:
        if name not in shipped_names():
            raise UserError(f"Unknown measure '{name}'; {choices(name, shipped_names())}.")
    for maker in measures:
        named = isinstance(maker, str) or callable(maker)
        if not named or isinstance(maker, Measure) or (inspect.isclass(maker) and not issubclass(maker, Measure)):
            raise UserError(f"{maker!r} is not the name or class of a measure; give a subclass of Measure.")
    return [shipped_measure(maker) if isinstance(maker, str) else maker for maker in measures]


@functools.cache
def shipped_measures() -> dict[str, partial[Measure]]:
    """All measures by name; measures of packages that cannot be imported are skipped with a warning."""
    measures = {}
    for name in shipped_names():
        try:
            measures[name] = shipped_measure(name)
        except UserError as error:
            _log.warning(f"{error} It is skipped.")
    return measures
