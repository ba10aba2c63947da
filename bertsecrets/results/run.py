"""A run's folder: who the run is, and where its numbers go."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsecrets.grid import HeadGrid
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.captures import FOLDER
from bertsecrets.results.files import atomic_write
from bertsecrets.results.table import HeadTable

TRAINING, CHECKPOINT = "training", "checkpoint"
"""The stages: numbers taken while fine-tuning, and numbers of a finished checkpoint."""

INITIAL, RANDOM = "initial", "random"
"""The stages of models to compare with: the model before its fine-tuning, and one with random weights."""


def difference_stage(stage: str, other: str) -> str:
    """The stage of paired differences between the numbers of two stages, e.g. ``checkpoint-initial``."""
    return f"{stage}-{other}"


@dataclass(frozen=True)
class Run:
    """The identity of a run and the files in its folder.

    Args:
        folder: Where everything goes.
        name, model, task, init: Written in every row of the head table.
        writes: Whether this process writes (the first one of a distributed run).
    """

    folder: Path
    name: str
    model: str
    task: str
    init: str
    writes: bool = True

    @property
    def heads_path(self) -> Path:
        return self.folder / "heads.parquet"

    @property
    def ablation_path(self) -> Path:
        return self.folder / "ablation.parquet"

    @property
    def checks_path(self) -> Path:
        return self.folder / "ablation" / "selection.json"

    @property
    def captures(self) -> Path:
        return self.folder / FOLDER

    @property
    def scores_path(self) -> Path:
        return self.folder / "scores.json"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def figures(self) -> Path:
        return self.folder / "figures"

    @property
    def report_path(self) -> Path:
        return self.folder / "report.html"

    def rows(self, grid: HeadGrid, stage: str, step: int) -> HeadTable:
        """A grid as rows of the head table."""
        return HeadTable.from_grid(
            grid, run=self.name, model=self.model, task=self.task, init=self.init, stage=stage, step=step
        )

    def add(self, *tables: HeadTable) -> None:
        """Adds rows to the run's head table on disk; rows of the same key are replaced."""
        if self.writes and tables:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.table().append(HeadTable.concat(tables)).write(self.heads_path)

    def table(self) -> HeadTable:
        """The run's head table so far."""
        return HeadTable.read(self.heads_path) if self.heads_path.is_file() else HeadTable.empty()

    def ablation_table(self) -> AblationTable:
        """The run's ablation table so far."""
        if self.ablation_path.is_file():
            return AblationTable.read(self.ablation_path)
        return AblationTable.from_rows([])

    def add_checks(self, checks: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds selection checks, by ``<metric>_<mode>``, to those of the run."""
        self.write_json(self.checks_path, {**self.checks(), **checks})

    def checks(self) -> dict[str, dict[str, Any]]:
        """The run's selection checks so far."""
        if not self.checks_path.is_file():
            return {}
        content: dict[str, dict[str, Any]] = json.loads(self.checks_path.read_text("utf-8"))
        return content

    def write_json(self, path: Path, content: Any) -> None:
        """Writes plain values atomically; nothing in a process that does not write."""
        if self.writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False), "utf-8")
