"""Pages of finished runs, made without a model: reports, comparisons, papers and power analyses."""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bertsecrets.cli.build import run_folder
from bertsecrets.cli.settings import read_compare
from bertsecrets.errors import UserError
from bertsecrets.keys import PlanKeys, ReportKeys
from bertsecrets.pages.power_page import PowerPlan, plan_runs
from bertsecrets.papers.names import page_files, page_name
from bertsecrets.papers.page import find_page
from bertsecrets.present.console import print_lines
from bertsecrets.reporting.comparison import write_comparison
from bertsecrets.reporting.conditions import check_sizes
from bertsecrets.reporting.run_report import report_run
from bertsecrets.reporting.runs import find_runs, left_out
from bertsecrets.results.config_copy import plain, write_config
from bertsecrets.results.files import in_command
from bertsecrets.results.run import SWEEP_FILE, Run
from bertsecrets.sweeps.output_folder import keep_results
from bertsecrets.sweeps.run_folder import check_unchanged
from bertsecrets.sweeps.trust import check_links

COMPARISON = "comparison"
"""Folder of a sweep's pages inside the sweep's folder."""


def report_again(config: DictConfig) -> list[Path]:
    """Rebuild the reports and figures of a run, or of every finished run of a sweep; return the pages.

    A sweep's comparison, and the paper's page if there is one, are rebuilt too.

    Raises:
        UserError: If the folder holds no finished run.
    """
    keys = ReportKeys.read("", plain(config))
    folder = Path(keys.run)
    check_links(folder)
    runs, unfinished = find_runs([str(folder)])
    for finished in runs:
        # Check all runs before replacing any page.
        check_unchanged(finished.folder)
    pages = []
    for finished in runs:
        run = Run.open(finished.folder)
        report_run(run, keys.heads, keys.trusted, keys.figures).write(run)
        pages.append(run.report_path)
    if len(runs) > 1:
        pages += compare_sweep(folder, paper=keys.paper, trusted=keys.trusted)
    print_lines(*left_out(unfinished), *(f"Report: {page}" for page in pages))
    return pages


def compare_runs(config: DictConfig) -> list[Path]:
    """Compare the runs that ``runs`` names; return the pages.

    Pages of a sweep go to the sweep's folder unless ``hydra.run.dir`` is given, others to Hydra's output folder.

    Raises:
        UserError: If a folder holds no finished run, or the runs' heads cannot be compared.
    """
    keys = read_compare(plain(config))
    names = [keys.runs] if isinstance(keys.runs, str) else keys.runs
    runs, unfinished = find_runs(names)
    for run in runs:
        check_unchanged(run.folder)
    if len(runs) < 2 and not keys.paper:
        raise UserError(
            " ".join(
                [
                    f"runs has only one finished run, '{runs[0].folder}'; give at least two, or make the page of one "
                    f"run with python -m bertsecrets report run={in_command(runs[0].folder)}.",
                    *left_out(unfinished),
                ]
            )
        )
    name = page_name(keys.paper)
    page = find_page(name, keys.statements) if name else None
    same_size = len({run.size for run in runs if run.size is not None}) < 2
    if not (page is not None and page.sizes_may_differ) and (keys.heads or page is not None):
        check_sizes(runs)
    folder = _of_sweep(names) or run_folder()
    folder.mkdir(parents=True, exist_ok=True)
    if folder == run_folder():
        write_config(config, folder)
    pages = [write_comparison(runs, unfinished, folder, heads=keys.heads and same_size, trusted=keys.trusted)]
    if page is not None:
        pages.append(page.write(runs, folder, unfinished))
    print_lines(*left_out(unfinished), *map(page_line, pages))
    return pages


def page_line(page: Path) -> str:
    """The line that prints a page's path."""
    return f"{'Comparison' if page.stem == COMPARISON else 'Page'}: {page}"


def _of_sweep(names: Sequence[str]) -> Path | None:
    """Folder of a sweep's pages; None unless the runs are one sweep and no other folder is given."""
    names_folder = any(argument.startswith("hydra.run.dir=") for argument in HydraConfig.get().overrides.hydra)
    if names_folder or len(names) != 1 or not (Path(names[0]) / SWEEP_FILE).is_file():
        return None
    check_links(Path(names[0]))
    return Path(names[0]).absolute() / COMPARISON


def compare_sweep(folder: Path, *, paper: bool | str, trusted: list[str] | None = None) -> list[Path]:
    """Write the pages that compare a sweep's finished runs into its folder :data:`COMPARISON`; a single run gets only a
    paper's page.

    Args:
        folder: Folder of the sweep.
        paper: The paper whose page is written too; true for Kovaleva et al.
        trusted: Classes of other packages that may compare their experiments, ``module:class``.
    """
    runs, unfinished = find_runs([str(folder)])
    target = folder / COMPARISON
    pages = []
    if len(runs) > 1:
        same_size = len({run.size for run in runs if run.size is not None}) < 2
        pages.append(write_comparison(runs, unfinished, target, heads=same_size, trusted=trusted or ()))
    requested = page_name(paper)
    for name in dict.fromkeys((*page_files(), *([requested] if requested else []))):
        page = find_page(name)
        # An existing page would show an earlier state of the runs.
        if name == requested or (target / page.file).is_file():
            if not page.sizes_may_differ:
                check_sizes(runs)
            pages.append(page.write(runs, target, unfinished))
    return pages


def plan(config: DictConfig) -> PowerPlan:
    """Simulate the power of larger sweeps, and write the page and its numbers to Hydra's output folder.

    Raises:
        UserError: If a run cannot serve as a pilot.
    """
    keys = PlanKeys.read("", plain(config))
    page = plan_runs([keys.runs] if isinstance(keys.runs, str) else keys.runs, keys.margin, keys.repeats)
    keep_results()
    run_folder().mkdir(parents=True, exist_ok=True)
    path = page.write(run_folder())
    print_lines(*page.report.lead, f"Plan: {path}")
    return page
