"""Statements: one file each, read and checked before anything is tested."""

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from bertsecrets.ablation.direct import DirectEffects
from bertsecrets.doors import error_text, resolve
from bertsecrets.errors import UserError, choices
from bertsecrets.importance.sink_heads import Sinks
from bertsecrets.measures.dependency.measure import Dependency
from bertsecrets.measures.shipped import shipped_measures
from bertsecrets.papers.names import files_of, is_path
from bertsecrets.papers.statements.kinds import KINDS
from bertsecrets.papers.statements.sheet import BEFORE, DISABLE, MADE, OR, SEEDS, About, disabled_columns
from bertsecrets.papers.statements.test import Test
from bertsecrets.pruning.rows import CausalGates, Pruning
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.settings import CONF, Settings, shown

_log = logging.getLogger(__name__)

FOLDER = CONF / "statement"
"""The statements of the package, one file each."""


class Statement(Settings):
    """A published statement about heads.

    Args:
        name: Its id: the name of its file.
        source: Paper, and section, table or figure.
        statement: The statement, in one sentence in our words.
        quote, paraphrase: The source's own words, or, if not available, a paraphrase; exactly one of them.
        published: What the paper reports, with its number.
        there, here: What the source measured, and what is measured here: model, data and quantity.
        language: Language of the texts.
        about: Whether it is about the fine-tuned model, the model before fine-tuning, their difference, or fine-tuned
            random weights.
        tasks: The tasks that it applies to; empty for all.
        except_tasks: The tasks that the source excludes.
        one_sided: Why a number on the other side of the threshold does not refute it; empty if it does.
        why: Reason for this test, if there are alternatives.
        test: The test.
    """

    name: str
    source: str = Field(min_length=1, description="a text: paper, and section, table or figure")
    statement: str = Field(min_length=1, description="a sentence")
    quote: str = Field(default="", description="the source's own words, or an empty text")
    paraphrase: str = Field(default="", description="a sentence, or an empty text")
    published: str = Field(min_length=1, description="a sentence")
    there: str = Field(min_length=1, description="a sentence: what the source measured, of which model, on which data")
    here: str = Field(min_length=1, description="a sentence: what is measured here, of which model, on which data")
    language: str = Field(default="English", min_length=1, description="a language")
    about: About = Field(description="tuned, before, change or random")
    tasks: list[str] = Field(default=[], description="a list of names of tasks")
    except_tasks: list[str] = Field(default=[], description="a list of names of tasks")
    one_sided: str = Field(default="", description="a sentence, or an empty text")
    why: str = Field(default="", description="a text, or an empty one")
    test: Test

    @property
    def words(self) -> str:
        """The source's claim, quoted or in our words."""
        return f"“{self.quote}”" if self.quote else f"In our words: {self.paraphrase}"


def files() -> dict[str, Path]:
    """The statements of the package and of installed packages, by name."""
    return files_of("statement")


def read_statements(names: Sequence[str] = ()) -> list[Statement]:
    """Statements by their ids or the paths of their files; all of :func:`files` by default.

    An unreadable file of an installed package is skipped, with a warning.

    Raises:
        UserError: If an id is unknown, a path has a name already in use, or a listed file cannot be read or is not a
            statement.
    """
    check_names(names)
    shipped = files()
    statements = []
    for name in dict.fromkeys(names or shipped):
        path = shipped.get(name, Path(name))
        try:
            statements.append(read_statement(path))
        except UserError as error:
            if path.parent == FOLDER or name not in shipped:
                raise
            _log.warning(f"'{path}' is skipped: {error}")
    return statements


def check_names(names: Sequence[str]) -> None:
    """Raise UserError if a name is not a statement's, or a path ends in the name of another statement."""
    shipped = files()
    for name in names:
        if is_path(name):
            taken = shipped.get(Path(name).stem)
            if taken is not None and taken.resolve() != Path(name).resolve():
                raise UserError(f"'{name}' has the name of '{taken}'; rename the file.")
        elif name not in shipped:
            raise UserError(f"Unknown statement '{name}'; {choices(name, shipped)}.")


