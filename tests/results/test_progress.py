"""Progress where a line cannot be redrawn."""

import re

import pytest

from bertsecrets.results import progress
from bertsecrets.results.progress import progress_over


def test_a_file_gets_a_line_for_each_tenth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    with progress_over(1000, "disabling") as advance:
        for _ in range(250):
            advance(4)
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"after \d+ s", "after", line) for line in lines] == [
        f"disabling: {share} % after" for share in range(10, 101, 10)
    ]


def test_work_that_ends_as_its_first_line_is_due_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    with progress_over(1, "comparing heads") as advance:
        advance()
    assert capsys.readouterr() == ("", "")


def test_short_work_and_work_that_is_not_to_be_shown_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for visible in (True, False):
        with progress_over(3, "heads", visible) as advance:
            for _ in range(3):
                advance()
    assert capsys.readouterr() == ("", "")
