"""A fingerprint of a run's rows: recorded in its folder, and compared when it is resumed or analysed."""

import json
from dataclasses import asdict
from pathlib import Path

from bertsecrets.cli.run_settings import run_of
from bertsecrets.cli.settings import RunSettings
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import TRAIN
from bertsecrets.data.sources.base import ALL, HELD_OUT
from bertsecrets.data.sources.held_out import Rows
from bertsecrets.errors import UserError
from bertsecrets.results.files import displayed, write_text
from bertsecrets.results.run import Run, is_first_process

ROWS = "rows.json"
"""File in a run's folder with a fingerprint of the rows of each split."""


def check_rows(settings: RunSettings, data: TaskData, folder: Path) -> None:
    """Check that the rows match those that an interrupted or analysed run has read.

    Args:
        settings: Settings of the run.
        data: Its data, set up.
        folder: Its folder.

    Raises:
        UserError: If they differ.
    """
    for split, before in (_read(folder) or {}).items():
        now = data.source.rows.get(split, before)
        if now.sha256 != before.sha256:
            raise UserError(
                f"The rows of '{now.place}' have changed since the run in '{displayed(folder)}' began "
                f"({_change(split, before, now)}); restore them, or start a new run in another folder."
            )
    checkpoint = getattr(settings.keys, "checkpoint", None)
    origin = run_of(checkpoint) if isinstance(checkpoint, str) else None
    if origin is not None and origin.task == settings.task.name:
        _compare(data, origin)


def record_rows(data: TaskData, folder: Path) -> None:
    """Record the rows in a run's folder, once all checks have passed."""
    if is_first_process():
        write_text(
            folder / ROWS, json.dumps({split: asdict(rows) for split, rows in data.source.rows.items()}, indent=1)
        )


def _compare(data: TaskData, origin: Run) -> None:
    """Compare the rows with those of the analysed run."""
    known, place = _read(origin.folder), displayed(origin.folder)
    if known is None:
        if not data.task.demo:
            data.remark(
                f"The run in '{place}' has no record of its rows; the present rows may differ from its training rows."
            )
        return
    evaluated = set(data.evaluation.values())
    for split in data.source.rows.keys() & known.keys():
        before, now = known[split], data.source.rows[split]
        same = before.sha256 == now.sha256
        if split == TRAIN and ALL in evaluated:
            if same:
                raise UserError(
                    f"'{now.place}' contains the rows that the run in '{place}' was trained on; remove it to evaluate "
                    "on the held-out rows, or give other rows with data.eval_path=<file>."
                )
            if shared := len(set(before.texts) & set(now.texts)):
                data.remark(
                    f"{shared:,} of the {len(now.texts):,} distinct texts of '{now.place}' are among the training or "
                    f"held-out rows of the run in '{place}', so scores on them say little about new texts."
                )
        elif not same and (HELD_OUT in evaluated if split == TRAIN else before.place == now.place):
            raise UserError(
                f"The rows of '{now.place}' differ from those of the run in '{place}' "
                f"({_change(split, before, now)}), so some may be training rows; restore them, or evaluate on another "
                "file with data.eval_path=<file>."
            )
        elif not same and before.place == now.place:
            data.remark(
                f"The training rows have changed since the run in '{place}' was trained "
                f"({_change(split, before, now)})."
            )


def _change(split: str, before: Rows, now: Rows) -> str:
    if before.count == now.count:
        return f"split '{split}': other texts or labels in its {now.count:,} rows"
    return f"split '{split}': {before.count:,} rows then, {now.count:,} now"


def _read(folder: Path) -> dict[str, Rows] | None:
    """The rows recorded by a run; None if it recorded none.

    Raises:
        UserError: If its file is damaged.
    """
    path = folder / ROWS
    try:
        return {split: Rows(**rows) for split, rows in json.loads(path.read_text("utf-8")).items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"'{path}' cannot be read ({error}); restore it, or start a new run.") from error
