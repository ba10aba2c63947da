"""Merge disabling sweeps that were spread over several runs into one."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from bertsecrets.ablation.judging import judged_grids, judged_rows, selection_checks
from bertsecrets.ablation.outcomes import Outcomes, merge
from bertsecrets.ablation.section import ablation_sections
from bertsecrets.ablation.settings import JUDGING, AblationSettings
from bertsecrets.cli.build import run_folder
from bertsecrets.data.task import task_from_config
from bertsecrets.errors import UserError
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.config_copy import CONFIG_COPY, plain, read_config, write_config
from bertsecrets.results.report.content import Report, joined
from bertsecrets.results.report.page import save_figures, write_report
from bertsecrets.results.run import CHECKPOINT, Run


def merge_runs(config: DictConfig) -> AblationTable:
    """Merge the sweeps in the run folders (or the sweep folder) named by ``merge`` into Hydra's output folder.

    Raises:
        UserError: If a folder holds no sweep, or the sweeps are not parts of one.
    """
    folders = find_runs([config.merge] if isinstance(config.merge, str) else list(config.merge))
    own = read_config(folders[0])
    task = task_from_config(plain(own.task))
    rows = [row for folder in folders for row in AblationTable.read(folder / "ablation.parquet").rows()]
    first = rows[0]
    run = Run(run_folder(), first["run"], first["model"], first["task"], first["init"])
    run.folder.mkdir(parents=True, exist_ok=True)
    write_config(config, run.folder)
    known = plain(own.ablation)
    settings = AblationSettings(**{name: known[name] for name in JUDGING if name in known})
    table = AblationTable.from_rows([])
    for name in sorted({path.name for folder in folders for path in (folder / "ablation").glob(f"{CHECKPOINT}-*")}):
        paths = [folder / "ablation" / name for folder in folders if (folder / "ablation" / name).is_file()]
        outcomes = merge([Outcomes.read(path) for path in paths])
        identity = {key: first[key] for key in ("run", "model", "task", "init", "stage", "evaluation")}
        identity["step"] = int(name.split("-")[1])
        rows = judged_rows(outcomes, task, identity, **settings.judging())
        table = table.append(AblationTable.from_rows(rows))
        outcomes.write(run.folder / "ablation" / name, task)
        run.add_checks(selection_checks(outcomes, task, rows, settings.seed))
        run.add(*(run.rows(grid, identity["stage"], identity["step"]) for grid in judged_grids(outcomes.plan, rows)))
    table.write(run.ablation_path)
    _report(run, table, folders)
    return table


def find_runs(names: Sequence[str]) -> list[Path]:
    """Folders of finished sweeps among the named folders and their direct subfolders, in order.

    Raises:
        UserError: If a named folder holds none.
    """
    folders: list[Path] = []
    for name in names:
        folder = Path(name)
        inside = [folder, *sorted(folder.iterdir())] if folder.is_dir() else []
        runs = [
            folder for folder in inside if (folder / "ablation.parquet").is_file() and (folder / CONFIG_COPY).is_file()
        ]
        if not runs:
            raise UserError(
                f"'{name}' holds no finished disabling sweep; give run folders of analysis=disable_* or a sweep's folder."
            )
        folders += [folder for folder in runs if folder not in folders]
    return folders


def _report(run: Run, table: AblationTable, folders: Sequence[Path]) -> None:
    section = joined(ablation_sections(table, run.checks()))
    report = Report(
        title=f"Which heads does {run.model} need on {run.task}?",
        subtitle=f"{run.name}, merged from {len(folders)} runs",
        facts=[("model", run.model), ("task", run.task), ("initialisation", run.init.replace("_", " "))],
        sections=[] if section is None else list(section.flat()),
    )
    save_figures(report.figures, run.figures)
    write_report(run.report_path, report)
    Console().print(f"Merged {len(folders)} sweeps. Report: {run.report_path}", soft_wrap=True)
