"""Results of the dependency measure besides its grid."""

from dataclasses import dataclass

from bertsecrets.results.estimate import Estimate
from bertsecrets.statistics.corrections import LEVEL


@dataclass(frozen=True)
class Relation:
    """The best head for a relation, chosen on one third of the sentences and scored on the rest, over random splits.

    Args:
        relation: The relation; ``all`` for all words.
        words: Its number of words.
        layer, head: The head chosen most often.
        from_head: Whether the head word attends to its dependents, rather than a dependent to its head.
        chosen: Share of the splits that chose it.
        accuracy: Share of the words whose head the chosen head points to.
        offset, baseline: The best fixed offset on all sentences, and its accuracy there.
        gain: Accuracy minus that of this offset on the same sentences.
        p_gain: P-value of no gain over some offset, combined over splits and corrected over relations, except for
            ``all``.
        chosen_on_all: Accuracy of the best head on all sentences, scored on the same sentences, as in the paper.
    """

    relation: str
    words: int
    layer: int
    head: int
    from_head: bool
    chosen: float
    accuracy: Estimate
    offset: int
    baseline: float
    gain: Estimate
    p_gain: float
    chosen_on_all: float

    @property
    def beats_offsets(self) -> bool:
        """Whether the head is significantly better than every fixed offset."""
        return self.p_gain <= LEVEL


@dataclass(frozen=True)
class Treebank:
    """The sentences, counts of excluded words, and settings for the page.

    Args:
        corpus: Name of the task with the sentences.
        sentences: Sentences that count.
        truncated: Sentences skipped because they exceed the model's limit or ``max_length``.
        vanished: Words without a token; they and the words that depend on them do not count.
        splits: Random splits of the sentences.
        single_low, single_high: Least and most relations whose best head beats every offset in a single split,
            corrected.
        from_word, possessive, punctuation, root: Settings of the measure.
        min_count: Its least number of words per relation; None if the relations were given.
    """

    corpus: str
    sentences: int
    truncated: int
    vanished: int
    splits: int
    single_low: int
    single_high: int
    from_word: str
    possessive: bool
    punctuation: bool
    root: bool
    min_count: int | None
