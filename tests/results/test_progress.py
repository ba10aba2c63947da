"""Progress where a line cannot be redrawn."""

import pytest

from bertsecrets.results import progress
from bertsecrets.results.progress import progress_over


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # A line after each minute: 24, 48, 72 and 96 % are done.
        (250, [(20, 60), (40, 120), (70, 180), (90, 240)]),
        # An hour: a line for each tenth.
        (3600, [(share, 36 * share) for share in range(10, 100, 10)]),
        (59, []),
    ],
)
def test_a_file_gets_at_most_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: int,
    expected: list[tuple[int, int]],
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress_over(1000, "disabling") as advance:
        for _ in range(250):
            now += seconds / 250
            advance(4)
    lines = [f"disabling: {share} % after {passed} s" for share, passed in expected]
    assert capsys.readouterr().err.splitlines() == lines


def test_work_that_is_not_to_be_shown_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_BETWEEN", 0.0)
    for visible in (True, False):
        with progress_over(3, "heads", visible) as advance:
            for _ in range(3):
                advance()
        assert bool(capsys.readouterr().err) == visible
