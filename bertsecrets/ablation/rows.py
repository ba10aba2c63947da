"""What analyses that disable heads find, as rows; those of a sweep, all but :class:`Together`, are written with its
table.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from bertsecrets.results.estimate import Estimate
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import MeasureView

ABLATION = "ablation"
"""Name of the experiment in the head table and of its files of rows."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Swept:
    """How a sweep was made.

    Args:
        mode: How heads were disabled.
        words: What the output of a disabled head is.
        examples: Number of examples, of the set's ``whole``; None where all were swept.
        whole: Number of examples of the set; None likewise.
        budget: The setting that limited their number; None for another reason.
        seconds: How long the passes took; None if an interrupted sweep was resumed.
    """

    mode: str
    words: str
    examples: int | None = None
    whole: int | None = None
    budget: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Screened:
    """What a screened sweep evaluated and what it may have missed.

    Args:
        mode: How heads were disabled.
        pairs: Pairs of a variant and an example.
        evaluated: Pairs evaluated exactly.
        inactive: Pairs out of reach, before variants with a miss were evaluated whole.
        audited: Those of them that the audit evaluated.
        missed: Audited pairs whose prediction changed, although they were out of reach.
        whole: Variants evaluated whole, because the audit found a miss.
        bound, each: At most so many predictions are not those of the exact sweep, at a confidence of 95 %: of all
            variants, and of each variant by itself.
        precision: ``bf16-mixed``: pairs far from a change of prediction were evaluated in bf16; ``32-true``: none were.
        bf16: Pairs that the rule left in bf16.
        again: Pairs evaluated in bf16 and, near a change of prediction, again in fp32.
        audited_bf16, missed_bf16: Pairs left in bf16 that the audit evaluated in fp32, and those of them with another
            prediction.
        reason: Why no pass was in bf16; None if some were, or it was not out of the question.
        onednn: Whether linear layers in fp32 were computed by oneDNN.
    """

    mode: str
    pairs: int
    evaluated: int
    inactive: int
    audited: int
    missed: int
    whole: int
    bound: int
    each: int
    precision: str = "32-true"
    bf16: int = 0
    again: int = 0
    audited_bf16: int = 0
    missed_bf16: int = 0
    reason: str | None = None
    onednn: bool = False


@dataclass(frozen=True)
class Selection:
    """Whether the head that helps most when disabled on one half of the examples helps on the other, over random
    halves.

    Args:
        metric, mode: The score, and how heads were disabled.
        best: The variant chosen most often.
        chosen: Share of the splits that chose it.
        claimed: Mean improvement of the chosen variant on the half that chose it.
        kept: The same on the other half.
        positive: Share of the splits in which the score on the other half improved.
        p_value: Of ``best`` on all examples, corrected over the variants.
        survives: Whether ``kept`` is above 0 and ``p_value`` at most 0.05.
    """

    metric: str
    mode: str
    best: str
    chosen: float
    claimed: float
    kept: Estimate
    positive: float
    p_value: float
    survives: bool


@dataclass(frozen=True)
class Spared:
    """How many of the heads of a sweep can be spared at the judged margin.

    Args:
        metric, mode: The score, and how heads were disabled.
        margin, level, false_discovery_rate: As judged.
        heads: Number of heads.
        each: How many are shown one by one to lose less than the margin, at the false discovery rate.
        at_least: A number of heads that lose less, which is too large with probability 1 - ``level`` at most.
        of_each: The same bound for the heads that ``each`` counts.
        excluded: The smallest loss that is ruled out for every single head at once, with probability ``level``; None if
            a score is undefined.
        falsely: How many heads that lose ``margin`` or more such a sweep counts in ``each``, on average and at most.
        unchanged: Number of heads without which no prediction changes.
        excluded_unchanged: The smallest loss that is ruled out for all of these at once, although they were picked for
            changing nothing, with probability ``level``: it depends on no other head but on how many there are. None
            without any.
    """

    metric: str
    mode: str
    margin: float
    level: float
    false_discovery_rate: float
    heads: int
    each: int
    at_least: int
    of_each: int
    excluded: float | None
    falsely: float
    unchanged: int
    excluded_unchanged: float | None = None


@dataclass(frozen=True)
class SparedAt:
    """How many heads can be spared at another margin: a point of the curve.

    Args:
        metric, mode: The score, and how heads were disabled.
        margin: A loss that may matter, as a difference of scores; :attr:`Spared.margin` is one of them.
        each, at_least: As in :class:`Spared`.
    """

    KEYS: ClassVar = ("margin",)

    metric: str
    mode: str
    margin: float
    each: int
    at_least: int


