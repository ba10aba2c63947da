"""Packages as a user would install them: modules and the metadata that open doors to this one, in a folder of a
test.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertsecrets import doors
from bertsecrets.measures.shipped import shipped_measures
from bertsecrets.papers.names import page_files
from bertsecrets.papers.statements.statement import shipped_columns
from bertsecrets.pruning.scores import measured_scores
from bertsecrets.sweeps.trust import project_targets

_OFFERS = (doors.offers, doors.load_offer, doors.free_names, doors.offered_folders)
_MADE_OF_OFFERS = (shipped_measures, page_files, shipped_columns, measured_scores, project_targets)
"""What a process keeps of them: tests of one process before and after the package must not see it."""


def write_package(folder: Path, files: Mapping[str, str], entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """A folder for ``sys.path`` with files and a distribution that has these entry points: group -> name -> value."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
    metadata = folder / f"{folder.name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1.0\n", "utf-8")
    groups = (
        "\n".join([f"[bertsecrets.{kind}]", *(f"{name} = {value}" for name, value in points.items()), ""])
        for kind, points in entry_points.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(groups), "utf-8")
    return folder


@contextmanager
def installed(*folders: Path) -> Iterator[None]:
    """Have these folders of packages on ``sys.path`` for the block."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in folders:
            patch.syspath_prepend(str(folder))
        forget()
        try:
            yield
        finally:
            forget()


def forget() -> None:
    """Forget what installed packages offer."""
    for function in (*_OFFERS, *_MADE_OF_OFFERS):
        function.cache_clear()
