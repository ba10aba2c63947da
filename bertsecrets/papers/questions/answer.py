"""What an answer is: for each group of models a sentence with its numbers, or why it cannot be told and what to run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from bertsecrets.papers.models import Group, Studied
from bertsecrets.papers.statements.judge import UNMEASURED, UNTOLD
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.formatting import MISSING, low_to_high, number
from bertsecrets.statistics.replicates import mean_interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GroupAnswer:
    """An answer for one group of models.

    Args:
        name: The group.
        short: The answer in a few words, for the overview; :data:`UNTOLD` where the data leave it open, empty where statements
            answer.
        sentence: The answer with its numbers.
        tables, figures: What shows it.
    """

    name: str
    short: str
    sentence: str
    tables: Sequence[Table] = ()
    figures: Sequence[FigureBlock] = ()


@dataclass(frozen=True)
class Missing:
    """What an answer lacks.

    Args:
        name: The group of models.
        why: What is lacking, as a sentence.
        command: What to run.
    """

    name: str
    why: str
    command: str


@dataclass(frozen=True)
class Answer:
    """An answer for all groups of models, and what is lacking for more of it."""

    answers: Sequence[GroupAnswer]
    missing: Sequence[Missing]


Part = GroupAnswer | Missing
Question = Callable[[Studied, Group], Iterator[Part]]
"""What one group of models says, and what it lacks to say more."""


def answer_to(question: Question, models: Studied) -> Answer:
    """The answer of all fine-tuned models."""
    parts = [part for group in models.tuned for part in question(models, group)]
    answers = [part for part in parts if isinstance(part, GroupAnswer)]
    return Answer(answers, [part for part in parts if isinstance(part, Missing)])


def section_of(models: Studied, answer: Answer, *, of_task: bool) -> Section:
    """An answer as a section of a page; its summary is the answer in a few words.

    Args:
        models: All models, those included that were left out of the answer.
        answer: The answer.
        of_task: Whether models that learned nothing were left out.
    """
    unlearned = []
    for group in models.tuned if of_task else ():
        seeds = [f"seed {model.seed}" for model in group.unlearned]
        if seeds:
            unlearned.append(f"{group.name} ({', '.join(seeds)})" if group.learned else group.name)
    several = len({part.name for part in answer.answers}) > 1
    sentences = [f"{part.name}: {part.sentence}" if several else part.sentence for part in answer.answers]
    if unlearned:
        sentences.append(f"Not judged, as the model is not shown to beat a constant answer: {', '.join(unlearned)}.")
    elif not models.tuned and not sentences and not answer.missing:
        sentences.append("Cannot be told: no run is of a model that was fine-tuned from pre-trained weights.")
    reasons: dict[str, list[str]] = {}
    for lack in answer.missing:
        reasons.setdefault(lack.why, []).append(lack.name)
    for why, names in reasons.items():
        which = f" ({', '.join(names)})" if several or len(models.tuned) > 1 else ""
        sentences.append(f"{'Not measured' if not answer.answers else 'Incomplete'}{which}: {why}")
    return Section(
        paragraphs=sentences,
        tables=[table for part in answer.answers for table in part.tables],
        figures=[block for part in answer.answers for block in part.figures],
        commands=list(dict.fromkeys(lack.command for lack in answer.missing)),
        summary=_summary(answer.answers) or (UNMEASURED if answer.missing else UNTOLD),
    )


def _summary(answers: Sequence[GroupAnswer]) -> str:
    shorts = dict.fromkeys(part.short for part in answers)
    if len(shorts) < 2:
        return next(iter(shorts), "")
    return "; ".join(f"{short} ({', '.join(part.name for part in answers if part.short == short)})" for short in shorts)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval.

    Args:
        value, low, high: The number and the ends; NaN where there is no interval.
        over: What the interval is over: ``seeds``, ``examples``, or ``seeds and examples``.
    """

    value: float
    low: float
    high: float
    over: str

    @property
    def sign(self) -> int:
        """1 or −1 if the interval lies above or below 0, else 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def cells(self, digits: int = 3, scale: float = 1.0, *, signed: bool = True) -> tuple[str, str]:
        """The number and its interval, as cells of a table."""
        limits = low_to_high(scale * self.low, scale * self.high, digits, signed=signed)
        return number(scale * self.value, digits, signed=signed), limits

    def text(self, digits: int = 3, scale: float = 1.0, *, signed: bool = True, unit: str = "") -> str:
        """The number, its unit and its interval in words."""
        value, limits = self.cells(digits, scale, signed=signed)
        return f"{value}{unit} ({'no interval' if limits == MISSING else f'95 % interval {limits}'})"


def estimate(value_R: ArrayLike, error: float) -> Estimate:
    """Mean over seeds with Student's t interval; of one seed, its value with the interval over examples.

    Args:
        value_R: One number for each seed.
        error: Standard error over examples of the first.
    """
    values = np.asarray(value_R, np.float64)
    if len(values) > 1:
        interval = mean_interval(values)
        return Estimate(interval.mean, interval.low, interval.high, "seeds")
    reach = float(stats.norm.ppf(0.975)) * error
    return Estimate(float(values[0]), float(values[0]) - reach, float(values[0]) + reach, "examples")


def widest_error(stderr_LH: Array) -> float:
    """The largest that the standard error of a mean over heads can be: as if the errors of all went one way."""
    return float(np.nanmean(stderr_LH))
