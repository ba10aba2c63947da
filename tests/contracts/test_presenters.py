"""Every presenter: without rows there is nothing to show, and where no example counts, pages say so without a 'nan'."""

import importlib
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules

import pyarrow as pa
import pytest

from bertsecrets import present
from bertsecrets.present.presenter import Presenter, presenter_of
from bertsecrets.present.report.content import Section
from bertsecrets.reporting.run_report import views_of
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.table import SCHEMA, HeadTable
from bertsecrets.results.views import Comparison, MeasureView, Replicates

PRESENTERS = {
    f"{info.name}:{name}": value
    for info in iter_modules(present.__path__)
    for name, value in vars(importlib.import_module(f"{present.__name__}.{info.name}")).items()
    if isinstance(value, Presenter)
}


@pytest.mark.parametrize("name", PRESENTERS)
def test_without_rows_there_is_nothing_to_show(name: str, tmp_path: Path) -> None:
    presenter = PRESENTERS[name]
    run = Run(tmp_path, "r", "m", "t", "pretrained")
    view = MeasureView(run, Declaration("absent", "Absent", ""), HeadTable.empty())
    assert presenter.section(view) is None
    assert presenter.comparison(Comparison({"a": Replicates([view])})) is None
    assert not presenter.classes(view)
    assert not presenter.scalars(view)
    assert not any(presenter.curves(view).values())


def texts(section: Section) -> Iterator[str]:
    for part in section.flat():
        yield from (part.title, *part.findings, *part.paragraphs)
        for table in part.tables:
            yield from (table.caption, *table.header)
            for row in table.rows:
                yield from row


def undefined(table: HeadTable) -> HeadTable:
    """The same rows, of which no example counts."""
    content = table.table
    for name, value in (("value", float("nan")), ("stderr", float("nan")), ("count", 0)):
        field = SCHEMA.field(name)
        content = content.set_column(SCHEMA.get_field_index(name), field, pa.array([value] * len(content), field.type))
    return HeadTable(content)


def test_where_no_example_counts_pages_have_no_nan(tmp_path: Path) -> None:
    """Of stored runs with every kind of experiment; what they say of numbers that are defined is in
    tests/test_golden.py.
    """
    with tarfile.open(Path(__file__).parents[1] / "golden.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    presented = set()
    for path in sorted(tmp_path.rglob("experiments.json")):
        run = Run.open(path.parent)
        for name, (declaration, view) in views_of(run, undefined(run.table())).items():
            presenter = presenter_of(declaration)
            presented.add(declaration.presenter)
            compared = presenter.comparison(Comparison({"a": Replicates([view]), "b": Replicates([view, view])}))
            for tell in (presenter.classes, presenter.scalars, presenter.curves):
                tell(view)
            for section in (presenter.section(view), compared):
                said = [] if section is None else [text for text in texts(section) if re.search(r"\bnan\b", text, re.I)]
                assert not said, (run.folder.name, name, said)
    assert len(presented) >= 20