def read_keys(path: Path, kind: str) -> dict[str, Any]:
    """The keys and values of the file of a ``statement`` or a ``page``.

    Raises:
        UserError: If it cannot be read, or has other content.
    """
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"The {kind} '{path}' cannot be read ({error}); give the path of a YAML file.") from error
    if not isinstance(content, Mapping):
        raise UserError(f"'{path}' is {shown(content)}; expected the keys and values of a {kind}.")
    return {str(key): value for key, value in content.items()}


def read_statement(path: Path) -> Statement:
    """The statement of a file.

    Raises:
        UserError: If it cannot be read, or a key, a kind of test or a value does not fit.
    """
    section = f"statement {path.stem}"
    values = read_keys(path, "statement")
    test: Any = values.get("test")
    kind = _kind(section, test.get("kind") if isinstance(test, Mapping) else None, path)
    if bool(values.get("quote")) == bool(values.get("paraphrase")):
        raise UserError(f"{section}: give either quote (the source's own words) or paraphrase (in your words).")
    for pair in kind.one_of:
        present = [name for name in pair if test.get(name) not in (None, "")]
        if len(present) != 1:
            raise UserError(
                f"{section}: the test has {'both' if present else 'neither'} {pair[0]} {'and' if present else 'nor'} "
                f"{pair[1]}; give one of them."
            )
    read = kind.read(f"{section}: test", test)
    return Statement.read(section, {**values, "name": path.stem, "test": read})


def _kind(section: str, name: object, path: Path) -> type[Test]:
    """A kind of test by its name; statements of installed packages, but not files given by path, may use the package's
    own.
    """
    if isinstance(name, str) and name in KINDS:
        return KINDS[name]
    # Importing runs code, so only installed packages may name what to import.
    if isinstance(name, str) and "." in name and path in files().values():
        try:
            kind = resolve(name)
        except Exception as error:
            # Importing another package's module can raise anything.
            raise UserError(f"{section}: test.kind '{name}' cannot be imported ({error_text(error)}).") from error
        if isinstance(kind, type) and issubclass(kind, Test):
            return kind
        raise UserError(f"{section}: test.kind '{name}' is not a subclass of Test.")
    raise UserError(f"{section}: test.kind is {shown(name)}; {choices(str(name), KINDS)}.")


def check_columns(statements: Iterable[Statement], runs: Iterable[FinishedRun]) -> None:
    """Raise UserError if a statement refers to a measure or column that neither the package nor any run has."""
    columns_of = {measure: set(columns) for measure, columns in shipped_columns().items()}
    for run in runs:
        for name, (_, view) in run.experiments.items():
            columns_of.setdefault(name, set()).update(column.name for column in view.columns)
    for statement in statements:
        for column in (part for columns in statement.test.columns for part in columns.split(OR)):
            measure, _, name = column.removeprefix(BEFORE).removeprefix(SEEDS).partition("/")
            if column in MADE:
                continue
            if measure not in columns_of:
                raise UserError(
                    f"statement {statement.name}: unknown measure '{measure}'; {choices(measure, columns_of)}."
                )
            if shipped_columns().get(measure, ("",)) and name not in columns_of[measure]:
                raise UserError(
                    f"statement {statement.name}: unknown column '{column}'; {choices(name, columns_of[measure])}."
                )


@cache
def shipped_columns() -> dict[str, tuple[str, ...]]:
    """Measure or analysis -> its columns; none if they depend on the data."""
    columns: dict[str, tuple[str, ...]] = {
        DISABLE: disabled_columns(),
        **{
            experiment.name: tuple(column.name for column in experiment.columns)
            for experiment in (Pruning, CausalGates, Sinks(["sep", "cls"]), DirectEffects)
        },
    }
    depends_on_data = (Dependency,)
    for name, maker in shipped_measures().items():
        kind: Any = maker.func
        fixed = () if kind in depends_on_data else inspect.getattr_static(kind, "columns", None)
        if not isinstance(fixed, tuple):
            try:
                # Columns that only depend on the model's size can be read from a measure for one head.
                fixed = () if isinstance(fixed, property) else kind(1, 1).columns
            except TypeError:
                fixed = ()
        columns[name] = tuple(column.name for column in fixed)
    return columns
