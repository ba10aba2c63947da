"""Experiments: sources of numbers per head, with their names, columns and presentation."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from bertsecrets.errors import UserError
from bertsecrets.grid import Column, Shown
from bertsecrets.settings import shown

INITIAL, RANDOM = "initial", "random"
"""Stages of comparison models: the model before fine-tuning, and a model with random weights."""

_RUN_FILES = frozenset({"begun", "experiments", "findings", "finished", "scores", "sweep", "wandb"})
"""Names of JSON files in the run's folder that experiments must not overwrite."""


@dataclass(frozen=True)
class Declaration:
    """A run's record of an experiment, from which pages are made without a model.

    Args:
        name: Name of the measure in the head table.
        title: Heading of its section.
        experiment: Its class, ``module:class``.
        columns: The columns.
        shown: How pages show them.
        presenter: The presenter of its pages, ``module:object``; empty for the standard grid pages.
    """

    name: str
    title: str
    experiment: str
    columns: tuple[Column, ...] = ()
    shown: Shown = field(default_factory=Shown)
    presenter: str = ""


def check_name(name: str) -> None:
    """Raise UserError if an experiment of this name would overwrite files of the run or write outside its folder."""
    if not name or name in _RUN_FILES or Path(name).name != name or name.startswith("."):
        reason = "which is a file in the run's folder" if name in _RUN_FILES else "which is not the name of a file"
        raise UserError(f"An experiment is called {shown(name)}, {reason}; give its class another name.")


class Experiment:
    """A measure, a disabling sweep or another source of numbers, declared for tables and pages.

    A subclass sets ``name``, ``title`` and ``columns``. Pages show every column in figures and tables according to
    ``shown``.
    """

    name: str
    title: str
    columns: tuple[Column, ...] = ()
    shown: Shown = Shown()
    presenter: ClassVar[str] = ""
    """Its :class:`~bertsecrets.present.presenter.Presenter` as ``module:object``; empty for the standard grid pages."""

    def declaration(self) -> Declaration:
        """The declaration to record in a run's folder."""
        kind = type(self)
        return Declaration(
            self.name, self.title, f"{kind.__module__}:{kind.__qualname__}", self.columns, self.shown, self.presenter
        )

    def check_declaration(self) -> None:
        """Raise UserError unless it has a valid name, title and columns."""
        kind = type(self).__name__
        for attribute in ("name", "title"):
            value = getattr(self, attribute, None)
            if not isinstance(value, str) or not value:
                raise UserError(f"{kind} has no {attribute}; set the attribute {attribute} of its class, a text.")
        if not (isinstance(self.columns, tuple) and all(isinstance(column, Column) for column in self.columns)):
            raise UserError(
                f"The columns of {kind} are {self.columns!r}; expected a tuple of bertsecrets.Column, with a comma "
                "at the end if there is one column."
            )
        check_name(self.name)
