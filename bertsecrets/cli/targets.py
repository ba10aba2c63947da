"""Sections that name a class: import it, check its arguments before anything is loaded, and build it."""

import ast
import functools
import importlib.util
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from bertsecrets.doors import error_text, load_named
from bertsecrets.errors import UserError, choices
from bertsecrets.files import is_ours
from bertsecrets.keys import StrategySettings, TrainerSettings
from bertsecrets.settings import Section, arguments_of, shown

_HYDRA_KEYS = ("_target_", "_args_", "_partial_", "_convert_", "_recursive_")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def load_target(section_key: str, section: Mapping[str, Any]) -> Callable[..., Any]:
    """The class or function named by a section.

    Args:
        section_key: Dotted name of the section, for messages.
        section: ``_target_`` and arguments.

    Raises:
        UserError: If there is no name, or it cannot be imported.
    """
    name = section.get("_target_")
    if name is None:
        raise UserError(f"{section_key} has no _target_; name its class, e.g. _target_: my_package.MyClass.")
    if not isinstance(name, str):
        raise UserError(
            f"{section_key}._target_ is {shown(name)}; expected the name of a class, e.g. my_package.MyClass."
        )
    target = load_named(f"{section_key}._target_", name)
    if not callable(target):
        raise UserError(f"{section_key}._target_ is '{name}', which is neither a class nor a function.")
    checked: Callable[..., Any] = target
    return checked


def check_arguments(section_key: str, section: Mapping[str, Any], offered: Iterable[str] = ()) -> Callable[..., Any]:
    """Check the arguments of a section against the signature of its target; return the target.

    Names are checked for any target. Values are checked for the targets of this package, by the types and ranges
    (``Annotated[int, Field(ge=1)]``) in the signature; other targets may accept more than their types declare.

    Args:
        section_key: Dotted name of the section, for messages.
        section: ``_target_`` and arguments.
        offered: Arguments that the program adds and the section cannot set.

    Raises:
        UserError: If the target cannot be imported, or an argument is unknown, missing or does not fit.
    """
    target = load_target(section_key, section)
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:
        return target
    settable = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in _NAMED and name not in set(offered)
    }
    arguments = {str(key): value for key, value in section.items() if key not in _HYDRA_KEYS}
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_names(section_key, arguments, settable)
    if is_of_this_package(target):
        arguments_of(target, tuple(settable)).read(
            section_key, {name: value for name, value in arguments.items() if name in settable}
        )
    elif not section.get("_args_"):
        for name, parameter in settable.items():
            if parameter.default is inspect.Parameter.empty and name not in arguments:
                raise UserError(f"{section_key}.{name} has no value; {section['_target_']} needs one.")
    return target


def check_names(section_key: str, names: Iterable[str], valid: Collection[str]) -> None:
    """Raise UserError for the first of the names of a section's keys that is not valid."""
    for name in names:
        if name not in valid and name not in _HYDRA_KEYS:
            raise UserError(f"Unknown key '{section_key}.{name}'; {choices(name, valid)}.")


def accepted_arguments(
    target: Callable[..., Any], section: Mapping[str, Any], offered: Mapping[str, Any]
) -> dict[str, Any]:
    """The offered arguments that a target accepts and its section does not set."""
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:
        return {}
    return {key: value for key, value in offered.items() if key in parameters and key not in section}


def is_of_this_package(target: Callable[..., Any]) -> bool:
    """Whether a class or function belongs to this package."""
    return is_ours(str(getattr(target, "__module__", "")))


