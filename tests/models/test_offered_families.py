"""Families that installed packages offer under the name of a model type."""

from pathlib import Path

import pytest
from packages import installed, write_package

from bertsecrets.errors import UserError
from bertsecrets.models.families import FAMILIES, find_family


def test_an_offer_that_is_no_family_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    points = {"families": {"wrong": "no_family:x", "gone": "not_there:x", "bert": "no_family:x"}}
    with installed(write_package(tmp_path / "kin", {"no_family.py": "x = 1\n"}, points)):
        with pytest.raises(UserError, match="names no_family:x, which is not a subclass of"):
            find_family("wrong")
        assert find_family("gone") is None
        assert find_family("unknown") is None
        # The project's own family is not replaced, which is said once.
        assert find_family("bert") is find_family("bert") is FAMILIES["bert"]
    assert caplog.text.count("'bert' of kin is skipped: bertsecrets itself has this name.") == 1
    assert "'gone' of kin is skipped: ModuleNotFoundError" in caplog.text
