"""Results of pruning, gates and searches for faster models: declarations of their grids, and rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from bertsecrets.grid import Column, Shown
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.views import MeasureView

RANDOM, REVERSED = "random", "reversed"

CONTROLS = (RANDOM, REVERSED)
"""Control scores, never used to choose the smallest model; ``reversed`` reverses the order of the first other score."""


KEPT = "kept"
"""Column of experiments that remove heads: 1 for a head that is kept, 0 for one that is removed."""

REMOVED_AT = "removed_at"
SHUT, OPEN = "pushed_shut", "pushed_open"
GATE, OPEN_PROBABILITY = "gate", "open_probability"


class Pruning(Experiment):
    """Heads removed in the order of a score: the curve, its controls, and the smallest model with a guarantee."""

    name = "pruning"
    title = "Pruned heads"
    columns = (
        Column(REMOVED_AT, "heads removed before or with it", "heads removed"),
        Column(KEPT, "kept in the returned model", "1: kept", (0, 1)),
    )
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.pruning:PRESENTER"


class FirstPruned(Experiment):
    """Heads removed before fine-tuning."""

    name = "pruned_first"
    title = "Heads removed before fine-tuning"
    columns = (Column(KEPT, "kept in fine-tuning", "1: kept", (0, 1)),)
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.pruning:FIRST"


class CausalGates(Experiment):
    """Gates of a frozen model, pushed shut and pushed open, and a path to few heads."""

    name = "causal_gates"
    title = "Gates of the frozen model"
    columns = (
        Column(SHUT, "gate when pushed shut", "gate", (0, 1)),
        Column(OPEN, "gate when pushed open", "gate", (0, 1)),
    )
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.gates:FROZEN"


class LearnedGates(Experiment):
    """Gates learned together with fine-tuning (Voita et al. 2019, section 6)."""

    name = "gates"
    title = "Gates learned with fine-tuning"
    columns = (
        Column(GATE, "gate in evaluation", "gate", (0, 1)),
        Column(OPEN_PROBABILITY, "probability of an open gate", "probability", (0, 1)),
    )
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.gates:LEARNED"


class Shrinking(Experiment):
    """Heads and neurons removed by measured time, up to the fastest model that passes its tests."""

    name = "shrinking"
    title = "A smaller, faster model"
    columns = (Column(KEPT, "kept in the smaller model, or in the last one tried", "1: kept", (0, 1)),)
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.shrink:PRESENTER"


@dataclass(frozen=True)
class Search:
    """A search for smaller models: its tests and its examples.

    Args:
        margin, class_margin: The margins for the score and for accuracy within a class; None if no class was tested.
        confidence: Joint confidence of all searches on the same examples.
        number: Which search on these examples it is, from 1; 0 if unknown.
        level: Confidence of this search's tests.
        counted: Whether earlier searches are known.
        examples: Examples of the tests.
        choosing: Training examples used for selection.
        parameters: Parameters of the original model.
        length: Mean number of tokens per example, also used for latencies.
        device, threads: Where latencies are measured.
    """

    margin: float
    class_margin: float | None
    confidence: float
    number: int
    level: float
    counted: bool
    examples: int
    choosing: int
    parameters: int
    length: int
    device: str
    threads: int


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a forward pass of the original and a smaller model, measured alternately.

    Args:
        attempt: Position of the smaller model in its order, from 0.
        batch: Examples of a batch.
        whole, smaller: Medians of the original and the smaller model.
        low, high: Quartiles of the smaller model's.
    """

    KEYS: ClassVar = ("attempt", "batch")

    attempt: int
    batch: int
    whole: float
    smaller: float
    low: float
    high: float

    @property
    def speedup(self) -> float:
        """Speed-up of the smaller model."""
        return self.whole / self.smaller


@dataclass(frozen=True)
class Group:
    """Accuracy of the original and a smaller model within a group of examples.

    Args:
        attempt: Position of the smaller model in its order, from 0.
        by: Grouping: ``class`` or ``length``.
        group: Name of the group.
        examples: Its examples.
        whole, smaller: The accuracies.
        change: The smaller model's minus the original's; the limits are simultaneous over all groups of a kind.
    """

    KEYS: ClassVar = ("attempt",)

    attempt: int
    by: str
    group: str
    examples: int
    whole: float
    smaller: float
    change: Estimate


@dataclass(frozen=True)
class PruneSearch(Search):
    """A search for the fewest heads.

    Args:
        metric: The tested metric.
        score, loss: Score and mean loss of the original model.
        heads: Heads of the whole model.
        iterative: Whether scores are recomputed after each step.
        flops: FLOPs of the original model for one example.
    """

    metric: str
    score: float
    loss: float
    heads: int
    iterative: bool
    flops: int


