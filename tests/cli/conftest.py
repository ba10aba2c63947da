"""Fixtures of tests of the command line."""

from pathlib import Path

import pytest
from cli.runs import ran, small
from shared import made_once, session_folder


@pytest.fixture(scope="session")
def trained(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny BERT without callbacks, made once; for tests that only read it."""
    folder = session_folder(tmp_path_factory) / "trained_tiny_bert"
    return made_once(folder, lambda folder: ran("train", *small(tiny_bert, folder, callbacks="none")))
