"""Comparison of finished runs: a page, its figures, and their numbers."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from bertsecrets.ablation.seeds import effects
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.scatters import ScatterPanel, head_scatter
from bertsecrets.present.figures.style import seeds_in_words
from bertsecrets.present.grid import MOST_PANELS, correlation_in_words, left_out_panels
from bertsecrets.present.presenter import presenter_of
from bertsecrets.present.report.content import FigureBlock, NextStep, Report, Section, Table
from bertsecrets.present.report.page import save_figures, write_report
from bertsecrets.reporting.conditions import Condition, contrasts, find_conditions
from bertsecrets.reporting.overview import DisabledHeads
from bertsecrets.reporting.run_report import address_of, heads_section, heads_together
from bertsecrets.reporting.runs import FinishedRun, constant_score, left_out
from bertsecrets.results.disabled import named
from bertsecrets.results.files import copied, on_page, write_parquet
from bertsecrets.results.formatting import counted, low_to_high, number, with_limits
from bertsecrets.results.rows import RecordError
from bertsecrets.results.run import FINISHED, Run
from bertsecrets.results.scores import CORRELATIONS, INTERVALS, score_interval
from bertsecrets.results.views import Comparison
from bertsecrets.statistics.ranks import rank_correlation
from bertsecrets.statistics.replicates import Interval

PAGE = "comparison.html"

_SCORES = "Scores"


def write_comparison(runs: Sequence[FinishedRun], unfinished: Sequence[str], folder: Path, *, heads: bool) -> Path:
    """Write the page, its figures and ``comparison.parquet`` to a folder; return the page's path.

    Args:
        runs: At least one finished run.
        unfinished: Names of the unfinished runs, which are skipped.
        folder: Created if missing.
        heads: Whether to compare heads, or only scores.
    """
    conditions, varying = find_conditions(runs)
    notes = [*_unlearned_in_words(conditions, varying), *left_out(unfinished)]
    labelled = any(scores.constant for run in runs for scores in run.scores.sets.values())
    sections = [_scores(conditions, varying)] if labelled else []
    if heads:
        compared = compare_experiments(conditions, varying)
        # Runs that disable one thing each share the scores of the intact model.
        leads = bool(compared) and all(named(run.config) for run in runs)
        sections = [*compared, *sections] if leads else [*sections, *compared]
        both = _drift_and_ablation(conditions, varying)
        sections += [both] if both is not None else []
        only, *others = [run for condition in conditions for run in condition.runs]
        together = None if others else heads_together(only.experiments)
        if together is not None:
            together.write(folder)
            disabled = _disabled(only)
            sections.append(heads_section(together, None if disabled is None else disabled.by_need))
    else:
        notes.append("Only scores are compared: the runs have different numbers of heads, or heads=false was given.")
    flat = [part for section in sections for part in section.flat()]
    rows = [row for section in flat for row in section.rows]
    listed = [[run.name, str(run.seed), f"{run.scores.seconds:.0f} s"] for run in runs]
    links = [address_of(Run.open(run.folder).report_path, folder) for run in runs]
    of_runs = Section("The runs", tables=[Table(["report", "seed", "time"], listed, links=links)])
    report = Report(
        title=_title(conditions, flat),
        subtitle=_runs_in_words(runs, conditions, varying),
        facts=[
            (name, ", ".join(sorted({condition.factors[name] for condition in conditions})))
            for name in conditions[0].factors
        ],
        notes=notes,
        sections=[*flat, of_runs, _reading(with_heads=bool(rows))],
        steps=_steps(runs),
    )
    save_figures(report.figures, folder / "figures")
    numbers = folder / "comparison.parquet"
    if rows:
        write_parquet(numbers, pa.Table.from_pylist([dict(row) for row in rows]))
    else:
        # Those of an earlier page do not belong to this one.
        numbers.unlink(missing_ok=True)
    write_report(folder / PAGE, report)
    return folder / PAGE


def compare_experiments(conditions: Sequence[Condition], varying: Sequence[str]) -> list[Section]:
    """One section per experiment of any run."""
    declarations = {
        name: declaration
        for condition in conditions
        for run in condition.runs
        for name, (declaration, _) in run.experiments.items()
    }
    pairs = contrasts(conditions, varying)
    sections = []
    for name, declaration in declarations.items():
        replicates = {
            condition.label(varying): replicates
            for condition in conditions
            if (replicates := condition.replicates(name, of_task=declaration.shown.reads_task)) is not None
        }
        try:
            found = presenter_of(declaration).comparison(Comparison(replicates, pairs)) if replicates else None
        except RecordError as error:
            found = Section(declaration.title, paragraphs=[str(error)])
        sections += [found] if found is not None else []
    return sections


def _title(conditions: Sequence[Condition], sections: Sequence[Section]) -> str:
    """The page's answer in a sentence: which heads are needed, if any were disabled, else the first finding."""
    only, *others = [run for condition in conditions for run in condition.runs]
    if not others and not conditions[0].unlearned and (disabled := _disabled(only)) is not None:
        return disabled.title()
    summaries = [section.summary for section in sections if section.summary]
    about_heads = [section.line for section in sections if section.findings and not section.title.startswith(_SCORES)]
    about_scores = [section.line for section in sections if section.findings]
    return next(
        iter([*summaries, *about_heads, *about_scores]), "These runs have neither scores nor head numbers to compare."
    )


