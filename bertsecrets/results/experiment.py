"""Experiments: sources of numbers of heads, with their names, columns and sections of pages."""

import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar

from bertsecrets.doors import offers
from bertsecrets.grid import Column
from bertsecrets.results.report.content import Section
from bertsecrets.results.run import Declaration
from bertsecrets.results.sections import compare_conditions, describe_columns
from bertsecrets.results.views import Comparison, MeasureView

_PACKAGE = "bertsecrets"


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

    def declaration(self) -> Declaration:
        """The declaration to record in a run's folder."""
        kind = type(self)
        return Declaration(self.name, self.title, f"{kind.__module__}:{kind.__qualname__}", self.columns)

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """The section of a run's report; None if there is nothing to show."""
        return describe_columns(view)

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """The section of a page that compares runs; None if there is nothing to compare."""
        return compare_conditions(comparison)

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
    offer. Another class is used only if its module is already imported or the current command names it.

    Args:
        declaration: The declaration in the run's folder.
        trusted: Further ``module:class`` names that may be imported.
    """
    module, _, name = declaration.experiment.partition(":")
    offered = [point.value for point in offers("measures").values()]
    if module == _PACKAGE or module.startswith(f"{_PACKAGE}.") or declaration.experiment in (*trusted, *offered):
        try:
            importlib.import_module(module)
        except ImportError:
            return Experiment
    kind: object = sys.modules.get(module)
    for part in name.split("."):
        # Some modules import others when an attribute is asked for.
        kind = inspect.getattr_static(kind, part, None)
    return kind if isinstance(kind, type) and issubclass(kind, Experiment) else Experiment
