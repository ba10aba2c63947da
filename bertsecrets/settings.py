"""Typed settings: a section of the configuration as a checked, frozen object."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from typing_extensions import Self

from bertsecrets.doors import free_names, offered_folders
from bertsecrets.errors import UserError, choices

_P = ParamSpec("_P")

SHORTEST, LONGEST = 8, 100_000
"""The range of ``max_length``; with fewer tokens than 8, special tokens leave hardly any room for words."""

Section = dict[str, Any]
"""A section of the configuration as plain values."""

_PACKAGE = Path(__file__).resolve().parent

CONF = next(folder for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if folder.is_dir())
"""Folder of the configurations: inside the installed package, or at the top of the repository."""


def configurations(group: str, extra: Path | None = None) -> dict[str, Path]:
    """The files of a group of the configuration by name: of ``conf/``, of installed packages, and of a folder of the
    user's.

    A file of ``conf/`` hides one of the same name in a package, and that one the user's, as in Hydra's search path.
    """
    added = [] if extra is None else [extra]
    folders = [*added, *reversed([*offered_folders("conf").values()]), CONF]
    files = {path.stem: path for folder in folders for path in (folder / group).glob("*.yaml")}
    return dict(sorted(files.items()))


def unconfigured(kind: str, group: str) -> list[str]:
    """The names that installed packages give to extensions of a kind without a file in the kind's group.

    Args:
        kind: A group of entry points without its prefix, e.g. ``"measures"``.
        group: The group of the configuration in which it is chosen, e.g. ``"measure"``.
    """
    files = configurations(group)
    # A package's own file configures its extension; only one of conf/ has a name that it cannot take.
    own = tuple(name for name, path in files.items() if path.is_relative_to(CONF))
    return [name for name in free_names(kind, own) if name not in files]


_LONGEST = 80
"""Characters of a value that a message shows."""

_SECTION = "a section of keys and values"

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "null",
    Any: "any value",
}


LARGEST = 2**32
"""Whole numbers in a configuration are smaller: more than any count, size or seed needs, and safe for every library."""


@dataclass(frozen=True)
class Meaning:
    """What a setting means to those who keep, compare, repeat and resume runs: metadata of its field, said nowhere
    else.

    Args:
        numbers: Whether it may change what a run computes. What changes no number neither tells conditions apart nor
            belongs to the model.
        conditions: Whether runs with other values are other conditions: ``yes``, ``no``, or ``alone``: only where runs
            differ in nothing else, as it says how, or how much, something is computed.
        model: Whether it belongs to how a model came about.
        analyses: Whether an analysis uses it; otherwise it only concerns the training of the analysed model.
        outside: Whether it writes or sends something outside of the run's folder if it is a text.
        with_resume: Whether it can be given with ``resume=<folder>``.
        notebook: Whether :func:`bertsecrets.disable` takes it.
    """

    numbers: bool = True
    conditions: Literal["yes", "no", "alone"] = "yes"
    model: bool = True
    analyses: bool = True
    outside: bool = False
    with_resume: bool = False
    notebook: bool = True

    @property
    def tells_apart(self) -> bool:
        """Whether runs that differ in it may be different conditions."""
        return self.numbers and self.conditions != "no"


def meanings(declared: type[BaseModel] | Callable[..., Any]) -> dict[str, Meaning]:
    """What the fields of settings, or the arguments of a class or function, mean, by name.

    >>> class Following(Settings):
    ...     seed: int
    ...     progress: Annotated[bool, Meaning(numbers=False)] = True
    >>> [name for name, meaning in meanings(Following).items() if meaning.numbers]
    ['seed']
    """
    if isinstance(declared, type) and issubclass(declared, BaseModel):
        metadata = {name: field.metadata for name, field in declared.model_fields.items()}
    else:
        signed: Any = declared.__init__ if inspect.isclass(declared) else declared
        hints = get_type_hints(signed, include_extras=True)
        metadata = {name: list(getattr(hint, "__metadata__", ())) for name, hint in hints.items()}
    return {
        name: next((part for part in parts if isinstance(part, Meaning)), Meaning()) for name, parts in metadata.items()
    }


def _check_name(name: str) -> str:
    parts = Path(name).parts
    if not name.isprintable() or ".." in parts or Path(name).is_absolute() or any(len(p.encode()) > 200 for p in parts):
        raise ValueError("not a name")
    return name


Name = Annotated[
    str,
    AfterValidator(_check_name),
    Field(min_length=1, description="a name for folders: printable, at most 200 bytes, not absolute and without '..'"),
]
"""A name that is used for folders and files below the output folder."""


class Settings(BaseModel):
    """A section of the configuration; a subclass declares its keys as fields with types, ranges and defaults.

    Every field has a ``description`` that completes the sentence "expected ...": it is what a user reads about a value
    that does not fit. Values are not converted: ``"1"``, ``true`` and ``1.0`` are no whole numbers,
    and ``nan`` and ``inf`` are no numbers.

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

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    conf: ClassVar[tuple[str, ...]] = ()
    """The files of ``conf/`` that state the defaults of these keys, as ``file`` or ``file:section``; the first that
    states a key counts."""

    @classmethod
    def defaults(cls) -> Section:
        """What :attr:`conf` states, without keys whose value comes from another section."""
        stated = {key: value for file in reversed(cls.conf) for key, value in _stated(file).items()}
        return {key: stated[key] for key in cls.model_fields if key in stated}

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, values: Any) -> Any:
        return {**cls.defaults(), **values} if cls.conf and isinstance(values, Mapping) else values

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
            # A misspelt key is also a missing one.
            first = min(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
            raise UserError(_sentence(cls, section, first["type"], first["loc"], values)) from error


class _Arguments(Settings, arbitrary_types_allowed=True):
    """Arguments of a class or function, some of which may be objects that no configuration can give."""


@functools.lru_cache(maxsize=256)
def arguments_of(target: Callable[..., Any], names: tuple[str, ...]) -> type[Settings]:
    """The arguments of a class or function with these names, as typed settings."""
    hints = get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if parameter.default is inspect.Parameter.empty else parameter.default)
        for name, parameter in inspect.signature(target).parameters.items()
        if name in names
    }
    return create_model("Arguments", __base__=_Arguments, **fields)


