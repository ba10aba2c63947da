"""Pages made by commands: reports, comparisons, papers and power analyses of finished runs, and views of heads."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bertsecrets.cli.analyze import load_models
from bertsecrets.cli.build import run_folder
from bertsecrets.cli.run_settings import run_of
from bertsecrets.cli.settings import ModelSettings, read_compare, read_model
from bertsecrets.data.sources.base import check_characters
from bertsecrets.errors import UserError
from bertsecrets.keys import PlanKeys, ReportKeys, ViewKeys
from bertsecrets.models.checkpoint import initial_checkpoint
from bertsecrets.models.files import output_names
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import INITIAL, model_folder
from bertsecrets.pages.head_dossier import head_dossier
from bertsecrets.pages.head_view import HeadView, head_view
from bertsecrets.pages.page_view import PageView
from bertsecrets.pages.power_page import PowerPlan, plan_runs
from bertsecrets.papers.names import page_files, page_name
from bertsecrets.papers.page import find_page
from bertsecrets.present.console import print_lines
from bertsecrets.reporting.comparison import write_comparison
from bertsecrets.reporting.conditions import check_sizes
from bertsecrets.reporting.run_report import report_run
from bertsecrets.reporting.runs import find_runs, left_out
from bertsecrets.results.files import in_command
from bertsecrets.results.run import SWEEP_FILE, Run, plain, write_config
from bertsecrets.sweeps.run_folder import check_unchanged, keep_results
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
    keys.load_classes()
    folder = Path(keys.run)
    check_links(folder)
    runs, unfinished = find_runs([str(folder)])
    for finished in runs:
        # Check all runs before replacing any page.
        check_unchanged(finished.folder)
    pages = []
    for finished in runs:
        run = Run.open(finished.folder)
        report_run(run, keys.heads, keys.figures).write(run)
        pages.append(run.report_path)
    if len(runs) > 1:
        pages += compare_sweep(folder, paper=keys.paper)
    print_lines(*left_out(unfinished), *(f"Report: {page}" for page in pages))
    return pages


def compare_runs(config: DictConfig) -> list[Path]:
    """Compare the runs that ``runs`` names; return the pages.

    Pages of a sweep go to the sweep's folder unless ``hydra.run.dir`` is given, others to Hydra's output folder.

    Raises:
        UserError: If a folder holds no finished run, or the runs' heads cannot be compared.
    """
    keys = read_compare(plain(config))
    keys.load_classes()
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
    pages = [write_comparison(runs, unfinished, folder, heads=keys.heads and same_size)]
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


def compare_sweep(folder: Path, *, paper: bool | str) -> list[Path]:
    """Write the pages that compare a sweep's finished runs into its folder :data:`COMPARISON`; a single run gets only a
    paper's page.

    Args:
        folder: Folder of the sweep.
        paper: The paper whose page is written too; true for Kovaleva et al.
    """
    runs, unfinished = find_runs([str(folder)])
    target = folder / COMPARISON
    pages = []
    if len(runs) > 1:
        same_size = len({run.size for run in runs if run.size is not None}) < 2
        pages.append(write_comparison(runs, unfinished, target, heads=same_size))
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


PAGE = "view.html"


def view(config: DictConfig) -> PageView:
    """Write the view of one or two sentences, or else the dossier of a head, to Hydra's output folder.

    Raises:
        UserError: If neither a sentence nor a head is given, a sentence is empty, the head does not exist, or the
            checkpoint cannot be loaded.
    """
    settings = read_model(ViewKeys, plain(config))
    keys = settings.keys
    head = None if keys.head is None else tuple(map(int, keys.head.split(".")))
    if keys.text is not None:
        page: PageView = _view_text(settings, head)
    elif head is None:
        raise UserError(
            "view needs a sentence or a head of a run; give text='The cat sat.', or checkpoint=<run> head=5.1."
        )
    else:
        run = run_of(keys.checkpoint)
        if run is None:
            raise UserError(
                f"head={keys.head} needs a run, but checkpoint is '{keys.checkpoint}'; give checkpoint=<run folder>."
            )
        page = head_dossier(run, *head, progress=True)
    keep_results()
    folder = run_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = page.save(folder / PAGE)
    print_lines(*page.report.lead, f"View: {path}")
    return page


def _view_text(settings: ModelSettings[ViewKeys], start: tuple[int, ...] | None) -> HeadView:
    """The view of one or two sentences, with the head to show first; None for the one that matters most.

    A fine-tuned checkpoint is compared with the model before fine-tuning (or with ``reference``), and its heads can be
    coloured by the numbers of its run.
    """
    keys, run = settings.keys, run_of(settings.keys.checkpoint)
    assert keys.text is not None
    sentences = [keys.text] if isinstance(keys.text, str) else keys.text
    if not all(sentence.strip() for sentence in sentences):
        raise UserError("A sentence of text is empty; give one or two sentences, e.g. text='The cat sat.'.")
    for sentence in sentences:
        check_characters(sentence)
    if run is not None and not (run.folder / "checkpoints").is_dir():
        # The run of an analysis has numbers of heads, but not the model.
        analysed = (run.config().get("trained") or {}).get("folder") or run.foreign or keys.checkpoint
        keys = keys.model_copy(update={"checkpoint": str(analysed)})
        settings = replace(settings, keys=keys)
    tokenizer = load_tokenizer(settings.model)
    name = keys.checkpoint or INITIAL
    untrained = name == INITIAL
    if untrained and keys.reference is None:
        checkpoint = initial_checkpoint(settings.task, settings.model, keys.init, keys.seed)
        reference = None
    else:
        folder = None if run_of(name) is not None else model_folder(name, settings.model.revision)
        if folder is not None and keys.reference is None:
            # A third-party model shows its own classes, whatever the task.
            settings = replace(settings, task=settings.task.without_labels)
            untrained = output_names(folder) is None
        checkpoint, reference = load_models(settings, tokenizer)
    return head_view(
        # An untrained task head has no predictions worth showing.
        checkpoint.model.base_model if untrained else checkpoint.model,
        tokenizer,
        *sentences,
        reference=reference,
        run=run if run is not None and run.heads_path.is_file() else None,
        start=None if start is None else (start[0], start[1]),
    )
