"""What a run keeps of its probes: table 3 of Clark et al. 2019."""

from dataclasses import dataclass
from typing import Any

from bertsecrets.results.views import ExtrasRecord

RIGHT_BRANCHING = "right_branching"
ATTENTION = "attention"
ATTENTION_WORDS = "attention_words"
DISTANCES_WORDS = "distances_words"
RANDOM_ATTENTION = "random_attention"
RANDOM_ATTENTION_WORDS = "random_attention_words"
STRUCTURAL = "structural"

LABELS = {
    RIGHT_BRANCHING: "right-branching",
    DISTANCES_WORDS: "distances and words",
    RANDOM_ATTENTION: "attention, random encoder",
    RANDOM_ATTENTION_WORDS: "attention and words, random encoder",
    ATTENTION: "attention",
    ATTENTION_WORDS: "attention and words",
}
"""Names of the parsers on pages, in the order of the table."""

PROBES = (*(name for name in LABELS if name != RIGHT_BRANCHING), STRUCTURAL)
"""The probes that are trained."""

DIFFERENCES = (
    (ATTENTION, RIGHT_BRANCHING),
    (ATTENTION, RANDOM_ATTENTION),
    (ATTENTION, DISTANCES_WORDS),
    (ATTENTION_WORDS, ATTENTION),
    (ATTENTION_WORDS, RANDOM_ATTENTION_WORDS),
    (ATTENTION_WORDS, DISTANCES_WORDS),
)
"""Pairs of probes that are compared on the same sentences."""


@dataclass(frozen=True)
class Share:
    """A share of words, or a difference of shares, with the limits of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ProbeScore:
    """The scores of a probe.

    Args:
        name: The probe, of ``LABELS``.
        uas: Share of words with the right head.
        las: Share of words with the right head and relation.
        control: Share of right answers in the control task; None without one.
        selectivity: ``uas`` less ``control``; None without a control task.
        weights: Number of weights that choose the heads.
        seconds: Time of training and answering, its control task included.
    """

    name: str
    uas: Share
    las: Share
    control: Share | None
    selectivity: Share | None
    weights: int
    seconds: float


@dataclass(frozen=True)
class ProbeDifference:
    """The first probe's share of right heads less the second's, with the limits of its 95 % interval."""

    first: str
    second: str
    uas: Share


@dataclass(frozen=True)
class StructuralScore:
    """Edges of the trees, without their direction, that the structural probe finds (UUAS; Hewitt and Manning 2019).

    Args:
        edges: Number of edges between scored words.
        rank: Dimensions that the probe maps to.
        chosen_on: Number of sentences that chose the state, neither trained on nor scored.
        state: The chosen hidden state: 0 for the embeddings, n for the output of layer n - 1.
        uuas: Share of edges found in each hidden state.
        gain: That of the chosen state less that of the embeddings.
        neighbours: Share of edges between neighbouring words, which takes no probe.
        seconds: Time of all.
    """

    edges: int
    rank: int
    chosen_on: int
    state: int
    uuas: list[Share]
    gain: Share
    neighbours: Share
    seconds: float

    @property
    def chosen(self) -> Share:
        """Share of edges found in the chosen state."""
        return self.uuas[self.state]


@dataclass(frozen=True)
class ProbesRecord(ExtrasRecord):
    """The probes of a model on a treebank.

    Args:
        task: Name of the task.
        trained_on, sentences: Number of sentences to train on, and to score.
        words: Number of words scored.
        halves: Whether both are halves of one set.
        truncated: Sentences longer than the model or ``max_length``, left out of both.
        vanished: Words without a token of their own in both; they do not count, nor do the words that depend on them.
        vectors: Source of the word vectors; empty without any.
        without_vector: Scored words without a vector.
        replicates: Bootstrap samples of sentences behind the intervals.
        settings: Settings of the training.
        file_bytes: Size of the attention on disk, of one encoder.
        read_seconds: Time to compute and store the attention of all sentences, by encoder.
        scores: The probes, in the order of ``LABELS``.
        differences: Those of ``DIFFERENCES`` whose probes there are.
        structural: The structural probe; None without it.
    """

    task: str
    trained_on: int
    sentences: int
    words: int
    halves: bool
    truncated: int
    vanished: int
    vectors: str
    without_vector: int
    replicates: int
    settings: dict[str, Any]
    file_bytes: int
    read_seconds: dict[str, float]
    scores: list[ProbeScore]
    differences: list[ProbeDifference]
    structural: StructuralScore | None = None

    def score(self, name: str) -> ProbeScore | None:
        """The scores of a probe; None if it was not trained."""
        return next((score for score in self.scores if score.name == name), None)