def _disabled(run: FinishedRun) -> DisabledHeads | None:
    """The heads that a run or an analysis of its weights disabled."""
    return DisabledHeads.of(run.experiments["ablation"][1].run) if "ablation" in run.experiments else None


def _runs_in_words(runs: Sequence[FinishedRun], conditions: Sequence[Condition], varying: Sequence[str]) -> str:
    seeds = sorted({len(condition.runs) for condition in conditions})
    per_condition = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    difference = f"They differ in {', '.join(varying)}." if varying else "They differ only in their seed."
    # A run and its analyses share a model.
    models = sum(len(condition.runs) for condition in conditions)
    of = f" about {counted(models, 'model')}" if models < len(runs) else ""
    return (
        f"{len(runs)} finished runs{of}, {per_condition} for each of {counted(len(conditions), 'condition')}. "
        f"{difference}"
    )


def _scores(conditions: Sequence[Condition], varying: Sequence[str]) -> Section:
    cells, drawn, losers = [], [], []
    means: dict[tuple[str, str, str], dict[str, Interval]] = {}
    for condition in conditions:
        for name, scores in condition.runs[0].scores.sets.items():
            for metric in scores.constant:
                values = [run.scores.of(name, metric) for run in condition.runs]
                constant = constant_score(condition.runs, name, metric)
                # The correlation of a constant answer is undefined: it counts as 0 here.
                floor = 0.0 if metric in CORRELATIONS and not math.isfinite(constant) else constant
                interval = score_interval(metric, values, scores.count)
                cells.append(
                    [
                        condition.label(varying),
                        f"{name}/{metric}",
                        str(interval.count),
                        number(interval.mean),
                        low_to_high(interval.low, interval.high),
                        number(constant),
                        str(scores.count),
                    ]
                )
                if metric == next(iter(scores.constant)):
                    key = condition.task, name, metric
                    means.setdefault(key, {})[condition.label(varying)] = interval
                    label = f"{condition.label(varying)} · {metric}"
                    drawn.append(IntervalRow(label, interval.mean, interval.low, interval.high, constant, values))
                    if math.isfinite(floor) and interval.mean <= floor:
                        losers.append(label)
    figure = interval_rows(
        drawn,
        title="Scores by condition",
        unit="score",
        reference=None,
        note=f"rings: seeds; bars: {INTERVALS}, clipped to the metric's range",
        value="mean over seeds",
        baseline="majority baseline",
    )
    findings = [_extremes_in_words(metric, by_label) for (*_, metric), by_label in means.items() if len(by_label) > 1]
    if losers:
        findings.append(
            f"On average no better than the majority baseline: {', '.join(losers)}. The heads of such models reveal "
            "little about the task."
        )
    header = ["condition", "metric", "seeds", "mean", "95 % interval", "majority baseline", "examples"]
    return Section(
        f"{_SCORES} (table 1 of Kovaleva et al.)" if "init" in varying else _SCORES,
        findings,
        [
            "Intervals cover seeds and examples. With one seed they cover examples only and do not generalise to "
            "other seeds; for F1, AUC and Matthews' correlation they cover seeds only. They are clipped to the "
            "metric's range."
        ],
        [Table(header, cells, "Model and majority baseline, mean over seeds")],
        [FigureBlock("scores", figure, "Every seed's score, by condition.", "Dot chart of scores by condition.")],
        # This is the answer for such models, whatever their heads do.
        summary="On average no model beats the majority baseline." if losers and len(losers) == len(drawn) else "",
    )


def _unlearned_in_words(conditions: Sequence[Condition], varying: Sequence[str]) -> list[str]:
    """Sentences on runs that learned nothing, whose heads are skipped, and on conditions with too few runs left."""
    names = [run.name for condition in conditions for run in condition.unlearned]
    few = [
        condition.label(varying)
        for condition in conditions
        if condition.unlearned and len(condition.runs) > 1 and len(condition.runs) - len(condition.unlearned) < 2
    ]
    reasons = {
        "Heads not interpreted, because the model does not significantly beat the majority baseline": names,
        "No verdicts over seeds, because fewer than two runs are left": few,
    }
    return [f"{reason}: {', '.join(some)}." for reason, some in reasons.items() if some]


