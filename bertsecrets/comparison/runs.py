"""Reads finished runs back for comparison."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bertsecrets.errors import UserError
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.run import CHECKPOINT, TRAINING
from bertsecrets.results.table import HeadTable

_FILES = ("config.yaml", "scores.json")


@dataclass(frozen=True)
class FinishedRun:
    """A run's folder, read.

    Args:
        folder: Where it is.
        config: Its resolved configuration.
        scores: Content of ``scores.json``.
        heads: Its head table.
        ablation: Its table of disabled heads; empty if none were.
    """

    folder: Path
    config: dict[str, Any]
    scores: dict[str, Any]
    heads: HeadTable
    ablation: AblationTable

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def init(self) -> str:
        """How the weights were before fine-tuning; of an analysis, those of the run that it analysed."""
        return str(self.config.get("trained", self.config)["init"])

    @property
    def seed(self) -> int:
        """The seed of the fine-tuning."""
        return int(self.config.get("trained", self.config)["seed"])

    @property
    def source(self) -> str | None:
        """The checkpoint that was analysed; None for a run that trained its own."""
        checkpoint = self.config.get("checkpoint")
        return checkpoint if isinstance(checkpoint, str) else None

    @property
    def size(self) -> tuple[int, int] | None:
        """Layers and heads; None if no table has a head."""
        places = [(row["layer"], row["head"]) for row in self.heads.table.select(["layer", "head"]).to_pylist()]
        places += [(row["layer"], row["head"]) for row in self.ablation.rows() if row["kind"] == "head"]
        known = [(layer, head) for layer, head in places if head is not None]
        if not known:
            return None
        return max(layer for layer, _ in known) + 1, max(head for _, head in known) + 1

    def last(self, measure: str, column: str) -> HeadTable | None:
        """Rows of one column at its last step, a finished checkpoint's before those of training; None if it has none."""
        for stage in (CHECKPOINT, TRAINING):
            steps = self.heads.steps(measure, column, stage)
            if steps:
                return self.heads.select(measure=measure, column=column, stage=stage, step=steps[-1])
        return None


def find_runs(given: Sequence[str]) -> tuple[list[FinishedRun], list[str]]:
    """The finished runs among the folders given and those right inside them, and the names of unfinished ones.

    Raises:
        UserError: If a folder holds no finished run, or a table cannot be read.
    """
    runs: dict[Path, FinishedRun] = {}
    unfinished: list[str] = []
    for name in given:
        folder = Path(name)
        if not folder.is_dir():
            raise UserError(f"'{name}' is no folder; give run folders or a sweep's folder.")
        inside = [folder] if (folder / "config.yaml").is_file() else sorted(folder.iterdir())
        candidates = [each for each in inside if each.is_dir() and not each.name.startswith(".")]
        found = False
        for each in candidates:
            if all((each / file).is_file() for file in _FILES):
                runs.setdefault(each.resolve(), read_run(each))
                found = True
            elif (each / "config.yaml").is_file() or (each / ".hydra").is_dir():
                unfinished.append(each.name)
        if not found:
            raise UserError(f"'{name}' holds no finished run; give run folders or a sweep's folder.")
    return list(runs.values()), unfinished


def read_run(folder: Path) -> FinishedRun:
    """One run's tables.

    Raises:
        UserError: If one of them cannot be read.
    """
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
        scores = json.loads((folder / "scores.json").read_text("utf-8"))
        sets: Mapping[str, Any] = scores["sets"]
    except (ValueError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"The configuration or the scores in '{folder}' cannot be read; run it again.") from error
    if not sets or not isinstance(config, dict):
        raise UserError(f"'{folder}' holds no scores; run it again.")
    heads, ablation = folder / "heads.parquet", folder / "ablation.parquet"
    return FinishedRun(
        folder,
        config,
        scores,
        HeadTable.read(heads) if heads.is_file() else HeadTable.empty(),
        AblationTable.read(ablation) if ablation.is_file() else AblationTable.from_rows([]),
    )
