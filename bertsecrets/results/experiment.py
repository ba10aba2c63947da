"""Experiments: sources of numbers of heads, with their names, columns and how pages show them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from bertsecrets.errors import UserError
from bertsecrets.grid import Column, Shown
from bertsecrets.settings import shown

INITIAL, RANDOM = "initial", "random"
"""Stages of models to compare with: the model before fine-tuning, and one with random weights."""

_RUN_FILES = frozenset({"begun", "experiments", "finished", "scores", "sweep", "wandb"})
"""Names of JSON files of the run's folder, beside which experiments write theirs."""


@dataclass(frozen=True)
class Declaration:
    """A run's record of an experiment, from which pages are made without a model.

    Args:
        name: Name of the measure in the head table.
        title: Heading of its section.
        experiment: The class that made it, ``module:class``.
        columns: The columns.
        shown: How pages show them.
        presenter: What makes its pages, ``module:object``; empty for those of any grid.
    """

    name: str
    title: str
    experiment: str
    columns: tuple[Column, ...] = ()
    shown: Shown = field(default_factory=Shown)
    presenter: str = ""


def check_name(name: str) -> None:
    """Raise UserError if an experiment of this name would write over files of the run, or outside of its folder."""
    if not name or name in _RUN_FILES or Path(name).name != name or name.startswith("."):
        reason = "which is a file of the run's folder" if name in _RUN_FILES else "which is not the name of a file"
        raise UserError(f"An experiment is called {shown(name)}, {reason}; give its class another name.")


class Experiment:
    """A measure, a disabling sweep or another source of numbers, declared for tables and pages.

    A subclass sets ``name``, ``title`` and ``columns``. Pages show every column in figures and tables, as ``shown``
    says.
    """

    name: str
    title: str
    columns: tuple[Column, ...] = ()
    shown: Shown = Shown()
    presenter: ClassVar[str] = ""
    """What makes its pages, a :class:`~bertsecrets.present.presenter.Presenter` as ``module:object``; empty for those
    of any grid.
    """

    def declaration(self) -> Declaration:
        """The declaration to record in a run's folder."""
        kind = type(self)
        return Declaration(
            self.name, self.title, f"{kind.__module__}:{kind.__qualname__}", self.columns, self.shown, self.presenter
        )

    def check_declaration(self) -> None:
        """Raise UserError unless it has a name, a title and columns that a run's folder can take."""
        kind = type(self).__name__
        for attribute in ("name", "title"):
            if not isinstance(getattr(self, attribute, None), str):
                raise UserError(f"{kind} has no {attribute}; set the attribute {attribute} of its class, a text.")
        if not (isinstance(self.columns, tuple) and all(isinstance(column, Column) for column in self.columns)):
            raise UserError(f"The columns of {kind} are {self.columns!r}; expected a tuple of bertsecrets.Column.")
        check_name(self.name)
