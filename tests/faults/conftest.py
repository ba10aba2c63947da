"""One warm process for each worker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.runner import Warm


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Iterator[Warm]:
    """Runs commands without waiting for their imports."""
    with Warm(tmp_path_factory.mktemp("warm"), tiny_bert) as process:
        yield process
