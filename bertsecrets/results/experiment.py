"""Experiments: sources of numbers of heads, with their names, columns and how pages show them."""

from typing import ClassVar

from bertsecrets.errors import UserError
from bertsecrets.grid import Column, Shown
from bertsecrets.results.run import Declaration, check_name


class Experiment:
    """A measure, a disabling sweep or another source of numbers, declared for tables and pages.

    A subclass sets ``name``, ``title`` and ``columns``. Pages show every column in figures and tables, as ``shown`` says.
    """

    name: str
    title: str
    columns: tuple[Column, ...] = ()
    shown: Shown = Shown()
    presenter: ClassVar[str] = ""
    """What makes its pages, a :class:`~bertsecrets.present.presenter.Presenter` as ``module:object``; empty for those of any grid."""

    def declaration(self) -> Declaration:
        """The declaration to record in a run's folder."""
        kind = type(self)
        return Declaration(
            self.name, self.title, f"{kind.__module__}:{kind.__qualname__}", self.columns, self.shown, self.presenter
        )

    def check(self) -> None:
        """Raise UserError unless it has a name, a title and columns that a run's folder can take."""
        kind = type(self).__name__
        for attribute in ("name", "title"):
            if not isinstance(getattr(self, attribute, None), str):
                raise UserError(f"{kind} has no {attribute}; set the attribute {attribute} of its class, a text.")
        if not (isinstance(self.columns, tuple) and all(isinstance(column, Column) for column in self.columns)):
            raise UserError(f"The columns of {kind} are {self.columns!r}; expected a tuple of bertsecrets.Column.")
        check_name(self.name)
