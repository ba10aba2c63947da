"""Typed settings: a section of the configuration as a checked, frozen object."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Self

from bertsecrets.errors import UserError, choices

_PACKAGE = Path(__file__).resolve().parent

CONF = next(folder for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if folder.is_dir())
"""Folder of the configurations: inside the installed package, or at the top of the repository."""

_LONGEST = 80
"""Characters of a value that a message shows."""


class Settings(BaseModel):
    """A section of the configuration; a subclass declares its keys as fields with types, ranges and defaults.

    Every field has a ``description`` that completes the sentence "expected ...": it is what a user reads about a value
    that does not fit. Values are not converted: ``"1"``, ``true`` and ``1.0`` are no whole numbers.

    >>> from pydantic import Field
    >>> class Sampling(Settings):
    ...     seed: int = Field(default=0, ge=0, description="a whole number from 0")
    >>> Sampling.read("sampling", {"seed": 3})
    Sampling(seed=3)
    >>> Sampling.read("sampling", {"seed": -1})
    Traceback (most recent call last):
    ...
    bertsecrets.errors.UserError: sampling.seed is -1; expected a whole number from 0.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @classmethod
    def read(cls, section: str, values: Any) -> Self:
        """The settings of a section as plain values.

        Args:
            section: Dotted name of the section, for messages; empty for the top level.
            values: Key -> value.

        Raises:
            UserError: If ``values`` is not a mapping, a key is unknown or missing, or a value does not fit its field.
        """
        if not isinstance(values, Mapping):
            raise UserError(f"{section} is {shown(values)}; expected a section of keys and values.")
        try:
            return cls.model_validate({str(key): value for key, value in values.items()})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise UserError(_sentence(cls, section, first["type"], first["loc"], values)) from error


def shown(value: Any) -> str:
    """A value as a message shows it: cut where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _sentence(kind: type[BaseModel], section: str, problem: str, place: Sequence[str | int], values: Any) -> str:
    field = None
    path = [section] if section else []
    value = values
    for name in map(str, place):
        if problem == "extra_forbidden" and name not in kind.model_fields:
            return f"Unknown key '{'.'.join([*path, name])}'; {choices(name, kind.model_fields)}."
        field = kind.model_fields[name]
        path.append(name)
        value = value.get(name)
        nested = _nested(field.annotation)
        if nested is None:
            # Deeper places are those of a list's entries or of a union's branches: the whole value is shown.
            break
        kind = nested
    key = ".".join(path)
    expected = field.description if field is not None else "a section of keys and values"
    if problem == "missing":
        return f"{key} has no value; give {expected}."
    names = get_args(field.annotation) if field is not None else ()
    if problem == "literal_error" and isinstance(value, str) and all(isinstance(name, str) for name in names):
        return f"Unknown {key} '{value}'; {choices(value, names)}."
    return f"{key} is {shown(value)}; expected {expected}."


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, which may be optional; None for any other field."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
