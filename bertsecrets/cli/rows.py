"""What a run knows of its rows: recorded in its folder, and compared when it is resumed or analysed."""

import json
from dataclasses import asdict
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_warn

from bertsecrets.cli.run_settings import run_of
from bertsecrets.cli.settings import RunSettings
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import TRAIN
from bertsecrets.data.sources.base import ALL, HELD_OUT
from bertsecrets.data.sources.rows import Rows
from bertsecrets.errors import UserError
from bertsecrets.results.files import displayed, write_text
from bertsecrets.results.run import Run, is_first_process

ROWS = "rows.json"
"""The file of a run's folder that tells its rows from others, by split."""


def check_rows(settings: RunSettings, data: TaskData, folder: Path) -> None:
    """Check that the rows are those that an interrupted or an analysed run has read.

    Args:
        settings: Settings of the run.
        data: Its data, set up.
        folder: Its folder.

    Raises:
        UserError: If they are others.
    """
    for split, before in (_read(folder) or {}).items():
        now = data.rows.get(split, before)
        if now.sha256 != before.sha256:
            raise UserError(
                f"The rows of '{now.place}' have changed since the run in '{displayed(folder)}' began "
                f"({_change(split, before, now)}); restore them, or start a new run in another folder."
            )
    origin = run_of(getattr(settings.keys, "checkpoint", None))
    if origin is not None and origin.task == settings.task.name:
        _compare(data, origin)


def record_rows(data: TaskData, folder: Path) -> None:
    """Record the rows in a run's folder, once nothing can be refused any more."""
    if is_first_process():
        write_text(folder / ROWS, json.dumps({split: asdict(rows) for split, rows in data.rows.items()}, indent=1))


def _compare(data: TaskData, origin: Run) -> None:
    """Compare the rows with those of the run that is analysed."""
    known, place = _read(origin.folder), displayed(origin.folder)
    if known is None:
        if not data.task.demo:
            _remark(
                data, f"The run in '{place}' has no record of its rows; they may differ from those it was trained on."
            )
        return
    evaluated = set(data.evaluation.values())
    for split in data.rows.keys() & known.keys():
        before, now = known[split], data.rows[split]
        same = before.sha256 == now.sha256
        if split == TRAIN and ALL in evaluated:
            if same:
                raise UserError(
                    f"'{now.place}' holds the rows that the run in '{place}' was trained on; leave it out to judge "
                    "those that were held out, or give other rows with data.eval_path=<file>."
                )
            if shared := len(set(before.texts) & set(now.texts)):
                _remark(
                    data,
                    f"{shared:,} of the {len(now.texts):,} different texts of '{now.place}' are among the rows of the "
                    f"run in '{place}', trained on or held out: scores on them say little about new texts.",
                )
        elif not same and (HELD_OUT in evaluated if split == TRAIN else before.place == now.place):
            raise UserError(
                f"The rows of '{now.place}' are not those of the run in '{place}' ({_change(split, before, now)}), so "
                "that some of them may have been trained on; restore them, or judge rows of another file with "
                "data.eval_path=<file>."
            )
        elif not same and before.place == now.place:
            _remark(
                data,
                f"The training rows have changed since the run in '{place}' was trained "
                f"({_change(split, before, now)}).",
            )


def _change(split: str, before: Rows, now: Rows) -> str:
    if before.count == now.count:
        return f"split '{split}': other texts or labels in its {now.count:,} rows"
    return f"split '{split}': {before.count:,} rows then, {now.count:,} now"


def _remark(data: TaskData, sentence: str) -> None:
    rank_zero_warn(sentence)
    data.remarks.append(sentence)


def _read(folder: Path) -> dict[str, Rows] | None:
    """The rows that a run has recorded; None if it has not.

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
