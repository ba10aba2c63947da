"""The warm process."""

from pathlib import Path

import pytest
from faults import places
from faults.runner import Warm
from shared import session_folder


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Warm:
    """Runs commands without waiting for their imports."""
    made = Warm(tmp_path_factory.mktemp("warm"), session_folder(tmp_path_factory) / "faults", tiny_bert)
    places.warm_process.append(made)
    return made
