"""What became of each job of a sweep: one small file a job, and a table at the end."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertsecrets.results.files import atomic_write

RUNNING, FINISHED, FAILED, SKIPPED = "running", "finished", "failed", "skipped"


@dataclass(frozen=True)
class JobRecord:
    """One job of a sweep.

    Args:
        number: Hydra's number of the job.
        overrides: Its settings.
        folder: Where its results are.
        status: ``running``, ``finished``, ``failed`` or ``skipped``.
        reason: Why it failed or was skipped, in one sentence.
        seconds: How long it took.
        score: Its objective; None where there is none.
    """

    number: int
    overrides: list[str]
    folder: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    score: float | None = None

    def write(self, folder: Path) -> None:
        """Writes the record, over an earlier one of the same job."""
        with atomic_write(folder / f"{self.number}.json") as temporary:
            temporary.write_text(json.dumps(asdict(self)), "utf-8")


def read_records(folder: Path) -> list[JobRecord]:
    """All records in a folder, by number."""
    records = [JobRecord(**json.loads(path.read_text("utf-8"))) for path in folder.glob("[0-9]*.json")]
    return sorted(records, key=lambda record: record.number)


def settled(records: Sequence[JobRecord]) -> list[JobRecord]:
    """The records after the sweep's end: a job that is still said to be running ended without a word."""
    lost = "its process ended without a word; resume=true runs it again"
    return [
        JobRecord(record.number, record.overrides, record.folder, FAILED, lost) if record.status == RUNNING else record
        for record in records
    ]


def print_records(console: Console, records: Sequence[JobRecord], objective: str) -> None:
    """Prints what finished, failed and was skipped, with reasons under the table."""
    fixed = set.intersection(*(set(record.overrides) for record in records)) if len(records) > 1 else set()
    table = Table("job", "settings", "status", box=None, pad_edge=False)
    table.add_column("time", justify="right")
    table.add_column(objective, justify="right")
    for record in records:
        own = " ".join(each for each in record.overrides if each not in fixed) or "(no settings of its own)"
        time = f"{record.seconds:.0f} s" if record.seconds else "\N{EN DASH}"
        score = "\N{EN DASH}" if record.score is None else f"{record.score:.3f}"
        table.add_row(str(record.number), Text(own), record.status, time, score)
    console.print()
    console.print(table)
    for record in records:
        if record.reason:
            console.print(Text(f"job {record.number} {record.status}: {record.reason}"), soft_wrap=True)
    counts = {status: sum(record.status == status for record in records) for status in (FINISHED, SKIPPED, FAILED)}
    console.print(Text(", ".join(f"{count} {status}" for status, count in counts.items())))
