"""The table at the end of a sweep."""

import io
from pathlib import Path

from rich.console import Console

from bertsecrets.sweeps.sweep import (
    FAILED,
    FINISHED,
    RUNNING,
    SKIPPED,
    JobRecord,
    final_records,
    print_records,
    read_records,
)


def test_records_come_back_in_order_and_a_lost_job_counts_as_failed(tmp_path: Path) -> None:
    for number, status in ((10, RUNNING), (2, FINISHED), (1, FAILED)):
        JobRecord(number, ["seed=1"], "folder", status, score=0.5).write(tmp_path)
    (tmp_path / "2.failure").write_text("no record")
    records = final_records(read_records(tmp_path))
    assert [(record.number, record.status) for record in records] == [(1, FAILED), (2, FINISHED), (10, FAILED)]
    assert "without reporting a result" in records[2].reason


def test_the_table_shows_what_jobs_do_not_share(tmp_path: Path) -> None:
    shared = ["model=minilm", "progress=false"]
    records = [
        JobRecord(0, ["seed=1", *shared], "a", FINISHED, seconds=61.4, score=0.73251),
        JobRecord(1, ["seed=2", *shared], "b", SKIPPED, "already finished"),
        JobRecord(2, ["seed=3", *shared], "c", FAILED, "the disk is full."),
    ]
    console = Console(file=io.StringIO(), width=100)
    print_records(console, records, "val/accuracy")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "model=minilm" not in text
    assert "seed=1" in text
    assert "61 s" in text
    assert "0.733" in text
    assert "job 2 failed: the disk is full." in text
    assert "1 finished, 1 skipped, 1 failed" in text
    print_records(console, records[:1], "val/accuracy")
    assert "model=minilm" in console.file.getvalue()  # type: ignore[attr-defined]
