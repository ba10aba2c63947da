"""Results of analyses that disable heads, as rows; those of a sweep are written with its table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from bertsecrets.grid import Column, Shown
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import MeasureView

ABLATION = "ablation"
"""Name of the experiment in the head table and in the names of its files of rows."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Swept:
    """How a sweep was run.

    Args:
        mode: How heads were disabled.
        words: The output of a disabled head, in words.
        examples: Number of examples out of the set's ``whole``; None if all were used.
        whole: Number of examples in the set; None likewise.
        budget: The setting that limited their number; None for another reason.
        seconds: Duration of the passes; None if an interrupted sweep was resumed.
    """

    mode: str
    words: str
    examples: int | None = None
    whole: int | None = None
    budget: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Screened:
    """What a screened sweep evaluated, and what it may have missed.

    Args:
        mode: How heads were disabled.
        pairs: Pairs of a variant and an example.
        evaluated: Pairs evaluated exactly.
        inactive: Pairs out of reach, before variants with a miss were evaluated on all examples.
        audited: Inactive pairs that the audit evaluated.
        missed: Audited pairs whose prediction changed although they were out of reach.
        whole: Variants evaluated on all examples because the audit found a miss.
        bound, each: Upper bounds, at a confidence of 95 %, on the number of predictions that differ from those of the
            exact sweep: for all variants, and for each single variant.
        precision: ``bf16-mixed``: pairs far from a change of prediction were evaluated in bf16; ``32-true``: none were.
        bf16: Pairs that the rule left in bf16.
        again: Pairs evaluated in bf16 and, because they are near a change of prediction, again in fp32.
        audited_bf16, missed_bf16: Pairs left in bf16 that the audit evaluated in fp32, and those with a different
            prediction in fp32.
        reason: Why bf16 was not possible; None if it was used or was possible.
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
    """Whether the head whose disabling helps most on one half of the examples also helps on the other, over random
    halves.

    Args:
        metric, mode: The score, and how heads were disabled.
        best: The variant chosen most often.
        chosen: Share of the splits in which it was chosen.
        claimed: Mean improvement of the chosen variant on the half that chose it.
        kept: The same on the other half.
        positive: Share of the splits in which the score on the other half improved.
        p_value: That of ``best`` on all examples, corrected for the number of variants.
        survives: Whether ``kept`` is above 0 and ``p_value`` is at most 0.05.
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
    """How many of the heads of a sweep can be spared at the margin of the tests.

    Args:
        metric, mode: The score, and how heads were disabled.
        margin, level, false_discovery_rate: Those of the tests; without a margin, the counts below are 0.
        heads: Number of heads.
        each: Number of heads that are individually shown to lose less than the margin, at the false discovery rate.
        at_least: A lower bound on the number of heads that lose less than the margin, too large with probability at
            most 1 - ``level``.
        of_each: The same bound for the heads counted in ``each``.
        excluded: The smallest loss that is ruled out for every single head simultaneously, with probability ``level``;
            None if a score is undefined.
        falsely: Upper bound on the expected number of heads in ``each`` that lose ``margin`` or more.
        unchanged: Number of heads without which no prediction changes.
        excluded_unchanged: The smallest loss that is ruled out for all of these simultaneously with probability
            ``level``, allowing for their selection; it depends on the other heads only through their number. None
            without any such head.
    """

    metric: str
    mode: str
    margin: float | None
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
        margin: A margin, as a difference of scores; :attr:`Spared.margin` is one of them.
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
    """Mean changes of the score when each layer loses its attention sublayer, or its feed-forward sublayer.

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
    """How much of the variance of heads' effects on the losses of single examples is due to examples.

    Args:
        mode: How heads were disabled.
        share: The share, from 0 to 1.
        level: Level of its interval.
        heads, examples: Numbers of heads and examples.
    """

    mode: str
    share: Estimate
    level: float
    heads: int
    examples: int


@dataclass(frozen=True)
class Power:
    """How many examples would settle more heads, simulated from a sweep; None means more than were simulated.

    Args:
        mode, metric, margin: How heads were disabled and tested.
        undecided: Number of heads without a verdict.
        heads: Number of heads.
        count: Number of examples in the sweep.
        examples: Number of examples that would settle 80 % of the heads without a verdict.
        most: The largest simulated number of examples.
        share: Share of those heads that the largest number settles; None without any.
        spared, needed: Numbers of examples that show, with 80 % power, that a typical head that changes nothing can be
            spared, and that one that loses the margin is needed.
        examples_low, examples_high: The range of numbers at which 80 % of the simulated sweeps settle as many heads as
            ``examples``.
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
    """The score of a model without all heads that can individually be spared, on the examples that chose them.

    Args:
        metric, mode: The score, and how heads were disabled.
        heads: The heads, e.g. ``3-11 5-2``, as in the ablation table.
        seconds: Duration of the pass.
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
"""All kinds of rows written beside the ablation table."""


def found(run: Run, *kinds: type[Found]) -> list[Found]:
    """Rows of the given kinds from a run's last sweep.

    Raises:
        RecordError: If a file is damaged, or comes from another version or run.
    """
    view = MeasureView(run, Declaration(ABLATION, "", ""), HeadTable.empty())
    return [row for kind in kinds for row in view.found(kind)]


def beside_table(run: Run) -> list[Any]:
    """A run's rows of all kinds."""
    return found(run, *BESIDE_TABLE)


