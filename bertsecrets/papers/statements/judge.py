"""Test every statement on every model of the runs."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

import numpy as np

from bertsecrets.models.spec import INITIAL as BEFORE_TRAINING
from bertsecrets.papers.models import Group, Studied, analysis_command, studied
from bertsecrets.papers.statements.sheet import About, LackingError, Sheet
from bertsecrets.papers.statements.statement import Statement, check_columns, files, read_statements
from bertsecrets.papers.statements.test import Finding, Reading
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.formatting import level_text, p_value
from bertsecrets.results.scores import LEVEL
from bertsecrets.statistics.corrections import corrected

HOLDS, FAILS, UNTOLD = "holds", "does not hold", "cannot be told"
HOLDS_HERE, FAILS_HERE = f"{HOLDS} of this model", f"{FAILS} of this model"
"""Verdicts from a single seed, or on the model before fine-tuning, which do not generalise to models or tasks."""

UNMEASURED = "no run measured this"
"""Shown instead of a verdict or an answer if an analysis is missing."""

DEPENDS, DIFFERS = "depends", "differs between these models"
VERDICTS = (HOLDS, FAILS, HOLDS_HERE, FAILS_HERE, DEPENDS, DIFFERS, UNTOLD)


def counted(verdicts: Sequence[str]) -> list[str]:
    """The number of statements with each verdict, as text.

    >>> counted(["holds of this model", "cannot be told", "holds of this model"])
    ['2 hold of this model', '1 cannot be told']
    """
    counts = {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}
    # The verb of each verdict comes first.
    plural = {verdict: re.sub(r"^(do)es|^(\w+)s\b", r"\1\2", verdict) for verdict in counts}
    return [f"{number} {verdict if number == 1 else plural[verdict]}" for verdict, number in counts.items()]


def tallied(verdicts: Sequence[tuple[str, bool]]) -> str:
    """The number of statements with each verdict, with one-sided statements listed separately.

    Args:
        verdicts: The verdict of each statement, and whether it is one-sided.

    >>> tallied([("holds", False), ("does not hold", False), ("holds", True)])
    'Of 2 published statements: 1 holds; 1 does not hold. Of 1 more that a number can confirm but not refute: 1 holds.'
    """
    parts: list[str] = []
    for side, end in ((False, ""), (True, " that a number can confirm but not refute")):
        if some := [verdict for verdict, one_sided in verdicts if one_sided is side]:
            what = "more" if parts else f"published statement{'s' * (len(some) != 1)}"
            parts.append(f"Of {len(some)} {what}{end}: {'; '.join(counted(some))}.")
    return " ".join(parts)


def expected_false(numbers: Sequence[tuple[float, bool]]) -> str:
    """Upper bound on the expected number of false discoveries among the significant numbers, by family.

    Args:
        numbers: The corrected p-value of each number, and whether it is over seeds.

    >>> expected_false([(0.01, True), (0.2, True), (0.001, False), (0.03, False)]).partition(": ")[2]
    'up to 0.1 of 1 significant number over seeds and 0.1 of 2 of single models.'
    """
    over, of_one = (sum(p <= LEVEL for p, over_seeds in numbers if over_seeds is family) for family in (True, False))
    return (
        f"Expected false discoveries at a rate of {level_text(LEVEL)}: up to {LEVEL * over:.1f} of {over} significant "
        f"number{'s' * (over != 1)} over seeds and {LEVEL * of_one:.1f} of {of_one} of single models."
    )


EMBEDDINGS = "sentence_embeddings"
"""The objective of a model that was trained further for sentence embeddings."""


@dataclass(frozen=True)
class Subject:
    """Models that differ only in their seed, or a model before fine-tuning on the sentences of a task.

    Args:
        name: Name on the page.
        model, task: Names of the model and the task.
        sheets: One sheet per seed that significantly learned the task, or one for the model before fine-tuning.
        unlearned: Names of the other seeds.
    """

    name: str
    model: str
    task: str
    sheets: tuple[Sheet, ...]
    unlearned: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """A statement tested on one subject.

    Args:
        subject: The subject's name.
        model, task: Its model and task; several tasks for a statement about all of them.
        finding: The numbers; None if missing or not read.
        p_value: P-value of equality with the threshold, corrected within its family (over seeds, or of single models);
            NaN where unknown.
        verdict: :data:`HOLDS`, :data:`FAILS`, :data:`HOLDS_HERE`, :data:`FAILS_HERE` or :data:`UNTOLD`.
        reason: A sentence on why there is no verdict; empty otherwise.
        command: The command that runs a missing analysis; empty if none is missing.
        left_out: A sentence that lists the seeds or tasks without an analysis that others have; empty if none.
        seeds: Number of seeds behind the numbers; with several tasks, the minimum.
        too_few: Whether a run has the analysis, but with too few examples for a number.
    """

    subject: str
    model: str
    task: str
    finding: Finding | None = None
    p_value: float = math.nan
    verdict: str = UNTOLD
    reason: str = ""
    command: str = ""
    left_out: str = ""
    seeds: int = 1
    too_few: bool = False

    @property
    def over_seeds(self) -> bool:
        """Whether the verdict is over seeds rather than for this model only."""
        return self.seeds > 1


@dataclass(frozen=True)
class Entry:
    """A statement and its results, one cell per subject."""

    statement: Statement
    cells: tuple[Cell, ...]

    def where(self, *verdicts: str) -> list[Cell]:
        """The cells with one of the given verdicts."""
        return [cell for cell in self.cells if cell.verdict in verdicts]

    @property
    def commands(self) -> list[str]:
        """The commands that run missing analyses; none for a model and task with a number from another training run."""
        read = {(cell.model, cell.task) for cell in self.cells if cell.finding is not None}
        lacking = [cell for cell in self.cells if cell.finding is not None or (cell.model, cell.task) not in read]
        return list(dict.fromkeys(cell.command for cell in lacking if cell.command))

    @property
    def verdict(self) -> str:
        """The verdict if all conclusive subjects agree, else ``depends``, or ``differs`` if based on single seeds.

        It applies to this model only if no subject has several seeds.
        """
        verdicts = {cell.verdict for cell in self.cells}
        if verdicts & {HOLDS, HOLDS_HERE} and verdicts & {FAILS, FAILS_HERE}:
            return DEPENDS if {HOLDS, FAILS} <= verdicts else DIFFERS
        return next((verdict for verdict in (HOLDS, FAILS, HOLDS_HERE, FAILS_HERE) if verdict in verdicts), UNTOLD)


def judged(runs: Sequence[FinishedRun], paths: Sequence[str] = ()) -> tuple[Studied, dict[str, Entry]]:
    """The models behind runs, and every statement tested on them, by name.

    Args:
        runs: Trainings and analyses.
        paths: Files of statements besides those of the package and installed packages.

    Raises:
        UserError: If a statement is invalid, or refers to a column that does not exist.
    """
    statements = read_statements([*files(), *(path for path in paths if path not in files())])
    check_columns(statements, runs)
    models = studied(runs)
    return models, {entry.statement.name: entry for entry in judge(statements, models)}


def judge(statements: Sequence[Statement], models: Studied) -> list[Entry]:
    """Test statements on models.

    P-values are corrected over all statements of the package and installed packages, regardless of the requested ones,
    so that a statement has the same verdict on every page; statements from other files are corrected together with
    them. Numbers of single models and numbers over seeds are separate families: the former are many and mostly highly
    significant, and would nearly remove the correction of the latter.

    Args:
        statements: The statements.
        models: The models.
    """
    by_state: dict[About, list[Subject]] = {about: subjects(models, about) for about in get_args(About)}
    entries = [Entry(statement, tuple(_cells(statement, by_state[statement.about]))) for statement in statements]
    cells = [cell for entry in entries for cell in entry.cells]
    p_N = np.array([math.nan if cell.finding is None else cell.finding.p_value for cell in cells])
    over_seeds_N = np.array([cell.over_seeds for cell in cells], np.bool_)
    shipped = files().keys()
    shipped_N = np.array([entry.statement.name in shipped for entry in entries for _ in entry.cells], np.bool_)
    corrected_N = p_N.copy()
    for counted_N in (np.ones_like(shipped_N), shipped_N):
        for family_N in (counted_N & over_seeds_N, counted_N & ~over_seeds_N):
            corrected_N[family_N] = corrected(p_N[family_N])
    rest = iter(corrected_N.tolist())
    return [
        replace(entry, cells=tuple(_judged(entry.statement, cell, next(rest)) for cell in entry.cells))
        for entry in entries
    ]


def subjects(models: Studied, about: About) -> list[Subject]:
    """The subjects of statements about one state of the models, without models fine-tuned under a control."""
    if about == "before":
        return _before(models)
    return [subject_of(models, group, about) for group in (models.random if about == "random" else models.tuned)]


def subject_of(models: Studied, group: Group, about: About) -> Subject:
    """The fine-tuned models of a group as the subject of statements, without those that did not significantly learn the
    task.
    """
    # Analyses of the model before fine-tuning, for its columns.
    initial = tuple(part for model in models.initial_of(group) if about != "random" for part in model.parts)
    random = models.of_random(group)
    others = () if random is None else random.models
    # A model from random weights or under a control is tested even if it learned nothing, because statements are about
    # that.
    counted = [model for model in group.models if model.scores.learned or about == "random" or group.controlled]
    # In a ring, so that each seed is in two comparisons.
    following = [*counted[1:], *counted[:1]]
    sheets = tuple(
        Sheet(
            f"seed {model.seed}",
            model.checkpoint,
            (*model.parts, *initial),
            about,
            others,
            model.compared,
            next_seed.checkpoint if len(counted) > 1 else "",
        )
        for model, next_seed in zip(counted, following, strict=True)
    )
    unlearned = tuple(f"seed {model.seed}" for model in group.models if model not in counted)
    return Subject(group.name, group.model, group.task, sheets, unlearned)


def _before(models: Studied) -> list[Subject]:
    parts = models.parts_before()
    # A model trained further for another purpose neither confirms nor refutes a statement about language models.
    embeds = {model: runs[0].config["model"].get("objective") == EMBEDDINGS for (model, _), runs in parts.items()}
    tuned = [model for group in models.tuned for model in group.models]
    before = []
    for (model, task), runs in parts.items():
        # An analysis of a fine-tuned model can also measure the model before fine-tuning.
        analysed = (one.checkpoint for one in tuned if any(run in one.parts for run in runs))
        checkpoint = next(analysed, BEFORE_TRAINING)
        sheet = Sheet("before fine-tuning", checkpoint, tuple(runs), "before")
        name = f"{task} · {model}" if len(embeds) > 1 else task
        # If all models are of this kind, a page notes it once.
        kind = " (sentence-embedding model)" * (embeds[model] and not all(embeds.values()))
        before.append(Subject(f"{name}{kind}", model, task, (sheet,), ()))
    return sorted(before, key=lambda subject: subject.name)


def _cells(statement: Statement, candidates: Sequence[Subject]) -> list[Cell]:
    candidates = [
        subject
        for subject in candidates
        if subject.task not in statement.except_tasks and (not statement.tasks or subject.task in statement.tasks)
    ]
    if statement.test.joins == "tasks":
        names = sorted({subject.model for subject in candidates})
        by_model = ([subject for subject in candidates if subject.model == name] for name in names)
        return [_over_tasks(statement, subjects) for subjects in by_model]
    cells = [_cell(statement, subject) for subject in candidates]
    if statement.about != "before":
        return cells
    # The model before fine-tuning is the same for every task, so one set of sentences with the analysis is enough.
    read = {cell.model for cell in cells if cell.finding is not None}
    # For a model without the analysis, use the sentences that come closest.
    unread = sorted((cell for cell in cells if cell.model not in read), key=lambda cell: not cell.too_few)
    nearest = {cell.model: cell for cell in reversed(unread)}.values()
    return [cell for cell in cells if cell.finding is not None or cell in nearest]


def _cell(statement: Statement, subject: Subject) -> Cell:
    test = statement.test
    cell = Cell(subject.name, subject.model, subject.task)
    if not subject.sheets:
        return replace(cell, reason=NOT_LEARNED)
    present, lacking = taken(
        subject.sheets, lambda sheet: test.columns_of(sheet) if test.joins else _read(statement, [[sheet]])
    )
    if lacking:
        sheet, reason = lacking[0]
        cell = replace(cell, command=analysis_command(sheet.checkpoint, reason.settings))
        if not present:
            return replace(cell, reason=f"No run has {reason.what}.", too_few=reason.too_few)
        names = ", ".join(sheet.name for sheet, _ in lacking)
        without = f"{len(lacking)} of {len(subject.sheets)} seeds lack {reason.what} and are skipped: {names}."
        cell = replace(cell, left_out=without)
    if test.joins:
        joint = _read(statement, [[sheet] for sheet, _ in present])
        return replace(cell, finding=test.judge([joint]), seeds=len(present))
    numbers = [reading for _, reading in present if isinstance(reading, Reading)]
    seeds = sum(math.isfinite(reading.value) for reading in numbers)
    return replace(cell, finding=test.judge(numbers), seeds=seeds)


def _read(statement: Statement, groups: Sequence[Sequence[Sheet]]) -> Reading:
    """The reading of a statement for one model, or for several joined by its test, with the origin of its columns.

    Raises:
        LackingError: If their runs lack the data for the test.
    """
    reading = statement.test.joint_reading(groups)
    origins = (sheet.origin(column) for sheets in groups for sheet in sheets for column in statement.test.columns)
    return replace(reading, detail="; ".join(dict.fromkeys(filter(None, [reading.detail, *origins]))))


_Taken = TypeVar("_Taken")


def taken(
    sheets: Sequence[Sheet], read: Callable[[Sheet], _Taken]
) -> tuple[list[tuple[Sheet, _Taken]], list[tuple[Sheet, LackingError]]]:
    """The sheets that have what is read, with it, and the others with what they lack."""
    present, lacking = [], []
    for sheet in sheets:
        try:
            present.append((sheet, read(sheet)))
        except LackingError as error:
            lacking.append((sheet, error))
    return present, lacking


def _over_tasks(statement: Statement, subjects: Sequence[Subject]) -> Cell:
    """The cell of one model, over its tasks."""
    groups: dict[str, list[Sheet]] = {}
    commands, left_out = [], []
    for subject in subjects:
        present, lacking = taken(subject.sheets, statement.test.columns_of)
        commands += [analysis_command(sheet.checkpoint, error.settings) for sheet, error in lacking]
        left_out += [f"{subject.task} {sheet.name}" for sheet, _ in lacking]
        if present:
            groups.setdefault(subject.task, [sheet for sheet, _ in present])
    model = subjects[0].model
    cell = Cell(f"{model}: {', '.join(groups) or 'no task'}", model, "tasks", command=next(iter(commands), ""))
    if len(groups) < 2:
        reason = f"Fewer than two tasks that the model learned have {statement.test.columns[0]}."
        return replace(cell, reason=reason)
    finding = statement.test.judge([_read(statement, list(groups.values()))])
    without = f"Skipped, without the analysis: {', '.join(left_out)}." if left_out else ""
    return replace(cell, finding=finding, left_out=without, seeds=min(map(len, groups.values())))


NOT_LEARNED = "The model did not significantly beat the majority baseline, so its heads are not tested."


def _judged(statement: Statement, cell: Cell, p: float) -> Cell:
    """A cell with its corrected p-value and verdict."""
    if cell.finding is None:
        return cell
    finding, cell = cell.finding, replace(cell, p_value=p)
    if not math.isfinite(finding.value):
        details = [reading.detail for reading in finding.readings if reading.detail]
        shown_detail = f" ({details[0]})" if details else ""
        return replace(cell, reason=f"The number is undefined in these runs{shown_detail}.")
    if not math.isfinite(finding.p_value):
        return replace(cell, reason="The uncertainty of the number is unknown.")
    verdict, reason = _verdict(statement, finding, p)
    if p > LEVEL:
        why = (
            "The interval includes the threshold"
            if finding.low <= statement.test.threshold <= finding.high
            else "Not significant after correction"
        )
        reason = f"{why} (corrected p {p_value(p)})."
    if not cell.over_seeds:
        verdict = {HOLDS: HOLDS_HERE, FAILS: FAILS_HERE}.get(verdict, verdict)
    return replace(cell, verdict=verdict, reason=reason)


def _verdict(statement: Statement, finding: Finding, p: float) -> tuple[str, str]:
    """The verdict from a number and its p-value, and why a significant number would decide nothing."""
    holds = statement.test.holds(finding.value)
    reason = statement.test.doubt(finding) if holds else statement.one_sided
    return (UNTOLD if reason or not p <= LEVEL else HOLDS if holds else FAILS), reason


def depends_on(entry: Entry) -> list[str]:
    """Sentences on whether a statement depends on the model, the task or the seed; only if both verdicts are
    significant.
    """
    sentences = []
    if entry.verdict == DIFFERS:
        here = _contrast(entry.where(HOLDS, HOLDS_HERE), entry.where(FAILS, FAILS_HERE), "subject")
        sentences.append(f"These models differ, but with single seeds the reason is unclear: {here}.")
    yes, no = entry.where(HOLDS), entry.where(FAILS)
    for name, of in (("task", "model"), ("model", "task")):
        for common in sorted({getattr(cell, of) for cell in yes} & {getattr(cell, of) for cell in no}):
            held, failed = ([cell for cell in cells if getattr(cell, of) == common] for cells in (yes, no))
            sentences.append(f"It depends on the {name} ({common}): {_contrast(held, failed, name)}.")
    if yes and no and not sentences:
        sentences.append(
            f"It depends on the model or the task (these runs do not show which): {_contrast(yes, no, 'subject')}."
        )
    for cell in entry.cells:
        readings = () if cell.finding is None or len(cell.finding.readings) < 2 else cell.finding.readings
        alone = [entry.statement.test.judge([reading]) for reading in readings]
        verdicts = [_verdict(entry.statement, finding, finding.p_value)[0] for finding in alone]
        if HOLDS in verdicts and FAILS in verdicts:
            sentences.append(
                f"It depends on the seed ({cell.subject}): {verdicts.count(HOLDS)} of {len(verdicts)} seeds show on "
                f"their own that it holds, {verdicts.count(FAILS)} that it does not (not corrected for multiple "
                "comparisons)."
            )
    return sentences


def _contrast(yes: Sequence[Cell], no: Sequence[Cell], name: str) -> str:
    """Where a statement holds and where it does not, with the numbers; cells are labelled by the field ``name``."""
    holds, fails = (
        ", ".join(f"{getattr(cell, name)} ({cell.finding.value:.3g})" for cell in cells if cell.finding)
        for cells in (yes, no)
    )
    return f"it {HOLDS} for {holds} and {FAILS} for {fails}".replace("(-", "(\N{MINUS SIGN}")
