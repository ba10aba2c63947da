"""Finished runs, read for comparison."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertsecrets.errors import UserError
from bertsecrets.reporting.run_report import views_of
from bertsecrets.results.files import resume_command
from bertsecrets.results.run import CONFIG_COPY, FINISHED, SWEEP_FILE, Declaration, Run
from bertsecrets.results.scores import RunScores, SetScores
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import MeasureView

_log = logging.getLogger(__name__)

_FILES = (CONFIG_COPY, "scores.json", FINISHED)


@dataclass(frozen=True)
class FinishedRun:
    """The contents of a finished run folder.

    Args:
        folder: The folder.
        config: Its resolved configuration.
        scores: Its scores.
        heads: Its head table.
        further: Other runs about the same weights, with experiments that this one lacks.
    """

    folder: Path
    config: dict[str, Any]
    scores: RunScores
    heads: HeadTable = field(default_factory=HeadTable.empty)
    further: tuple["FinishedRun", ...] = ()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def init(self) -> str:
        """The initialisation; for an analysis, that of the analysed run."""
        return str(self.config.get("trained", self.config)["init"])

    @property
    def seed(self) -> int:
        """The seed of fine-tuning."""
        return int(self.config.get("trained", self.config)["seed"])

    @property
    def first_set(self) -> SetScores:
        """The scores of the first evaluation set."""
        return next(iter(self.scores.sets.values()))

    @property
    def source(self) -> str | None:
        """The analysed checkpoint; None for a training run."""
        checkpoint = self.config.get("checkpoint")
        return checkpoint if isinstance(checkpoint, str) else None

    @property
    def weights(self) -> tuple[Path, int, int]:
        """What identifies the run's weights: the folder of the training run (or its own), optimiser step and seed."""
        trained = self.config.get("trained") or {}
        return Path(trained.get("folder") or self.source or self.folder).resolve(), self.scores.step, self.seed

    @cached_property
    def size(self) -> tuple[int, int] | None:
        """Number of layers and heads; None if no table has a head."""
        return Run.open(self.folder).size()

    @cached_property
    def experiments(self) -> dict[str, tuple[Declaration, MeasureView]]:
        """The experiments of this run and of others about its weights, by name."""
        of_further_runs = (run.experiments for run in reversed(self.further))
        return {
            name: experiment
            for experiments in (*of_further_runs, views_of(Run.open(self.folder), self.heads))
            for name, experiment in experiments.items()
        }


def constant_score(runs: Sequence[FinishedRun], name: str, metric: str) -> float:
    """The highest majority-baseline score on one evaluation set of runs that differ in their seed; NaN where
    undefined.

    Args:
        runs: The runs.
        name: The evaluation set.
        metric: The metric.
    """
    sets = [run.scores.sets[name] for run in runs if name in run.scores.sets]
    values = [scores.constant.get(metric, math.nan) for scores in sets]
    return max(filter(math.isfinite, values), default=math.nan)


def joined(runs: Sequence[FinishedRun]) -> FinishedRun:
    """Merge runs about the same weights: the training run, or else the first, with the others as further runs."""
    first = next((run for run in runs if run.source is None), runs[0])
    return replace(first, further=tuple(run for run in runs if run is not first))


def find_runs(folders: Sequence[str]) -> tuple[list[FinishedRun], list[str]]:
    """The finished runs in folders and their direct subfolders, and the names of unfinished ones.

    A run is finished if its folder contains the marker that is written last.

    Raises:
        UserError: If there is no finished run, a folder contains no run at all, or a file cannot be read.
    """
    runs: dict[Path, FinishedRun] = {}
    unfinished: dict[Path, str] = {}
    for name in folders:
        folder = Path(name)
        if not folder.is_dir():
            raise UserError(f"'{name}' is not a directory; give run folders or a sweep's folder.")
        candidates = runs_in(folder)
        for path in candidates:
            if all((path / file).is_file() for file in _FILES):
                runs.setdefault(path.resolve(), read_run(path))
            else:
                unfinished.setdefault(path.resolve(), path.name)
        if not candidates:
            raise UserError(f"'{name}' contains no finished run; give run folders or a sweep's folder.")
    if not runs:
        raise UserError(
            f"{', '.join(map(repr, folders))}: no finished run (unfinished: {', '.join(unfinished.values())}); "
            f"finish one with {resume_command(next(iter(unfinished)))}."
        )
    for run in runs.values():
        training = (run.config.get("trained") or {}).get("folder")
        if training is not None and not Path(training).is_dir():
            _log.warning(
                f"'{run.folder}' analysed the run in '{training}', which was not found, so their numbers are not "
                "joined; keep both folders in place."
            )
    return list(runs.values()), list(unfinished.values())


def left_out(unfinished: Sequence[str]) -> list[str]:
    """A sentence on the unfinished runs, if there are any."""
    return [f"Skipped (unfinished): {', '.join(unfinished)}."] if unfinished else []


def runs_in(folder: Path) -> list[Path]:
    """The folder itself if it is a run folder, else its run folders in order.

    Runs of a sweep may be nested deeper (``hydra.sweep.subdir``).
    """
    if is_run(folder):
        return [folder]
    inside = sorted(path for path in folder.iterdir() if path.name[0] != "." and path.is_dir())
    runs = [path for path in inside if is_run(path)]
    if not runs and (folder / SWEEP_FILE).is_file():
        inner = [path.parent for path in sorted(folder.rglob(CONFIG_COPY)) if is_run(path.parent)]
        runs = [path for path in inner if not any(part[0] == "." for part in path.relative_to(folder).parts)]
    return runs


def is_run(folder: Path) -> bool:
    """Whether a folder is a run folder, finished or not."""
    return folder.is_dir() and ((folder / CONFIG_COPY).is_file() or (folder / ".hydra").is_dir())


def read_run(folder: Path) -> FinishedRun:
    """Read a run's configuration, scores and head table.

    Raises:
        UserError: If one of them cannot be read.
    """
    run = Run.open(folder)
    config = run.config()
    if type(config.get("trained", config).get("seed")) is not int:
        raise UserError(f"'{run.config_path}' has no seed; give a run folder.")
    scores = RunScores.read(run.scores_path)
    if not scores.sets:
        raise UserError(f"'{folder}' has no scores; run it again.")
    return FinishedRun(folder, config, scores, run.table())