@dataclass(frozen=True)
class Point:
    """A smaller model on the curve of a score.

    Args:
        score, label: Name and description of the score that orders the heads.
        from_table: Whether it was read from a head table, possibly measured on other examples.
        order: Number of a random order, from 0; else 0.
        attempt: Position of the model in its order, from 0.
        kept: Heads that are left.
        change: Change of score.
        loss: Mean loss.
        parameters, flops: Remaining parameters and FLOPs.
    """

    KEYS: ClassVar = ("order", "attempt", "kept")

    score: str
    label: str
    from_table: bool
    order: int
    attempt: int
    kept: int
    change: Estimate
    loss: float
    parameters: int
    flops: int


@dataclass(frozen=True)
class Chosen:
    """The smallest model that passed its tests, the requested one, or the first that failed.

    Args:
        score: Name of the score that defines its order.
        attempt: Its position in the order.
        kept: Heads that are left.
        asked: Whether this number was requested.
        holds: Whether losses of the margins or more are excluded.
        change: Change of score; NaN where undefined.
        bound: Upper confidence bound on the loss.
        p_margin: P-value of a loss of at least a margin.
        needed: Examples needed to exclude it, if loss and variance stay as observed; None if none are needed or would
            help.
        hopeless: Whether the observed loss is at least the margin.
    """

    score: str
    attempt: int
    kept: int
    asked: bool
    holds: bool
    change: float
    bound: float
    p_margin: float
    needed: int | None
    hopeless: bool


@dataclass(frozen=True)
class Pruned:
    """All rows of a search for the fewest heads."""

    search: PruneSearch
    chosen: Chosen
    points: Sequence[Point]
    timings: Sequence[Timing]
    groups: Sequence[Group]

    @classmethod
    def of(cls, view: MeasureView) -> "Pruned | None":
        """The search of a run; None without one."""
        search, chosen = view.fact(PruneSearch), view.fact(Chosen)
        if search is None or chosen is None:
            return None
        return cls(search, chosen, view.found(Point), view.found(Timing), view.found(Group))

    @property
    def order(self) -> list[Point]:
        """The points of the chosen model's order."""
        return [point for point in self.points if point.score == self.chosen.score]

    def timed(self, point: Point) -> list[Timing]:
        """The latencies of a point of that order."""
        return [timing for timing in self.timings if timing.attempt == point.attempt]

    def random(self, kept: int) -> list[float]:
        """Changes of score of all random orders with this many heads left."""
        return [
            point.change.value
            for point in self.points
            if (point.score, point.kept) == (RANDOM, kept) and isfinite(point.change.value)
        ]


@dataclass(frozen=True)
class Removed:
    """Heads removed before fine-tuning.

    Args:
        score, label: Name and description of the score that chose them.
        kept, heads: Remaining heads, and heads of the original model.
        metric, evaluation: Metric and evaluation set of the fine-tuned model's score.
    """

    score: str
    label: str
    kept: int
    heads: int
    metric: str
    evaluation: str


@dataclass(frozen=True)
class GateFits:
    """Fits of gates to a frozen model.

    Args:
        metric: The metric of the path.
        score, loss: Score and mean loss of the original model.
        level: Level of the intervals.
        examples, choosing: Evaluation examples of the path, and training examples of the fits.
        penalty: Penalty per expected open gate for pushing gates shut.
        steps: Steps of each fit.
    """

    metric: str
    score: float
    loss: float
    level: float
    examples: int
    choosing: int
    penalty: float
    steps: int


@dataclass(frozen=True)
class PathPoint:
    """The model left by gates fitted with one penalty.

    Args:
        penalty: The penalty.
        kept: Heads whose gates are open.
        change: Change of score.
        loss: Mean loss.
    """

    KEYS: ClassVar = ("penalty",)

    penalty: float
    kept: int
    change: Estimate
    loss: float


@dataclass(frozen=True)
class PathGate:
    """A head's gate in evaluation mode, 0..1, fitted with one penalty of the path."""

    KEYS: ClassVar = ("penalty",)

    penalty: float
    layer: int
    head: int
    gate: float


@dataclass(frozen=True)
class ShrinkSearch(Search):
    """A search for the fastest model.

    Args:
        onnx: Whether an ONNX program is written too.
        taught_on, epochs: Training examples and epochs of the distillation.
        heads, neurons: Heads and neurons of each layer.
        batch_size: Batch size for which the time is planned.
        fixed: Milliseconds of a pass without heads and neurons.
        processor: The processor used for measuring.
    """

    onnx: bool
    taught_on: int
    epochs: int
    heads: int
    neurons: int
    batch_size: int
    fixed: float
    processor: str


@dataclass(frozen=True)
class Cost:
    """Additional milliseconds of one layer by the parts it keeps.

    Args:
        part: ``heads`` or ``neurons``.
        kept: How many of them.
        milliseconds: Milliseconds of a pass.
    """

    KEYS: ClassVar = ("kept",)

    part: str
    kept: int
    milliseconds: float


