"""Experiments: sources of numbers of heads, with their names, columns and sections of pages."""

import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar

from bertsecrets.doors import load_named, offers
from bertsecrets.errors import UserError
from bertsecrets.files import is_ours
from bertsecrets.grid import Column
from bertsecrets.results.report.content import Section
from bertsecrets.results.run import Declaration, check_name
from bertsecrets.results.sections import compare_conditions, describe_columns
from bertsecrets.results.views import Comparison, MeasureView


class Experiment:
    """A measure, a disabling sweep or another source of numbers, described for tables and pages.

    A subclass sets ``name``, ``title`` and ``columns``. Its sections are made from views of a run's folder, without a
    model; by default they show every column in figures and tables.
    """

    name: str
    title: str
    columns: tuple[Column, ...] = ()
    reads_task: ClassVar[bool] = False
    """Whether its findings speak of what fine-tuning on the task did; a model that learned nothing has none of them."""
    effects: ClassVar[bool] = False
    """Whether its numbers are changes of a score, whose losses are drawn from white to dark red."""

    of_one_run: ClassVar[bool] = False
    """Whether its numbers are shown for one run at a time, and not on pages that compare runs."""

    about: ClassVar[str] = ""
    """The last paragraph of the default section: how to read the numbers, and what they do not show."""

    def declaration(self) -> Declaration:
        """The declaration to record in a run's folder."""
        kind = type(self)
        return Declaration(self.name, self.title, f"{kind.__module__}:{kind.__qualname__}", self.columns)

    def check(self) -> None:
        """Raise UserError unless it has a name, a title and columns that a run's folder can take."""
        kind = type(self).__name__
        for attribute in ("name", "title"):
            if not isinstance(getattr(self, attribute, None), str):
                raise UserError(f"{kind} has no {attribute}; set the attribute {attribute} of its class, a text.")
        if not (isinstance(self.columns, tuple) and all(isinstance(column, Column) for column in self.columns)):
            raise UserError(f"The columns of {kind} are {self.columns!r}; expected a tuple of bertsecrets.Column.")
        check_name(self.name)

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """The section of a run's report; None if there is nothing to show."""
        return describe_columns(view, lowest=cls.effects, about=cls.about)

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """The section of a page that compares runs; None if there is nothing to compare."""
        return None if cls.of_one_run else compare_conditions(comparison)

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """Columns of text for the table of all heads, such as a verdict: heading -> text ``[layers][heads]``."""
        return {}

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """Summary values for W&B, by name, besides the means of the columns."""
        return {}

    @classmethod
    def curves(cls, view: MeasureView) -> Mapping[str, Sequence[Mapping[str, float]]]:
        """Curves for W&B: name of the x axis -> its points, x and the value of every curve there by name."""
        return {}


def experiment_of(declaration: Declaration, trusted: Sequence[str] = ()) -> type[Experiment]:
    """The class that describes a declared experiment; :class:`Experiment` if it is not available.

    A run's folder is data and must not cause imports, except from this package and of measures that installed packages
    offer. Another class is used only if its module is already imported, or is once the classes that the current command names
    are: an analysis brings the experiment that it declares.

    Args:
        declaration: The declaration in the run's folder.
        trusted: Further classes that may be imported, each as :func:`~bertsecrets.doors.resolve` reads it.

    Raises:
        UserError: If one of ``trusted`` is needed and cannot be imported.
    """
    module, _, name = declaration.experiment.partition(":")
    if is_ours(module) or declaration.experiment in [point.value for point in offers("measures").values()]:
        try:
            importlib.import_module(module)
        except ImportError:
            return Experiment
    else:
        for target in trusted:
            load_named("_target_", target)
    kind: object = sys.modules.get(module)
    for part in name.split("."):
        # Some modules import others when an attribute is asked for.
        kind = inspect.getattr_static(kind, part, None)
    return kind if isinstance(kind, type) and issubclass(kind, Experiment) else Experiment
