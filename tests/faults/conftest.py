"""What the fault cases share."""

from pathlib import Path

import pytest
from faults.runner import Warm


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Warm:
    """Runs commands without waiting for their imports."""
    return Warm(tmp_path_factory.mktemp("warm"), tiny_bert)