def build(section: Mapping[str, Any], /, **arguments: Any) -> Any:
    """Build the object of a ``_target_`` section and, for a target of another package, of the sections inside it.

    Args:
        section: ``_target_`` and arguments, as plain values.
        arguments: Further arguments, of any type.

    Raises:
        UserError: If the target cannot be imported, or is abstract.
        Exception: Whatever building it raises.
    """
    target = load_target("The section", section)
    missing: frozenset[str] = getattr(target, "__abstractmethods__", frozenset())
    if missing:
        names = " and ".join(sorted(missing))
        raise UserError(f"{section['_target_']} does not define {names}; define it in the class.")
    given = {name: value for name, value in section.items() if name not in _HYDRA_KEYS}
    positional = list(section.get("_args_") or ())
    if not is_of_this_package(target) and section.get("_recursive_", True):
        given, positional = _built(given), _built(positional)
    if section.get("_partial_"):
        return functools.partial(target, *positional, **given, **arguments)
    return target(*positional, **given, **arguments)


def _built(value: Any) -> Any:
    """A value with its sections replaced by the objects they describe."""
    if isinstance(value, Mapping):
        return build(value) if "_target_" in value else {name: _built(part) for name, part in value.items()}
    return [_built(part) for part in value] if isinstance(value, list) else value


def make(section: Section, /, **arguments: Any) -> Any:
    """Build the object of a section with :func:`build`.

    Raises:
        UserError: If the section does not fit its target, or the target cannot be imported.
    """
    try:
        return build(section, **arguments)
    except UserError:
        raise
    except Exception as error:
        # The constructor of a user's class can raise anything.
        raise UserError(
            f"{section.get('_target_')} could not be built ({error_text(error)}); check its section."
        ) from error


_TRAINER = "pytorch_lightning.Trainer"
SET_BY_THE_PROGRAM = {
    "callbacks": "choose callbacks=<name> or analysis=<name>",
    "logger": "choose logger=<name>",
    "default_root_dir": "give hydra.run.dir=<folder>",
    "enable_progress_bar": "give progress=true or false",
    "plugins": "leave it out",
}
"""Trainer arguments set by the program -> what to do instead."""


@functools.cache
def trainer_arguments() -> tuple[str, ...]:
    """The argument names of Lightning's ``Trainer``, each available as ``trainer.<name>=``.

    Read from its source, because importing Lightning takes seconds and help and errors should not wait for it.
    """
    package = importlib.util.find_spec("pytorch_lightning")
    assert package is not None
    assert package.origin is not None
    source = (Path(package.origin).parent / "trainer" / "trainer.py").read_text("utf-8")
    trainer = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Trainer")
    constructor = next(node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    arguments = (*constructor.args.args, *constructor.args.kwonlyargs)
    return tuple(argument.arg for argument in arguments if argument.arg != "self")


def read_trainer(section: Section) -> TrainerSettings:
    """Read the ``trainer`` section.

    Raises:
        UserError: If an argument does not exist, does not fit or is set by the program, or if training would never end.
    """
    for name, advice in SET_BY_THE_PROGRAM.items():
        if name in section:
            raise UserError(f"trainer.{name} is set by the program; {advice}.")
    if section.get("_target_") == _TRAINER:
        # Arguments set by the program were rejected above.
        valid = [argument for argument in trainer_arguments() if argument not in SET_BY_THE_PROGRAM]
        check_names("trainer", section, valid)
    else:
        from pytorch_lightning import Trainer

        target = load_target("trainer", section)
        if not (inspect.isclass(target) and issubclass(target, Trainer)):
            raise UserError(f"trainer._target_ is {section['_target_']}, which is not a Trainer; name {_TRAINER}.")
        check_arguments("trainer", section)
    settings = TrainerSettings.read("trainer", {key: value for key, value in section.items() if key != "_target_"})
    if isinstance(settings.strategy, dict):
        check_arguments("trainer.strategy", settings.strategy)
        StrategySettings.read("trainer.strategy", settings.strategy)
    if settings.max_epochs is None and settings.max_steps == -1 and section.get("max_time") is None:
        raise UserError(
            "trainer.max_epochs is null, so training would not end; set a whole number from 1, or add "
            "trainer.max_steps."
        )
    return settings
