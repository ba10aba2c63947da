"""Every number of runs as one table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa

from bertsecrets.errors import UserError
from bertsecrets.reporting.long_table import LONG, numbers_of
from bertsecrets.reporting.runs import runs_in
from bertsecrets.results.run import Run


def numbers(*folders: str | Path) -> Any:
    """Every number of one or more runs as a long ``pandas.DataFrame``, with intervals, standard errors and verdicts.

    Its columns are those of :data:`LONG`.

    Args:
        folders: Run folders, or folders of runs, such as a sweep's.

    Raises:
        UserError: If a folder does not exist or contains no run, or a file cannot be read.

    >>> numbers("nowhere")
    Traceback (most recent call last):
        ...
    bertsecrets.errors.UserError: 'nowhere' is not a directory; give run folders or a sweep's folder.
    """
    lines: list[Mapping[str, Any]] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"'{folder}' is not a directory; give run folders or a sweep's folder.")
        runs = runs_in(folder)
        if not runs:
            raise UserError(f"'{folder}' contains no run; give run folders or a sweep's folder.")
        for run in map(Run.open, runs):
            lines += [{**line, "folder": str(run.folder), "seed": run.seed} for line in numbers_of(run)]
    # Layers, heads and counts stay whole numbers where some are missing.
    whole = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
    return pa.Table.from_pylist(lines, schema=LONG).to_pandas(types_mapper=whole.get)