def typed(constructor: Callable[_P, None]) -> Callable[_P, None]:
    """Check the arguments of a constructor by the types and ranges of its signature, as a configuration's are.

    The constructor raises UserError for the first argument that does not fit.
    """
    # Not pydantic's own validate_call: its messages name no key, and a configuration's section would be checked by
    # other rules.
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> None:
        (_, built), *arguments = signature.bind(*args, **kwargs).arguments.items()
        values = dict(arguments)
        arguments_of(constructor, tuple(values)).read(type(built).__name__, values)
        constructor(*args, **kwargs)

    return checked


@functools.cache
def _stated(file: str) -> Section:
    # PyYAML alone reads 5e-5 as a text; OmegaConf, as in Hydra, as a number.
    from omegaconf import OmegaConf

    name, _, section = file.partition(":")
    content: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    values = content[section] if section else content
    return {key: value for key, value in values.items() if not str(value).startswith(("${", "???"))}


def shown(value: Any) -> str:
    """A value as a message shows it: as in a configuration, and cut where it is long.

    >>> shown(None), shown(True), shown("1")
    ('null', 'true', "'1'")
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    # A long text takes time and memory to be quoted.
    text = repr(value[: _LONGEST + 1] if isinstance(value, str) else value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def check_numbers(values: Any, key_path: str = "") -> None:
    """Raise UserError, naming the key, if a configuration holds a whole number of ``LARGEST`` or beyond."""
    if type(values) is int and abs(values) >= LARGEST:
        raise UserError(f"{key_path} is {shown(values)}; expected a number below {LARGEST}.")
    if isinstance(values, Mapping):
        for key, value in values.items():
            check_numbers(value, f"{key_path}.{key}" if key_path else str(key))
    elif isinstance(values, list):
        for value in values:
            check_numbers(value, key_path)


def in_words(annotation: Any) -> str:
    """What a type expects, to complete the sentence "expected ...".

    >>> in_words(int | None), in_words(Sequence[str]), in_words(Literal["zip", "all"])
    ('a whole number or null', 'a list', 'zip or all')
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        described = (part.description for part in arguments[1:] if isinstance(part, FieldInfo) and part.description)
        return next(described, in_words(arguments[0]))
    if origin is Literal:
        return " or ".join("null" if name is None else str(name) for name in arguments)
    if origin in (Union, UnionType):
        return " or ".join(in_words(kind) for kind in arguments)
    kind = origin or annotation
    if isinstance(kind, type) and issubclass(kind, (Sequence, Mapping)) and kind is not str:
        return _SECTION if issubclass(kind, Mapping) else "a list"
    return _WORDS.get(kind, "a value of another type")


def _sentence(kind: type[BaseModel], section: str, problem: str, location: Sequence[str | int], values: Any) -> str:
    field = None
    path = [section] if section else []
    value = values
    nested: type[BaseModel] | None = kind
    for name in map(str, location):
        if nested is not None:
            if problem == "extra_forbidden" and name not in nested.model_fields:
                return f"Unknown key '{'.'.join([*path, name])}'; {choices(name, nested.model_fields)}."
            field = nested.model_fields[name]
            value = value.get(name)
            nested = _nested(field.annotation)
        elif isinstance(value, Mapping) and name in value:
            value = value[name]
        else:
            # Places in a list, and the branches of a union: the whole value is shown.
            break
        path.append(name)
    key = ".".join(path)
    expected = _SECTION if field is None else field.description or in_words(field.annotation)
    if problem == "missing":
        return f"{key} has no value; give {expected}."
    names = get_args(field.annotation) if field is not None else ()
    if problem == "literal_error" and isinstance(value, str) and all(isinstance(name, str) for name in names):
        return f"Unknown {key} '{value}'; {choices(value, names)}."
    return f"{key} is {shown(value)}; expected {expected}."


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, which may be optional; None for any other field."""
    for kind in (annotation, *get_args(annotation)):
        # In Python 3.10 tuple[int] passes for a class.
        if get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
