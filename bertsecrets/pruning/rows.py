"""What pruning, gates and searches for faster models find beside their grids."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from bertsecrets.results.estimate import Estimate
from bertsecrets.results.views import MeasureView

RANDOM, REVERSED = "random", "reversed"

CONTROLS = (RANDOM, REVERSED)
"""Scores that no smallest model is chosen by; ``reversed`` removes first what the first other score keeps longest."""


@dataclass(frozen=True)
class Search:
    """A search for smaller models: what it had to show, and on what.

    Args:
        margin, class_margin: The losses that matter, of score and of accuracy within a class; None where no class was
            tested.
        confidence: Confidence of all searches on the same examples together.
        number: Which search on these examples it is, from 1; 0 if unknown.
        level: Confidence of its own tests.
        counted: Whether earlier searches are known.
        examples: Examples of the tests.
        choosing: Training examples that chose what goes.
        parameters: Parameters of the whole model.
        length: Mean tokens of an example; latencies are of so many.
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
    """Milliseconds of a forward pass, the whole model and a smaller one in turns.

    Args:
        attempt: Place of the smaller model in its order, from 0.
        batch: Examples of a batch.
        whole, smaller: Medians over the rounds.
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
        """How many times as fast the smaller model is."""
        return self.whole / self.smaller


@dataclass(frozen=True)
class Group:
    """Accuracy of the whole model and of a smaller one within a group of the examples.

    Args:
        attempt: Place of the smaller model in its order, from 0.
        by: What makes the groups: ``class`` or ``length``.
        group: Name of the group.
        examples: Its examples.
        whole, smaller: The accuracies.
        change: The smaller one's minus the whole one's; the limits hold for all groups of a kind together.
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
        score, loss: Score and mean loss of the whole model.
        heads: Heads of the whole model.
        iterative: Whether scores are computed anew after each step.
        recovery_epochs: Epochs of fine-tuning after each step.
        flops: FLOPs of the whole model for one example.
    """

    metric: str
    score: float
    loss: float
    heads: int
    iterative: bool
    recovery_epochs: int
    flops: int


@dataclass(frozen=True)
class Point:
    """A smaller model on the curve of a score.

    Args:
        score, label: Name and words of the score that orders the heads.
        from_table: Whether it was read from a head table, which may have been measured on any examples.
        order: Number of a random order, from 0; else 0.
        attempt: Place of the model in its order, from 0.
        kept: Heads that are left.
        change: Change of score.
        loss: Mean loss.
        parameters, flops: What is left of them.
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
    """The smallest model that passed its tests, the one that was asked for, or the first that failed.

    Args:
        score: Name of the score whose order it is on.
        attempt: Its place in the order.
        kept: Heads that are left.
        asked: Whether their number was asked for.
        holds: Whether losses that matter are ruled out.
        change: Change of score; NaN where undefined.
        bound: The largest loss that is not ruled out.
        p_margin: Of a loss of a margin or more.
        needed: Examples that would rule it out, if loss and variance stay as observed; None where none are needed or
            would help.
        hopeless: Whether the observed loss is the margin or more.
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
        """The points of the order that the chosen model is on."""
        return [point for point in self.points if point.score == self.chosen.score]

    def timed(self, point: Point) -> list[Timing]:
        """The latencies of a point of that order."""
        return [timing for timing in self.timings if timing.attempt == point.attempt]

    def random(self, kept: int) -> list[float]:
        """Changes of score of all random orders with so many heads left."""
        return [
            point.change.value
            for point in self.points
            if (point.score, point.kept) == (RANDOM, kept) and isfinite(point.change.value)
        ]


@dataclass(frozen=True)
class Removed:
    """Heads removed before fine-tuning.

    Args:
        score, label: Name and words of the score that chose them.
        kept, heads: Heads that are left, and heads of the whole model.
        metric, evaluation: The score of the fine-tuned model: its metric, and the evaluation set.
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
        score, loss: Score and mean loss of the whole model.
        level: Of the intervals.
        examples, choosing: Examples of the path, and training examples of the fits.
        penalty: For each expected open gate, with which gates are pushed shut.
        steps: Of each fit.
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
    """The model that gates fitted with one penalty leave.

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
        shape: ``free`` or ``uniform`` cuts.
        onnx: Whether an ONNX program is written beside the model.
        taught_on, epochs: Training examples of the distillation, and how often.
        heads, neurons: Heads and neurons of each layer.
        batch_size: Examples of the batch whose time is planned for.
        fixed: Milliseconds of a pass without heads and neurons.
        processor: What measured latencies.
    """

    shape: str
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
    """Milliseconds that one layer takes by what it keeps, more than with nothing of it.

    Args:
        part: ``heads`` or ``neurons``.
        kept: How many of them.
        milliseconds: Of a pass.
    """

    KEYS: ClassVar = ("kept",)

    part: str
    kept: int
    milliseconds: float


@dataclass(frozen=True)
class Attempt:
    """A smaller model that was made, timed and tested.

    Args:
        attempt: Its place in the order of tests, from 0.
        asked: The speed-up that was asked for.
        int8: Whether its weights have 8 bits.
        predicted: The predicted speed-up; None with 8-bit weights.
        missed: Whether it is slower than was asked for.
        parameters: Its parameters.
        search: Which search on these examples tested it.
        ruled_out: Whether a loss of the margin or more is ruled out for every metric.
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
    """A smaller model's test of non-inferiority in one metric.

    Args:
        attempt: Place of the model in the order of tests.
        metric: The metric.
        whole, smaller: The scores.
        bound, high: The largest loss and the largest gain that are not ruled out.
        bound_later: The loss that a further search on the same examples would not rule out.
        p_margin: Of a loss of the margin or more.
        needed: Examples that would rule it out; infinite where none would, None where none are needed.
        lost, won: Examples whose answer turned wrong and right; None for other metrics than accuracy.
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
    """What a smaller model keeps of one layer.

    Args:
        attempt: Place of the model in the order of tests.
        layer: The layer.
        heads: Numbers of its heads, such as ``0 3 5``.
        neurons: How many neurons.
    """

    KEYS: ClassVar = ("attempt",)

    attempt: int
    layer: int
    heads: str
    neurons: int

    @property
    def count(self) -> int:
        """How many heads."""
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
        """Whether it passed its tests and is as fast as was asked for."""
        return self.attempt.passed and not self.attempt.missed

    @property
    def worst(self) -> MetricTest:
        """The test of the metric that loses most."""
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
        """The last attempt that holds; None if none does."""
        return next((attempt for attempt in reversed(self.attempts) if attempt.holds), None)

    @property
    def written(self) -> Smaller:
        """The fastest attempt that holds, or else the first one: the one that is written."""
        return self.fastest or self.attempts[0]

    @property
    def folder(self) -> str:
        """Name of the smaller model's folder within the run's; it tells whether the model holds."""
        return "shrunk" if self.fastest else "shrunk_failed"

    def speedup(self, attempt: Smaller) -> float:
        """Measured time of the whole model over that of an attempt, at the batch size of the search."""
        return attempt.timing(self.search.batch_size).speedup