def only(rows: Iterable[Any], kind: type[Found], **equal: str) -> Found | None:
    """The first row of a kind whose fields have these values; None without one."""
    fitting = (row for row in rows if isinstance(row, kind))
    return next((row for row in fitting if all(getattr(row, name) == value for name, value in equal.items())), None)


@dataclass(frozen=True)
class Worth:
    """The worth of all heads together: the Shapley values add up to ``whole`` minus ``none``.

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
    """Direct and total effects of the heads below the last layer, summed over these heads.

    Args:
        mode: How heads were disabled.
        direct, total: The two sums; None with fewer than two examples or a single layer.
        ratio: Total divided by direct effect; None if the direct effect may be 0.
    """

    mode: str
    direct: Estimate | None
    total: Estimate | None
    ratio: Estimate | None


@dataclass(frozen=True)
class Blocked:
    """The effect of blocking attention to or from a special token in every head.

    Args:
        token: Name of the token, of :data:`~bertsecrets.data.special_tokens.SPECIAL_TOKENS`.
        direction: ``to``: no token attends to it, and the remaining weights of a row sum to one. ``from``: it attends
            only to itself and so collects nothing from other tokens.
        metric: The score.
        baseline, score: The score with nothing blocked, and with attention blocked.
        change: Their difference, with limits at ``level``.
        level: Level of the limits.
        margin: The largest acceptable loss; None for none.
        p_loss: One-sided p-value of no loss, corrected for the number of rows like the verdict.
        flips: Share of examples whose predicted class changes; for scores, mean absolute change of the prediction.
        verdict: ``needed``, ``dispensable`` or ``inconclusive``.
    """

    token: str
    direction: str
    metric: str
    baseline: float
    score: float
    change: Estimate
    level: float
    margin: float | None
    p_loss: float
    flips: float
    verdict: str


class Disabling(Experiment):
    """Heads and layers, disabled one at a time; results are in ``ablation.parquet``, those of single heads also in the
    head table.

    Args:
        columns: ``<metric>_<mode>`` and ``<metric>_<mode>_all_but_one``, from the grids of tested effects.
    """

    name = ABLATION
    title = "Disabled heads"
    shown = Shown(reads_task=True, lowest=True, effects=True)
    presenter = "bertsecrets.present.disabling:PRESENTER"

    def __init__(self, columns: tuple[Column, ...] = ()) -> None:
        self.columns = columns
