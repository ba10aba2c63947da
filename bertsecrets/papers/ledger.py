"""Tables and sections of statements with their verdicts, also as data."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from bertsecrets.models.spec import INITIAL as BEFORE_TRAINING
from bertsecrets.papers.models import Studied
from bertsecrets.papers.statements.judge import (
    EMBEDDINGS,
    UNTOLD,
    VERDICTS,
    Cell,
    Entry,
    counted,
    depends_on,
    subjects,
    tallied,
)
from bertsecrets.papers.statements.test import interval_in_words
from bertsecrets.present.report.content import NextStep, Section, Table, table
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.formatting import MISSING, listed, p_value
from bertsecrets.results.run import code_of

STORED = "statements.json"
"""File of the verdicts with their numbers, next to the page of all statements."""


def steps(entries: Sequence[Entry]) -> list[NextStep]:
    """The commands that would supply missing numbers, ordered by the number of statements they serve."""
    lacking: dict[str, list[str]] = {}
    for entry in entries:
        commands = [cell.command for cell in entry.cells if cell.command]
        if commands and not measured(entry):
            lacking.setdefault(commands[0], []).append(entry.statement.statement)
    return [
        NextStep(f"To test “{first}”{f' and {len(others)} more' * bool(others)}", command)
        for command, (first, *others) in sorted(lacking.items(), key=lambda item: -len(item[1]))
    ]


def answer(entries: Sequence[Entry]) -> str:
    """How many statements hold and how many do not; empty if none has a verdict."""
    told = [entry.verdict for entry in entries if measured(entry) and entry.verdict != UNTOLD]
    statements = f"{len(entries)} published statement{'s' * (len(entries) > 1)} about heads"
    return f"Of {statements}, {listed(counted(told))}" if told else ""


def counts_in_words(entries: Sequence[Entry]) -> list[str]:
    """How many statements have each verdict, and why the others are undecided."""
    unread = [entry for entry in entries if all(cell.finding is None for cell in entry.cells)]
    lacking = sum(any(cell.command for cell in entry.cells) for entry in unread)
    untold = sum(entry.verdict == UNTOLD for entry in entries)
    why = {
        "an analysis is missing": lacking,
        "no suitable run that learned its task": len(unread) - lacking,
        "the result is inconclusive": untold - len(unread),
    }
    reasons = ", ".join(f"for {number} {reason}" for reason, number in why.items() if number)
    because = f" Why some cannot be told: {reasons}." if reasons else ""
    tally = tallied([(entry.verdict, bool(entry.statement.one_sided)) for entry in entries])
    return [f"{tally}{because}"]


def stored(entries: Sequence[Entry], runs: Sequence[FinishedRun]) -> dict[str, Any]:
    """The verdicts with their numbers as data: the models, then each statement with its overall verdict and the verdict
    for every subject.

    A statement without a number has the reason instead.
    """
    return {
        "runs": sorted(run.name for run in runs),
        "models": _models(runs),
        "code": sorted({code_of(run.folder) for run in runs} - {""}),
        "statements": {
            entry.statement.name: {
                "verdict": entry.verdict,
                "subjects": {
                    cell.subject: {
                        "verdict": cell.verdict,
                        "seeds": cell.seeds,
                        **{key: _finite(getattr(cell.finding, key)) for key in ("value", "low", "high")},
                        "p": _finite(cell.finding.p_value if cell.finding else math.nan),
                        "p_corrected": _finite(cell.p_value),
                    }
                    for cell in measured(entry)
                },
                "reason": "" if measured(entry) else _unmeasured(entry),
            }
            for entry in entries
        },
    }


def _models(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """The models and data of the runs, grouped if they differ only in the seed."""
    seeds: dict[tuple[str, ...], set[int]] = {}
    for run in runs:
        before = run.source == BEFORE_TRAINING
        weights = "before fine-tuning" if before else f"{run.init}, fine-tuned"
        data = run.config.get("data", {})
        limits = ("" if before else data.get("limit_train"), data.get("limit_eval"))
        key = (
            run.config["model"]["name"],
            weights,
            run.config["task"]["name"],
            *(str(limit or "") for limit in limits),
        )
        seeds.setdefault(key, set()).update(() if before else (run.seed,))
    names = ("model", "weights", "task", "limit_train", "limit_eval")
    return [{**dict(zip(names, key, strict=True)), "seeds": sorted(values)} for key, values in sorted(seeds.items())]


def _unmeasured(entry: Entry) -> str:
    """Why a statement has no number."""
    reasons = [cell.reason for cell in entry.cells if cell.reason]
    if reasons:
        return reasons[0]
    statement = entry.statement
    if statement.about == "before":
        return "No run has a model before fine-tuning."
    tasks = " or ".join(statement.tasks or statement.except_tasks)
    where = f" on {'tasks other than ' * bool(statement.except_tasks)}{tasks}" if tasks else ""
    return f"No model was fine-tuned{' from random weights' * (statement.about == 'random')}{where}."


def measured(entry: Entry) -> list[Cell]:
    """The cells with a number."""
    return [cell for cell in entry.cells if cell.finding is not None and math.isfinite(cell.finding.value)]


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def versions_in_words(runs: Sequence[FinishedRun]) -> list[str]:
    """A sentence if the runs were made with several versions of the code."""
    versions = sorted({code_of(run.folder) for run in runs} - {""})
    if len(versions) < 2:
        return []
    return [
        f"The runs were made with {len(versions)} versions of the code ({', '.join(versions)}), so some differences "
        "may be due to the code; repeat the older runs to exclude this."
    ]


def unlearned_in_words(models: Studied) -> list[str]:
    """A sentence on the models that do not significantly beat the majority baseline; empty if all do."""
    tuned = subjects(models, "tuned")
    names = [f"{subject.name} ({', '.join(subject.unlearned)})" for subject in tuned if subject.unlearned]
    if not names:
        return []
    return [
        "Excluded from claims about fine-tuned models, because they do not significantly beat the majority baseline: "
        f"{', '.join(names)}."
    ]


def objectives_in_words(models: Studied) -> list[str]:
    """A sentence on the models that were trained for sentence embeddings; none without such a model."""
    sections = [run.config["model"] for run in models.runs]
    names = sorted({str(model["name"]) for model in sections if model.get("objective") == EMBEDDINGS})
    if not names:
        return []
    return [
        f"Trained for sentence embeddings before fine-tuning: {', '.join(names)}. Verdicts on such a model before "
        "fine-tuning, and on the effect of pre-training, do not apply to masked language models."
    ]


def overview(entries: Sequence[Entry], caption: str, links: Sequence[str] = ()) -> Table:
    """A table of statements with their verdicts and numbers."""
    columns: dict[str, Callable[[Entry], str]] = {
        "statement": lambda entry: entry.statement.statement,
        "verdict": verdicts,
        "here (95 % interval)": here,
        "published": lambda entry: entry.statement.published,
        "source": lambda entry: entry.statement.source,
    }
    return table(entries, columns, caption, links=links)


def here(entry: Entry) -> str:
    """The number of every subject with its interval, and the condition of the statement, or why there is no number."""
    parts = []
    for cell in measured(entry):
        if (finding := cell.finding) is not None:
            parts.append(f"{cell.subject}: {interval_in_words(finding.value, finding.low, finding.high)}")
    return "; ".join([*parts, f"threshold: {entry.statement.test.condition}"]) if parts else _unmeasured(entry)


def verdicts(entry: Entry) -> str:
    """The verdict, with its subjects if some have another verdict."""
    names: dict[str, list[str]] = {}
    for cell in measured(entry):
        names.setdefault(cell.verdict, []).append(cell.subject)
    if len(names) < 2:
        return entry.verdict
    return "; ".join(f"{verdict} ({', '.join(names[verdict])})" for verdict in VERDICTS if verdict in names)


def statement_sections(entries: Sequence[Entry]) -> list[Section]:
    """All statements, their verdicts by model and task, and a section for each: the first sections of a page."""
    links = [f"#section-{index + 2}" for index in range(len(entries))]
    tested = overview(entries, "All statements; click one to see how it was tested", links)
    return [Section("All statements", tables=[tested]), *map(_section, entries)]


def _section(entry: Entry) -> Section:
    """How a statement was tested, and its numbers by model and task."""
    statement = entry.statement
    one_sided = f" {statement.one_sided}" if statement.one_sided else ""
    tolerance = (
        f" The interval allows for a measurement error of {statement.test.tolerance:g}."
        if statement.test.tolerance
        else ""
    )
    rows = [_row(cell) for cell in entry.cells]
    header = [
        "model and task",
        "seeds",
        "examples",
        "number (95 % interval)",
        "p, corrected",
        "verdict",
        "why, or which head",
    ]
    return Section(
        statement.statement,
        paragraphs=[
            f"{statement.source} ({statement.language}): {statement.words}",
            f"Measured in the source: {statement.there} {statement.published}",
            f"Measured here: {statement.here}",
            f"The number is the {statement.test.number}{_STATES[statement.about]}. The "
            f"statement holds if it is {statement.test.condition}.{tolerance}{one_sided}",
            *([f"Reason for this test: {statement.why}"] if statement.why else []),
            *depends_on(entry),
        ],
        tables=[Table(header, rows, f"{statement.name}, by model and task")],
        commands=entry.commands,
        summary=entry.verdict,
    )


_STATES = {
    "random": ", in random weights, fine-tuned",
    "tuned": ", in the fine-tuned model",
    "before": ", in the model before fine-tuning",
    "change": ", fine-tuned model minus the model before fine-tuning",
}


def _row(cell: Cell) -> list[str]:
    finding = cell.finding
    if finding is None:
        return [cell.subject, MISSING, MISSING, MISSING, MISSING, cell.verdict, cell.reason]
    defined = [reading for reading in finding.readings if math.isfinite(reading.value)]
    details = list(dict.fromkeys(reading.detail for reading in finding.readings if reading.detail))
    if len(defined) < len(finding.readings):
        details.append(f"{len(finding.readings) - len(defined)} of {len(finding.readings)} seeds without a number")
    return [
        cell.subject,
        str(len(defined)),
        f"{max(reading.count for reading in finding.readings):,}",
        interval_in_words(finding.value, finding.low, finding.high),
        p_value(cell.p_value),
        cell.verdict,
        "; ".join([*details, *filter(None, (cell.reason, cell.left_out))]),
    ]