@dataclass(frozen=True)
class Sublayers:
    """Mean changes of the score when each layer is left without its attention, or without its feed-forward sublayer.

    Args:
        metric, mode: The score, and how heads were disabled.
        layers: Number of layers.
        attention, feed_forward: Mean change of the score over layers.
        difference: The first minus the second.
        level: Level of its interval.
    """

    metric: str
    mode: str
    layers: int
    attention: float
    feed_forward: float
    difference: Estimate
    level: float


@dataclass(frozen=True)
class OverExamples:
    """How much of the variance of heads' effects on single examples' losses is over examples.

    Args:
        mode: How heads were disabled.
        share: The share, from 0 to 1.
        level: Level of its interval.
        heads, examples: Their numbers.
    """

    mode: str
    share: Estimate
    level: float
    heads: int
    examples: int


@dataclass(frozen=True)
class Power:
    """How many examples would settle more heads, simulated from a sweep; None: more than were simulated.

    Args:
        mode, metric, margin: How heads were disabled and judged.
        undecided: Heads without a verdict.
        heads: Number of heads.
        count: Examples of the sweep.
        examples: Examples that would settle 80 % of the heads without a verdict.
        most: The most examples that were simulated.
        share: Share of those heads that the most examples settle; None without any.
        spared, needed: Examples that show a typical head that changes nothing, and one that matters, with 80 % power.
        examples_low, examples_high: Between which numbers eight in ten simulated sweeps settle as many as ``examples``.
    """

    mode: str
    metric: str
    margin: float
    undecided: int
    heads: int
    count: int
    examples: float | None
    most: int
    share: float | None
    spared: float | None
    needed: float | None
    examples_low: float | None = None
    examples_high: float | None = None


@dataclass(frozen=True)
class Together:
    """What a model scores without all the heads that can each be spared, on the examples that chose them.

    Args:
        metric, mode: The score, and how heads were disabled.
        heads: The heads, e.g. ``3-11 5-2``, as in the ablation table.
        seconds: How long the pass took.
        baseline, score: The score with and without them.
        change: Its change.
    """

    metric: str
    mode: str
    heads: str
    seconds: float
    baseline: float
    score: float
    change: Estimate


BESIDE_TABLE = (Swept, Screened, Selection, Spared, SparedAt, Sublayers, OverExamples, Power, Together)
"""All kinds of rows beside the ablation table."""


def found(run: Run, kind: type[Found]) -> list[Found]:
    """A run's rows of one kind at its last sweep.

    Raises:
        RecordError: If their file is damaged, of another version or of another run.
    """
    return MeasureView(run, Declaration(ABLATION, "", ""), HeadTable.empty()).found(kind)


def beside_table(run: Run) -> list[Any]:
    """A run's rows of all kinds."""
    return [row for kind in BESIDE_TABLE for row in found(run, kind)]


def only(rows: Iterable[Any], kind: type[Found], **equal: str) -> Found | None:
    """The first row of a kind whose fields have these values; None without one."""
    fitting = (row for row in rows if isinstance(row, kind))
    return next((row for row in fitting if all(getattr(row, name) == value for name, value in equal.items())), None)


@dataclass(frozen=True)
class Worth:
    """What all heads together are worth: the Shapley values add up to ``whole`` minus ``none``.

    Args:
        quantity: The column of the grid: ``loss``, or the task's first metric.
        whole, none: The worth of the model with all heads and without any: the metric, or minus the mean loss.
        mode: How heads were disabled.
        examples: Number of examples.
    """

    quantity: str
    whole: float
    none: float
    mode: str
    examples: int


@dataclass(frozen=True)
class EarlyHeads:
    """Direct and total effect of the heads below the last layer, summed over all of them.

    Args:
        mode: How heads were disabled.
        direct, total: The two sums; None with fewer than two examples or a single layer.
        ratio: Total over direct effect; None where the direct effect may be 0.
    """

    mode: str
    direct: Estimate | None
    total: Estimate | None
    ratio: Estimate | None


@dataclass(frozen=True)
class Blocked:
    """The effect of blocking attention to or from one special token in every head.

    Args:
        token: Name of the token, of :data:`~bertsecrets.data.special_tokens.SPECIAL_TOKENS`.
        direction: ``to``: no token attends to it, the remaining weights of a row sum to one. ``from``: it attends only
            to itself and so gathers nothing.
        metric: The score.
        baseline, score: The score with nothing blocked, and with attention blocked.
        change: Their difference, with limits at ``level``.
        level: Level of the limits.
        margin: The loss that matters.
        p_loss: One-sided p-value of no loss, corrected over the rows as the verdict is.
        flips: Share of examples with another predicted class; for scores, mean absolute change of the prediction.
        verdict: ``needed``, ``dispensable`` or ``inconclusive``.
    """

    token: str
    direction: str
    metric: str
    baseline: float
    score: float
    change: Estimate
    level: float
    margin: float
    p_loss: float
    flips: float
    verdict: str
