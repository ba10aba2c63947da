"""Results of probes besides their weights: table 3 of Clark et al. 2019."""

from dataclasses import dataclass
from typing import ClassVar

from bertsecrets.results.estimate import Estimate

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
"""The trainable probes."""

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
class ProbeScore:
    """The scores of a probe, with intervals over bootstrap samples of sentences.

    Args:
        probe: The probe, a key of ``LABELS``.
        uas: Share of words with the correct head.
        las: Share of words with the correct head and relation.
        control: Accuracy in the control task; None without one.
        selectivity: ``uas`` minus ``control``; None without a control task.
        weights: Number of weights that predict the heads.
        seconds: Time for training and prediction, including the control task.
    """

    probe: str
    uas: Estimate
    las: Estimate
    control: Estimate | None
    selectivity: Estimate | None
    weights: int
    seconds: float


@dataclass(frozen=True)
class Difference:
    """The first probe's share of correct heads minus the second's, on the same sentences; pairs of ``DIFFERENCES``."""

    first: str
    second: str
    uas: Estimate


@dataclass(frozen=True)
class HiddenState:
    """What the structural probe finds in a hidden state.

    Args:
        state: 0 for the embeddings, n for the output of layer n - 1.
        uuas: Share of the trees' edges found, without their direction (Hewitt and Manning 2019).
        chosen: Whether this state was chosen on held-out sentences.
    """

    KEYS: ClassVar = ("state",)

    state: int
    uuas: Estimate
    chosen: bool


@dataclass(frozen=True)
class Structural:
    """The structural probe, besides its score in each :class:`HiddenState`.

    Args:
        edges: Number of edges between scored words.
        rank: Dimensions that the probe maps to.
        chosen_on: Number of held-out sentences for choosing the state, neither trained on nor scored.
        gain: Share of edges found in the chosen state minus the share in the embeddings.
        neighbours: Share of edges between neighbouring words, the baseline without a probe.
        seconds: Total time.
    """

    edges: int
    rank: int
    chosen_on: int
    gain: Estimate
    neighbours: Estimate
    seconds: float


@dataclass(frozen=True)
class Probed:
    """The sentences, counts of skipped ones, and the training settings.

    Args:
        corpus: Name of the task with the sentences.
        trained_on, sentences: Number of sentences to train on, and to score.
        words: Number of words scored.
        halves: Whether both are halves of one set.
        truncated: Sentences skipped in both because they exceed the model's limit or ``max_length``.
        vanished: Words without a token in both; they and the words that depend on them do not count.
        vectors: Source of the word vectors; empty without any.
        without_vector: Scored words without a vector.
        replicates: Bootstrap samples of sentences behind the intervals.
        punctuation, epochs, learning_rate, batch_size, recipe_seed: Settings of the training.
        file_bytes: Size of one encoder's attention on disk.
        read_seconds: Time to compute and store the attention of all sentences for all encoders.
    """

    corpus: str
    trained_on: int
    sentences: int
    words: int
    halves: bool
    truncated: int
    vanished: int
    vectors: str
    without_vector: int
    replicates: int
    punctuation: bool
    epochs: int
    learning_rate: float
    batch_size: int
    recipe_seed: int
    file_bytes: int
    read_seconds: float


ProbeRow = ProbeScore | Difference | HiddenState | Structural | Probed
