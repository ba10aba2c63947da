"""The presentation of an experiment's findings on pages."""

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from bertsecrets.doors import error_text, offers
from bertsecrets.files import is_ours
from bertsecrets.present.grid import grid_comparison, grid_section
from bertsecrets.present.report.content import Section
from bertsecrets.results.rows import RecordError
from bertsecrets.results.run import Declaration
from bertsecrets.results.table import MissingColumnError
from bertsecrets.results.views import Comparison, MeasureView

_log = logging.getLogger(__name__)


def _nothing(view: MeasureView) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Presenter:
    """How an experiment is shown: functions of its findings, without a model; omitted ones use the default for grids.

    Args:
        section: The section of a run's page; None if there is nothing to show.
        comparison: The section of a page that compares runs; None if there is nothing to compare.
        classes: Columns of text for the table of all heads, such as a verdict: heading -> text ``[layers][heads]``.
        scalars: Summary values for W&B, by name, besides the means of the columns.
        curves: Curves for W&B: name of the x axis -> its points, x and the value of every curve there by name.
    """

    section: Callable[[MeasureView], Section | None] = grid_section
    comparison: Callable[[Comparison], Section | None] = grid_comparison
    classes: Callable[[MeasureView], Mapping[str, Sequence[Sequence[str]]]] = _nothing
    scalars: Callable[[MeasureView], Mapping[str, float | str]] = _nothing
    curves: Callable[[MeasureView], Mapping[str, Sequence[Mapping[str, float]]]] = _nothing


def presenter_of(declaration: Declaration) -> Presenter:
    """The presenter of a declared experiment; the default for grids if it has none, or an unavailable one.

    A run's folder is data and must not cause imports, except from this package and of presenters of installed packages.
    Other presenters are used only if their module is already imported, as those of classes in the current command are.
    """
    module, _, attributes = declaration.presenter.partition(":")
    if is_ours(module) or declaration.presenter in [point.value for point in offers("presenters").values()]:
        try:
            importlib.import_module(module)
        except ImportError:
            return Presenter()
    named: object = sys.modules.get(module)
    for part in attributes.split("."):
        # Some modules import others on attribute access.
        named = inspect.getattr_static(named, part, None)
    if not isinstance(named, Presenter):
        return Presenter()
    return named if is_ours(module) else _guarded(named, declaration.presenter)


def _guarded(presenter: Presenter, name: str) -> Presenter:
    """Another package's presenter, whose errors do not prevent the page."""

    def guarded(part: str) -> Callable[[Any], Any]:
        def made(found: Any) -> Any:
            try:
                return getattr(presenter, part)(found)
            except (RecordError, MissingColumnError):
                # Errors of the run's files, which pages report themselves.
                raise
            except Exception as error:
                # The package can raise anything; a page reports the failure.
                advice = f"The presenter '{name}' failed ({error_text(error)}); correct it, and rebuild the page."
            if part in ("section", "comparison"):
                shown = found if part == "section" else next(iter(found.replicates.values()))
                return Section(shown.title, paragraphs=[advice])
            _log.warning(advice)
            return {}

        return made

    return Presenter(*(guarded(part.name) for part in fields(Presenter)))
