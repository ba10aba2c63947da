"""The warm process, and a row of the table for each case."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.runner import Warm
from faults.table import PROPERTY, row_of
from shared import session_folder


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Warm:
    """Runs commands without waiting for their imports."""
    return Warm(tmp_path_factory.mktemp("warm"), session_folder(tmp_path_factory) / "faults", tiny_bert)


@pytest.fixture(autouse=True)
def _row(request: pytest.FixtureRequest) -> Iterator[None]:
    """Adds the case and its outcome to the test's report."""
    yield
    case = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    if case is not None and "warm" in request.fixturenames:
        process: Warm = request.getfixturevalue("warm")
        request.node.user_properties.append(
            (PROPERTY, row_of(case, process.outcomes.get(case.id), process.numbers.get(case.id)))
        )
