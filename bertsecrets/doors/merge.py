"""Joins sweeps that were spread over several runs: the same result as one sweep over everything."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from omegaconf import DictConfig
from rich.console import Console

from bertsecrets.ablation.judging import judged_grids, judged_rows, selection_checks
from bertsecrets.ablation.outcomes import Outcomes, merge
from bertsecrets.data.task import task_from_config
from bertsecrets.doors.ablation_summary import ablation_sections
from bertsecrets.doors.build import run_folder
from bertsecrets.doors.plain import plain
from bertsecrets.doors.unit import CONFIG_COPY, read_config, write_config
from bertsecrets.errors import UserError
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.figures.saving import save_figure
from bertsecrets.results.report.content import Report
from bertsecrets.results.report.page import write_report
from bertsecrets.results.run import CHECKPOINT, Run


def merge_runs(config: DictConfig) -> AblationTable:
    """Merges the sweeps in the run folders (or the sweep folder) named by ``merge`` into Hydra's output folder.

    Raises:
        UserError: If a folder holds no sweep, or the sweeps are no parts of one.
    """
    folders = find_runs([config.merge] if isinstance(config.merge, str) else list(config.merge))
    own = read_config(folders[0])
    task = task_from_config(plain(own.task))
    rows = [row for folder in folders for row in AblationTable.read(folder / "ablation.parquet").rows()]
    first = rows[0]
    run = Run(run_folder(), first["run"], first["model"], first["task"], first["init"])
    run.folder.mkdir(parents=True, exist_ok=True)
    write_config(config, run.folder)
    judging = {
        name: own.ablation[name] for name in ("level", "false_discovery_rate", "resamples", "permutations", "seed")
    }
    table = AblationTable.from_rows([])
    for name in sorted({path.name for folder in folders for path in (folder / "ablation").glob(f"{CHECKPOINT}-*")}):
        paths = [folder / "ablation" / name for folder in folders if (folder / "ablation" / name).is_file()]
        outcomes = merge([Outcomes.read(path) for path in paths])
        identity = {key: first[key] for key in ("run", "model", "task", "init", "stage", "evaluation")}
        identity["step"] = int(name.split("-")[1])
        found = judged_rows(outcomes, task, identity, **judging)
        table = table.append(AblationTable.from_rows(found))
        outcomes.write(run.folder / "ablation" / name, task)
        run.add_checks(selection_checks(outcomes, task, judging["seed"]))
        run.add(*(run.rows(grid, identity["stage"], identity["step"]) for grid in judged_grids(outcomes.plan, found)))
    table.write(run.ablation_path)
    _report(run, table, folders)
    return table


def find_runs(given: Sequence[str]) -> list[Path]:
    """The run folders with a finished sweep among the folders given and those right inside them, in order.

    Raises:
        UserError: If one of the folders given holds none.
    """
    found: list[Path] = []
    for name in given:
        folder = Path(name)
        inside = [folder, *sorted(folder.iterdir())] if folder.is_dir() else []
        runs = [each for each in inside if (each / "ablation.parquet").is_file() and (each / CONFIG_COPY).is_file()]
        if not runs:
            raise UserError(
                f"'{name}' holds no finished disabling sweep; give run folders of analysis=disable_* or a sweep's folder."
            )
        found += [each for each in runs if each not in found]
    return found


def _report(run: Run, table: AblationTable, folders: Sequence[Path]) -> None:
    figures: dict[str, Figure] = {}
    lead: list[str] = []
    sections = ablation_sections(table, run.checks(), figures, lead)
    for name, figure in figures.items():
        save_figure(figure, run.figures / f"{name}.png")
        save_figure(figure, run.figures / f"{name}.svg")
    report = Report(
        title=f"Which heads does {run.model} need on {run.task}?",
        subtitle=f"{run.name}, merged from {len(folders)} runs",
        facts=[("model", run.model), ("task", run.task), ("initialisation", run.init.replace("_", " "))],
        lead=lead,
        sections=sections,
    )
    write_report(run.report_path, report)
    Console().print(f"Merged {len(folders)} sweeps. Report: {run.report_path}", soft_wrap=True)