def _extremes_in_words(metric: str, means: Mapping[str, Interval]) -> str:
    """The conditions with the highest and the lowest mean, with intervals."""
    defined = {label: interval for label, interval in means.items() if math.isfinite(interval.mean)}
    if not defined:
        return f"The {metric} of all {len(means)} conditions is undefined."
    best, worst = (pick(defined, key=lambda label: defined[label].mean) for pick in (max, min))
    highest, lowest = (
        f"{label} has {with_limits(defined[label].mean, defined[label].low, defined[label].high)}"
        for label in (best, worst)
    )
    return f"Highest mean {metric}: {highest}; lowest: {lowest}." if best != worst else f"Mean {metric}: {highest}."


def _steps(runs: Sequence[FinishedRun]) -> list[NextStep]:
    """Commands for a closer look at the same runs."""
    parent, *others = {run.folder.parent for run in runs}
    listed = [os.path.abspath(run.folder) for run in runs]
    # The folder of a sweep stands for all of its runs.
    whole = not others and len(runs) > 1 and len([*parent.glob(f"*/{FINISHED}")]) == len(runs)
    compare = f"python -m bertsecrets compare runs={copied(os.path.abspath(parent) if whole else listed)}"
    return [
        NextStep("Which published statements hold in these models?", f"{compare} paper=statements", "about a minute"),
        NextStep(
            "How do these models answer common questions about heads?", f"{compare} paper=questions", "about a minute"
        ),
        NextStep(
            "What is in a single run?",
            f"python -m bertsecrets report run={on_page(runs[0].folder)}",
            "about 30 s",
        ),
    ]


def _drift_and_ablation(conditions: Sequence[Condition], varying: Sequence[str]) -> Section | None:
    """Whether the heads that changed are the heads that matter; None if either is unknown."""
    panels, rhos, seeds = [], [], []
    for condition in conditions:
        drift = condition.grids("drift", "cosine", of_task=True)
        disabled = condition.replicates("ablation", of_task=True)
        effect = None if disabled is None else effects(disabled, "head")
        if drift is None or effect is None:
            continue
        drift_LH, change_LH = 1 - drift.value_RLH.mean(axis=0), 100 * effect.delta_RLH.mean(axis=0)
        x, y = drift_LH.ravel(), change_LH.ravel()
        defined = np.isfinite(x) & np.isfinite(y)
        if defined.sum() < 3:
            continue
        correlation = rank_correlation(drift_LH, change_LH)
        seeds.append(len(effect.delta_RLH))
        label = condition.label(varying)
        needed = effect.needed_LH.ravel()
        panels.append(
            ScatterPanel(f"{label} (ρ = {number(correlation.rho, 2)})", x[defined], y[defined], needed[defined])
        )
        rhos += [(label, correlation)] if math.isfinite(correlation.rho) else []
    if not panels:
        return None
    figure = head_scatter(
        panels[:MOST_PANELS],
        title="Are the heads that changed the heads that matter?",
        x_label="drift (1 − cosine)",
        y_label="change of score when disabled (points)",
        note=f"one dot per head, {seeds_in_words(seeds)}; filled: needed{' over seeds' if max(seeds) > 1 else ''}; "
        "ρ: rank correlation" + left_out_panels(panels),
    )
    findings = []
    if rhos:
        low, high = min(rhos, key=lambda item: item[1].rho), max(rhos, key=lambda item: item[1].rho)
        lowest, highest = (f"{correlation_in_words(correlation)} for {label}" for label, correlation in (low, high))
        judged = [correlation for _, correlation in rhos if correlation.judged]
        significant = sum(correlation.significant for correlation in judged)
        findings.append(
            "The rank correlation of drift with the change of score when the head is disabled (negative: heads that "
            f"changed more matter more) is {lowest if len(rhos) == 1 else f'between {lowest} and {highest}'}; within "
            f"layers it is significant in {significant} of {len(judged)} conditions with enough heads for a test."
        )
    block = FigureBlock("drift_against_ablation", figure, "Drift against the effect of disabling.", "Scatter of heads.")
    return Section("Drift against disabling", findings, figures=[block])


def _reading(with_heads: bool) -> Section:
    return Section(
        "How to read this page",
        paragraphs=[
            "Layers and heads are counted from 0. The panels of a figure share one colour scale.",
            "A difference tested over seeds generalises to other seeds. A difference tested over examples, used for "
            "conditions with a single seed, applies to these models only. P-values are corrected over all heads of a "
            "panel (Benjamini and Hochberg); pale cells are not significant.",
            "ICC is the intraclass correlation ICC(2,1) of Shrout and Fleiss (1979): the share of variance between "
            "heads that is not due to the seed. Near 1, one run represents all; near 0, a head's number depends on "
            "the seed.",
            *(
                ["comparison.parquet, next to this page, has the mean and interval of every head."]
                if with_heads
                else []
            ),
        ],
    )
