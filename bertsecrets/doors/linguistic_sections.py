"""The report's sections on linguistics: features, and attention from token to token."""

from collections.abc import Callable

import pyarrow.compute as pc
from matplotlib.figure import Figure

from bertsecrets.doors.feature_columns import Columns
from bertsecrets.doors.features_section import features_section
from bertsecrets.doors.token_to_token_section import token_to_token_section
from bertsecrets.doors.wording import FEATURES, TOKEN_TO_TOKEN
from bertsecrets.results.report.content import Section
from bertsecrets.results.table import HeadTable, MissingColumnError

_Make = Callable[[Columns, dict[str, Figure], list[str]], Section]


def linguistic_sections(table: HeadTable, figures: dict[str, Figure], lead: list[str]) -> list[Section]:
    """A section for each of these measures that the run has; adds to ``figures`` and ``lead``.

    A run of an earlier version may lack a column. Its section says so, and the rest of its report is as ever.
    """
    there = pc.unique(table.table["measure"]).to_pylist()
    kinds: list[tuple[dict[str, str], _Make]] = [(FEATURES, features_section), (TOKEN_TO_TOKEN, token_to_token_section)]
    sections = []
    for titles, make in kinds:
        for name in (name for name in titles if name in there):
            own_figures: dict[str, Figure] = {}
            own_lead: list[str] = []
            try:
                sections.append(make(Columns(table, name), own_figures, own_lead))
            except MissingColumnError as error:
                advice = f"It was measured by another version ({error}); measure it again to see it here."
                sections.append(Section(titles[name], paragraphs=[advice]))
                continue
            figures.update(own_figures)
            lead += own_lead
    return sections
