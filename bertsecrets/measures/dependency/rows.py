"""What the dependency measure finds beside its grid."""

from dataclasses import dataclass

from bertsecrets.results.estimate import Estimate
from bertsecrets.statistics.corrections import LEVEL


@dataclass(frozen=True)
class Relation:
    """The best head of a relation: chosen on a third of the sentences and scored on the others, over random splits.

    Args:
        relation: The relation; ``all`` for all words.
        words: Its words.
        layer, head: The head chosen most often.
        from_head: Whether the head word attends to its dependents, rather than a dependent to its head.
        chosen: Share of the splits that chose it.
        accuracy: Share of the words whose head the chosen head points to.
        offset, baseline: The best fixed offset on all sentences, and its share there.
        gain: Accuracy minus that of this offset on the same sentences.
        p_gain: Of no gain over some offset, the splits combined; corrected over the relations, except for ``all``.
        chosen_on_all: Accuracy of the head that is best on all sentences, scored on the same ones, as in the paper.
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
    """The sentences, what was left out, and the settings that a page tells.

    Args:
        corpus: Name of the task that brought the sentences.
        sentences: Sentences that count.
        truncated: Sentences longer than the model or ``max_length``, left out.
        vanished: Words without a token of their own, which do not count, nor do the words that depend on them.
        splits: Random splits of the sentences.
        single_low, single_high: Least and most relations whose best head would beat every offset by one split alone,
            corrected.
        from_word, possessive, punctuation, root: Settings of the measure.
        min_count: Its least number of words of a relation; None where the relations were given.
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
