"""Pages that this code makes of stored runs say what they said when the runs were stored."""

from pathlib import Path

from tools.gate import LOSSES, lost_since

ARCHIVE = Path(__file__).with_name("golden.tar.xz")


def test_stored_runs_open_and_their_pages_lose_no_number_and_no_verdict(tmp_path: Path) -> None:
    lost = lost_since(ARCHIVE, tmp_path)
    assert not lost, "\n".join([f"{len(lost)} lost; bring them back, or give the reason in {LOSSES.name}:", *lost])