@dataclass(frozen=True)
class Attempt:
    """A smaller model that was built, timed and tested.

    Args:
        attempt: Its position in the order of tests, from 0.
        asked: The requested speed-up.
        int8: Whether its weights have 8 bits.
        predicted: The predicted speed-up; None with 8-bit weights.
        missed: Whether it is slower than requested.
        parameters: Its parameters.
        search: Number of the search on these examples that tested it.
        ruled_out: Whether a loss of at least the margin is excluded for every metric.
        class_ruled_out: The same within every class; None if not tested.
        passed: Whether it passed all tests.
    """

    KEYS: ClassVar = ("attempt",)

    attempt: int
    asked: float
    int8: bool
    predicted: float | None
    missed: bool
    parameters: int
    search: int
    ruled_out: bool
    class_ruled_out: bool | None
    passed: bool


@dataclass(frozen=True)
class MetricTest:
    """A smaller model's non-inferiority test for one metric.

    Args:
        attempt: Place of the model in the order of tests.
        metric: The metric.
        whole, smaller: The scores.
        bound, high: Upper confidence bounds on loss and gain.
        bound_later: Upper bound on the loss in a further search on the same examples.
        p_margin: P-value of a loss of at least the margin.
        needed: Examples needed to exclude it; infinite if no number would, None if none are needed.
        lost, won: Examples whose prediction became wrong and right; None for metrics other than accuracy.
    """

    KEYS: ClassVar = ("attempt",)

    attempt: int
    metric: str
    whole: float
    smaller: float
    bound: float
    high: float
    bound_later: float
    p_margin: float
    needed: float | None
    lost: int | None
    won: int | None

    @property
    def change(self) -> float:
        """Change of score."""
        return self.smaller - self.whole


@dataclass(frozen=True)
class Layer:
    """The parts of one layer that a smaller model keeps.

    Args:
        attempt: Place of the model in the order of tests.
        layer: The layer.
        heads: Its kept heads, such as ``0 3 5``.
        neurons: Number of neurons.
    """

    KEYS: ClassVar = ("attempt",)

    attempt: int
    layer: int
    heads: str
    neurons: int

    @property
    def count(self) -> int:
        """Number of heads."""
        return len(self.heads.split())


@dataclass(frozen=True)
class Smaller:
    """A smaller model, and all rows about it."""

    attempt: Attempt
    tests: Sequence[MetricTest]
    timings: Sequence[Timing]
    layers: Sequence[Layer]
    groups: Sequence[Group]

    @property
    def rows(self) -> list[object]:
        return [self.attempt, *self.tests, *self.timings, *self.layers, *self.groups]

    @property
    def holds(self) -> bool:
        """Whether it passed its tests and is as fast as requested."""
        return self.attempt.passed and not self.attempt.missed

    @property
    def worst(self) -> MetricTest:
        """The test of the metric with the largest loss."""
        return min(self.tests, key=lambda test: test.change)

    def timing(self, batch: int) -> Timing:
        """Its time at a batch size."""
        return next(timing for timing in self.timings if timing.batch == batch)


@dataclass(frozen=True)
class Shrunk:
    """All rows of a search for the fastest model; the attempts in order of their tests."""

    search: ShrinkSearch
    attempts: Sequence[Smaller]

    @classmethod
    def of(cls, view: MeasureView) -> "Shrunk | None":
        """The search of a run; None without one."""
        search = view.fact(ShrinkSearch)
        if search is None:
            return None
        tests, timings = view.found(MetricTest), view.found(Timing)
        layers, groups = view.found(Layer), view.found(Group)
        attempts = [
            Smaller(
                attempt,
                [row for row in tests if row.attempt == attempt.attempt],
                [row for row in timings if row.attempt == attempt.attempt],
                [row for row in layers if row.attempt == attempt.attempt],
                [row for row in groups if row.attempt == attempt.attempt],
            )
            for attempt in view.found(Attempt)
        ]
        return cls(search, attempts)

    @property
    def fastest(self) -> Smaller | None:
        """The last successful attempt; None if none was."""
        return next((attempt for attempt in reversed(self.attempts) if attempt.holds), None)

    @property
    def written(self) -> Smaller:
        """The attempt that is written: the fastest successful one, or else the first."""
        return self.fastest or self.attempts[0]

    @property
    def folder(self) -> str:
        """Name of the smaller model's folder in the run's folder, which depends on whether it passed."""
        return "shrunk" if self.fastest else "shrunk_failed"

    def speedup(self, attempt: Smaller) -> float:
        """Measured speed-up of an attempt, at the batch size of the search."""
        return attempt.timing(self.search.batch_size).speedup
