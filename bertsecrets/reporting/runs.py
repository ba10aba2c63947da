"""Finished runs, read for comparison."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bertsecrets.errors import UserError
from bertsecrets.reporting.run_report import views_of
from bertsecrets.results.config_copy import CONFIG_COPY
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import MeasureView

_FILES = (CONFIG_COPY, "scores.json")


@dataclass(frozen=True)
class FinishedRun:
    """The content of a finished run's folder.

    Args:
        folder: The folder.
        config: Its resolved configuration.
        scores: The content of ``scores.json``.
        heads: Its head table.
    """

    folder: Path
    config: dict[str, Any]
    scores: dict[str, Any]
    heads: HeadTable = field(default_factory=HeadTable.empty)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def init(self) -> str:
        """The initialisation; for an analysis, that of the analysed run."""
        return str(self.config.get("trained", self.config)["init"])

    @property
    def seed(self) -> int:
        """The seed of the fine-tuning."""
        return int(self.config.get("trained", self.config)["seed"])

    @property
    def source(self) -> str | None:
        """The analysed checkpoint; None for a training run."""
        checkpoint = self.config.get("checkpoint")
        return checkpoint if isinstance(checkpoint, str) else None

    @cached_property
    def size(self) -> tuple[int, int] | None:
        """Number of layers and heads; None if no table has a head."""
        return Run.open(self.folder).size()

    @cached_property
    def experiments(self) -> dict[str, tuple[Declaration, MeasureView]]:
        """The run's experiments, by name."""
        return views_of(Run.open(self.folder), self.heads)


def find_runs(folders: Sequence[str]) -> tuple[list[FinishedRun], list[str]]:
    """The finished runs among folders and those directly inside them, and the names of unfinished ones.

    Raises:
        UserError: If a folder holds no finished run, or a table cannot be read.
    """
    runs: dict[Path, FinishedRun] = {}
    unfinished: list[str] = []
    for name in folders:
        folder = Path(name)
        if not folder.is_dir():
            raise UserError(f"'{name}' is not a directory; give run folders or a sweep's folder.")
        inside = [folder] if (folder / CONFIG_COPY).is_file() else sorted(folder.iterdir())
        candidates = [path for path in inside if path.is_dir() and not path.name.startswith(".")]
        finished = [path for path in candidates if all((path / file).is_file() for file in _FILES)]
        for path in candidates:
            if path in finished:
                runs.setdefault(path.resolve(), read_run(path))
            elif (path / CONFIG_COPY).is_file() or (path / ".hydra").is_dir():
                unfinished.append(path.name)
        if not finished:
            raise UserError(f"'{name}' holds no finished run; give run folders or a sweep's folder.")
    return list(runs.values()), unfinished


def read_run(folder: Path) -> FinishedRun:
    """Read a run's configuration, scores and head table.

    Raises:
        UserError: If one of them cannot be read.
    """
    run = Run.open(folder)
    try:
        scores = json.loads(run.scores_path.read_text("utf-8"))
        sets: Mapping[str, Any] = scores["sets"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"The scores in '{folder}' cannot be read; run it again.") from error
    if not sets:
        raise UserError(f"'{folder}' holds no scores; run it again.")
    return FinishedRun(folder, run.config(), scores, run.table())
