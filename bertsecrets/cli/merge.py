"""Merge the parts of a disabling sweep that was split over several runs."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bertsecrets.ablation.closer_look import CloserLook
from bertsecrets.ablation.outcomes import Outcomes, merge
from bertsecrets.ablation.plan import Plan
from bertsecrets.ablation.rows import Screened, found, only
from bertsecrets.ablation.screening import COUNTS, LEVEL, missed_bound
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.sweep import DisableAnalysis, Judged
from bertsecrets.analysis import record
from bertsecrets.cli.build import run_folder
from bertsecrets.cli.finish import present
from bertsecrets.data.task import Task, task_from_config
from bertsecrets.errors import UserError
from bertsecrets.keys import MergeKeys, ReportSettings
from bertsecrets.present.console import print_lines
from bertsecrets.reporting.runs import runs_in
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.captures import read_telling
from bertsecrets.results.components import COMPONENTS
from bertsecrets.results.config_copy import CONFIG_COPY, plain, write_config
from bertsecrets.results.files import resume_command
from bertsecrets.results.run import CHECKPOINT, FINISHED, PREDICTIONS, Run
from bertsecrets.results.scores import RunScores
from bertsecrets.settings import shown

_PLAN_KEYS = frozenset({"components", "layer", "heads", "layers", "group_size", "group_count", "max_tokens"})
"""Keys of ``ablation`` that select what is disabled, and may differ between parts."""

_SHARED = ("task", "model", "data", "checkpoint", "trained", "evaluation", "init", "seed", "name", "trainer")
"""Configuration sections that the merged run copies from its parts."""

_SAME = ("task", "model.name", "data.limit_train", "data.limit_eval", "trainer.precision")
"""Settings that must be equal in all parts; folders may differ, because parts may come from different machines."""

_DISABLES = DisableAnalysis.__name__


@dataclass(frozen=True)
class Part:
    """A finished disabling sweep of part of a plan.

    Args:
        run: Its folder and identity.
        config: Its configuration.
        task: Its task.
        settings: Its ``ablation`` section.
        step: Optimiser steps of the analysed checkpoint.
        code: Version of the code that produced it.
        report: What its page shows.
        outcomes: The outcomes.
        rows: The rows of its ablation table.
    """

    run: Run
    config: dict[str, Any]
    task: Task
    settings: AblationSettings
    step: int
    code: str
    report: ReportSettings
    outcomes: Outcomes
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class _Merged(Run):
    """A merged run, whose page is written before its configuration.

    Args:
        recorded: That configuration.
    """

    recorded: DictConfig = field(default_factory=OmegaConf.create)

    def config(self) -> dict[str, Any]:
        return plain(self.recorded)


def merge_runs(config: DictConfig) -> AblationTable:
    """Merge the sweeps in the run folders (or the sweep folder) that ``runs`` names into Hydra's output folder.

    Raises:
        UserError: If a folder has no sweep, a part is not finished, or the sweeps are not parts of one.
    """
    runs = MergeKeys.read("", plain(config)).runs
    named = [runs] if isinstance(runs, str) else runs
    parts = [read_part(folder) for folder in find_parts(named)]
    check_parts(parts)
    outcomes = merge({str(part.run.folder): part.outcomes for part in parts})
    first = parts[0]
    identity = (first.run.name, first.run.model, first.run.task, first.run.init, True, first.run.seed)
    recorded = config.copy()
    OmegaConf.set_struct(recorded, False)
    # What the parts share, so that the merged run can be read as a run itself.
    for key in _SHARED:
        if key in first.config:
            recorded[key] = first.config[key]
    recorded.ablation = first.settings.model_dump(exclude=set(_PLAN_KEYS))
    run = _Merged(run_folder(), *identity, recorded=recorded)
    made = [screening_of(parts, outcomes)] if outcomes.is_screened else []
    judged = Judged(outcomes, first.task, first.rows[0]["evaluation"], first.settings, made)
    stage = first.rows[0]["stage"]
    telling = [read_telling(part.run.folder / "ablation") for part in parts]
    look = CloserLook(telling={head: example for of_part in telling for head, example in of_part.items()})
    record(run, [judged.findings(stage, lambda rows: look)], stage, first.step)
    if (first.run.folder / PREDICTIONS).is_dir():
        shutil.copytree(first.run.folder / PREDICTIONS, run.folder / PREDICTIONS, dirs_exist_ok=True)
    missing = missing_layers(outcomes.plan)
    scores = [RunScores.read(part.run.scores_path) for part in parts]
    whole = replace(scores[0], seconds=sum(part.seconds for part in scores))
    present(run, whole, [], report=first.report, trusted=(), notes=missing)
    # Last, because resume= and the same command need the merge's own configuration until here.
    write_config(run.recorded, run.folder)
    print_lines(
        *(f"Missing: {sentence}" for sentence in missing),
        f"Merged the sweeps of {len(parts)} run{'s' * (len(parts) > 1)}.",
    )
    return run.ablation_table()


def screening_of(parts: Sequence[Part], outcomes: Outcomes) -> Screened:
    """What all screened parts evaluated, with one joint bound.

    Raises:
        UserError: If a part lacks that record, or the parts were screened in different precision.
    """
    records = []
    for part in parts:
        record = only(found(part.run, Screened), Screened, mode=outcomes.plan.mode)
        if record is None:
            raise UserError(
                f"'{part.run.folder}' was screened, but its folder findings does not record what it may have missed; "
                "run that part again, or remove it."
            )
        records.append(record)
    precisions = [record.precision for record in records]
    for part, precision in zip(parts, precisions, strict=True):
        if precision != precisions[0]:
            raise UserError(
                f"'{parts[0].run.folder}' and '{part.run.folder}' were screened in {precisions[0]} and {precision}, so "
                "they are not parts of one sweep; run one of them again with ablation.precision."
            )
    total = {name: sum(getattr(record, name) for record in records) for name in COUNTS}
    assert outcomes.weight_NV is not None
    left = int((outcomes.weight_NV == 0).sum())
    bound = missed_bound(total["missed"] + total["missed_bf16"], parts[0].settings.audit, left)
    unseen = outcomes.predictions(parts[0].task).unseen
    assert unseen is not None
    return Screened(
        outcomes.plan.mode,
        **total,
        bound=bound,
        each=unseen.bound(LEVEL),
        precision=precisions[0],
        onednn=all(record.onednn for record in records),
    )


def find_parts(names: Sequence[str]) -> list[Path]:
    """Folders of the disabling sweeps in the named folders and their direct subfolders, in order.

    Raises:
        UserError: If a named folder has no finished sweep, or has an unfinished one.
    """
    folders: dict[Path, Path] = {}
    for name in names:
        folder = Path(name)
        if not folder.is_dir():
            raise UserError(f"'{name}' is not a directory; give run folders of analysis=disable_* or a sweep's folder.")
        parts = [path for path in runs_in(folder) if _is_part(path)]
        unfinished = [path for path in parts if not (path / FINISHED).is_file()]
        if unfinished:
            listing = ", ".join(f"'{path}'" for path in unfinished)
            raise UserError(
                f"Not finished: {listing}; finish {'it' if len(unfinished) == 1 else 'them'} with "
                f"{resume_command(folder)}, or list only the finished parts, runs=[<folder>,<folder>]."
            )
        if not parts:
            raise UserError(
                f"'{name}' has no finished disabling sweep; give run folders of analysis=disable_* or a sweep's folder."
            )
        for path in parts:
            folders.setdefault(path.resolve(), path)
    return list(folders.values())


def _is_part(folder: Path) -> bool:
    """Whether a run disables heads, judged by its folder; true if it has not written its settings yet."""
    if (folder / "ablation.parquet").is_file() or not (folder / CONFIG_COPY).is_file():
        return True
    analyses = Run(folder, "", "", "", "").config().get("analysis")
    sections = analyses.values() if isinstance(analyses, Mapping) else ()
    return any(isinstance(section, Mapping) and _DISABLES in str(section.get("_target_")) for section in sections)


def read_part(folder: Path) -> Part:
    """Read a finished part.

    Raises:
        UserError: If a file is missing or cannot be read; the message names it.
    """
    run = Run.open(folder)
    config = run.config()
    try:
        task, settings = task_from_config(config["task"]), AblationSettings.read("ablation", config["ablation"])
        report = ReportSettings.read("report", config["report"])
    except KeyError as error:
        raise UserError(
            f"'{run.config_path}' has no section {error}; give the folder of an analysis=disable_*."
        ) from error
    rows = AblationTable.read(run.ablation_path).rows() if run.ablation_path.is_file() else []
    paths = sorted((folder / "ablation").glob(f"{CHECKPOINT}-*.safetensors"))
    if not paths or not rows:
        raise UserError(
            f"'{folder}' has no outcomes ({'ablation.parquet' if paths else f'ablation/{CHECKPOINT}-*.safetensors'} "
            "is missing or empty); run that part again, or remove it."
        )
    if len(paths) > 1:
        raise UserError(
            f"'{folder}' has {len(paths)} sweeps ({', '.join(path.name for path in paths)}); remove all but the one "
            "to merge."
        )
    _, step, *_ = paths[0].name.split("-")
    if not step.isdecimal():
        raise UserError(f"'{paths[0]}' has no step in its name; expected {CHECKPOINT}-<step>-<mode>.safetensors.")
    try:
        code = str(json.loads((folder / FINISHED).read_text("utf-8"))["code"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"'{folder / FINISHED}' cannot be read ({error}); run that part again.") from error
    return Part(run, config, task, settings, int(step), code, report, Outcomes.read(paths[0]), rows)


def check_parts(parts: Sequence[Part]) -> None:
    """Raise UserError, naming both folders, if two sweeps are not parts of one."""
    first = parts[0]
    for part in parts[1:]:
        for name, left, right in (
            ("mode", first.settings.mode, part.settings.mode),
            ("code", first.code, part.code),
            ("run", first.run.name, part.run.name),
            ("initialisation", first.run.init, part.run.init),
            ("checkpoint", _name(first.config.get("checkpoint")), _name(part.config.get("checkpoint"))),
            ("step", first.step, part.step),
            ("evaluation set", first.rows[0]["evaluation"], part.rows[0]["evaluation"]),
            *((key, _at(first.config, key), _at(part.config, key)) for key in _SAME),
            *(
                (f"ablation.{key}", getattr(first.settings, key), getattr(part.settings, key))
                for key in AblationSettings.model_fields
                if key not in _PLAN_KEYS
            ),
        ):
            if left != right:
                raise UserError(
                    f"'{first.run.folder}' and '{part.run.folder}' differ in their {name} ({_short(left)} and "
                    f"{_short(right)}), so they are not parts of one sweep; remove one of them, or run it again."
                )


def missing_layers(plan: Plan) -> list[str]:
    """Sentences about the heads and layers that the merged plan lacks."""
    sentences = []
    for kind in COMPONENTS:
        covered = {variant.layer for variant in plan.variants if variant.kind == kind.name}
        missing = [layer for layer in range(plan.num_layers) if layer not in covered]
        if covered and missing:
            layers = ", ".join(map(str, missing))
            sentences.append(f"No part disables {kind.plural} of layer{'s' * (len(missing) > 1)} {layers}.")
    return sentences


def _name(checkpoint: Any) -> str:
    return Path(str(checkpoint)).name


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _short(value: Any) -> str:
    return shown(value) if not isinstance(value, Mapping) else shown(value.get("name", dict(value)))
