"""Lays finished runs side by side: one page, its figures, and the numbers behind them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from omegaconf import DictConfig, ListConfig
from rich.console import Console

from bertsecrets.comparison.conditions import Condition, check_sizes, find_conditions
from bertsecrets.comparison.runs import FinishedRun, find_runs
from bertsecrets.doors.build import run_folder
from bertsecrets.doors.comparison_heads import ablation_section, drift_against_ablation, layer_section, measure_sections
from bertsecrets.doors.comparison_patterns import pattern_section
from bertsecrets.doors.paper.page import write_paper
from bertsecrets.doors.unit import write_config
from bertsecrets.errors import UserError
from bertsecrets.results.figures.replicates import ScoreRow, score_rows
from bertsecrets.results.figures.saving import save_figure
from bertsecrets.results.figures.style import number
from bertsecrets.results.files import atomic_write
from bertsecrets.results.report.content import FigureBlock, Report, Section, Table
from bertsecrets.results.report.page import write_report
from bertsecrets.statistics.replicates import Interval, mean_interval

PAGE = "comparison.html"

_CORRELATIONS = ("matthews", "pearson", "spearman")


def compare_runs(config: DictConfig) -> Path:
    """Compares what ``compare`` names, in Hydra's output folder; returns the page.

    Raises:
        UserError: If a folder holds no finished run, or the runs' heads cannot be laid side by side.
    """
    given = [config.compare] if isinstance(config.compare, str) else config.compare
    if not isinstance(given, (list, ListConfig)) or not given:
        raise UserError(f"compare is {config.compare}; expected run folders, [<folder>,<folder>], or a sweep's folder.")
    runs, unfinished = find_runs([str(each) for each in given])
    if config.compare_heads:
        check_sizes(runs)
    folder = run_folder()
    folder.mkdir(parents=True, exist_ok=True)
    write_config(config, folder)
    page = write_comparison(runs, unfinished, folder, heads=config.compare_heads)
    if config.paper:
        check_sizes(runs)
        write_paper(runs, folder)
    return page


def compare_sweep(folder: Path, paper: bool = False) -> Path | None:
    """The page of a sweep's finished runs, in its folder ``comparison``; None where there are fewer than two.

    Args:
        folder: The sweep's.
        paper: Whether the page that follows Kovaleva et al. is made, too.
    """
    runs, unfinished = find_runs([str(folder)])
    if len(runs) < 2:
        return None
    same_size = len({run.size for run in runs if run.size is not None}) < 2
    page = write_comparison(runs, unfinished, folder / "comparison", heads=same_size)
    if paper:
        check_sizes(runs)
        write_paper(runs, folder / "comparison")
    return page


def write_comparison(runs: Sequence[FinishedRun], unfinished: Sequence[str], folder: Path, *, heads: bool) -> Path:
    """Writes page, figures and ``comparison.parquet`` into a folder; returns the page.

    Args:
        runs: At least one finished run.
        unfinished: Names of runs that are left out.
        folder: Made if missing.
        heads: Whether the runs' heads are compared, or their scores alone.
    """
    conditions, varying = find_conditions(runs)
    figures: dict[str, Figure] = {}
    lead: list[str] = [_what(runs, conditions, varying)]
    if unfinished:
        lead.append(f"Left out, as not finished: {', '.join(unfinished)}.")
    labelled = any(each["constant"] for run in runs for each in run.scores["sets"].values())
    sections = [_scores(conditions, varying, figures, lead)] if labelled else []
    rows: list[dict[str, object]] = []
    if heads:
        patterns = pattern_section(conditions, varying, figures, lead)
        sections += [patterns] if patterns is not None else []
        sections += measure_sections(conditions, varying, figures, lead, rows)
        found = ablation_section(conditions, varying, figures, lead, rows)
        layers = layer_section(conditions, varying, figures, lead)
        both = drift_against_ablation(conditions, varying, figures, lead)
        sections += [section for section in (found, layers, both) if section is not None]
    else:
        lead.append("Only scores are compared: the runs have heads of different numbers, or heads were not asked for.")
    for name, figure in figures.items():
        save_figure(figure, folder / "figures" / f"{name}.png")
        save_figure(figure, folder / "figures" / f"{name}.svg")
    numbers = folder / "comparison.parquet"
    if rows:
        with atomic_write(numbers) as temporary:
            pq.write_table(pa.Table.from_pylist(rows), temporary, compression="zstd")
    else:
        numbers.unlink(missing_ok=True)
    report = Report(
        title="Runs side by side",
        subtitle=f"{len(runs)} runs of {len(conditions)} conditions",
        facts=[
            (name, ", ".join(sorted({each.factors[name] for each in conditions}))) for name in conditions[0].factors
        ],
        lead=lead,
        sections=[*sections, _runs(runs), _reading(with_heads=bool(rows))],
    )
    write_report(folder / PAGE, report)
    Console().print(f"\nComparison: {folder / PAGE}", soft_wrap=True)
    return folder / PAGE


def _what(runs: Sequence[FinishedRun], conditions: Sequence[Condition], varying: Sequence[str]) -> str:
    seeds = sorted({len(condition.runs) for condition in conditions})
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    what = f"They differ in {', '.join(varying)}." if varying else "They differ in their seed alone."
    return f"{len(runs)} finished runs, {each} for each of {len(conditions)} condition{'s' * (len(conditions) > 1)}. {what}"


def _scores(
    conditions: Sequence[Condition], varying: Sequence[str], figures: dict[str, Figure], lead: list[str]
) -> Section:
    cells, drawn, losers = [], [], []
    for condition in conditions:
        for name, each in condition.runs[0].scores["sets"].items():
            for metric in each["constant"]:
                values = [_number(run.scores["sets"][name]["model"][metric]) for run in condition.runs]
                constant = _number(each["constant"][metric])
                # A constant answer correlates with nothing: its correlation is undefined, and no better than none.
                floor = 0.0 if metric in _CORRELATIONS and not math.isfinite(constant) else constant
                found = _within(mean_interval(values), metric)
                cells.append(
                    [
                        condition.label(varying),
                        f"{name}/{metric}",
                        str(found.count),
                        _shown(found.mean),
                        f"{_shown(found.low)} to {_shown(found.high)}" if found.count > 1 else "–",
                        _shown(constant),
                        str(each["count"]),
                    ]
                )
                if metric == next(iter(each["constant"])):
                    label = f"{condition.label(varying)} · {metric}"
                    drawn.append(ScoreRow(label, values, found.low, found.high, constant))
                    if math.isfinite(floor) and found.mean <= floor:
                        losers.append(label)
    figures["scores"] = score_rows(
        drawn,
        title="Scores by condition",
        note="intervals: Student's t at 95 % over seeds, cut off at the metric's ends",
    )
    if losers:
        lead.append(
            f"On average no better than a constant answer: {'; '.join(losers)}. Heads of such models say little of the task."
        )
    header = ["condition", "metric", "seeds", "mean", "95 % interval", "constant answer", "examples"]
    return Section(
        "Scores (table 1 of Kovaleva et al.)" if "init" in varying else "Scores",
        [
            "The interval is over seeds: it says how much fine-tuning itself varies, not how large the development set is. "
            "With one seed there is none, and with two it says next to nothing; it is cut off at the ends of the metric's range."
        ],
        [Table(header, cells, "Mean over seeds")],
        [FigureBlock(figures["scores"], "Every seed's score, by condition.", "Dot chart of scores by condition.")],
    )


def _runs(runs: Sequence[FinishedRun]) -> Section:
    rows = [[run.name, str(run.seed), f"{run.scores['seconds']:.0f} s"] for run in runs]
    return Section("The runs", tables=[Table(["folder", "seed", "time"], rows)])


def _reading(with_heads: bool) -> Section:
    return Section(
        "How to read this page",
        [
            "Layers and heads are counted from 0. Panels that stand together share one colour scale.",
            "A difference tested over seeds holds for the way of training; one tested over examples, where a condition has "
            "a single seed, holds for these very models only. Either way p-values are corrected over all heads of a panel "
            "(Benjamini and Hochberg), and pale cells are those that may be chance.",
            "ICC is the intraclass correlation ICC(2,1) of Shrout and Fleiss (1979): the share of variance between heads "
            "that does not come from the seed. Near 1, one run tells about all; near 0, a head's number is its seed's.",
            *(["Every head's mean and interval is in comparison.parquet beside this page."] if with_heads else []),
        ],
    )


def _within(interval: Interval, metric: str) -> Interval:
    """Limits inside the metric's range: with few seeds, Student's t runs far beyond it."""
    least = -1.0 if metric in _CORRELATIONS else 0.0
    return replace(interval, low=max(interval.low, least), high=min(interval.high, 1.0))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _shown(value: float) -> str:
    return number(value, 3) if math.isfinite(value) else "–"
