"""What the coreference measure finds beside its grid."""

from dataclasses import dataclass

from bertsecrets.results.estimate import Estimate
from bertsecrets.statistics.corrections import LEVEL


@dataclass(frozen=True)
class Mentions:
    """The best head for a kind of mention: chosen on a third of the documents and scored on the others, over random
    splits.

    Args:
        mention: ``all``, ``pronoun``, ``proper`` or ``nominal``.
        mentions, documents: Anaphors, and documents that have any.
        layer, head: The head chosen most often for this kind.
        chosen: Share of the splits that chose it.
        accuracy: Share of the anaphors whose antecedent the chosen head attends to most.
        one_head: The same for the head chosen for all kinds together, as the paper shows one head.
        rules: Share that the baseline ``rule_based`` finds, on all documents.
        chosen_on_all: Accuracy of the head that is best on all documents, scored on the same ones, as in the paper.
        layer_on_all, head_on_all: That head.
    """

    mention: str
    mentions: int
    documents: int
    layer: int
    head: int
    chosen: float
    accuracy: Estimate
    one_head: Estimate
    rules: float
    chosen_on_all: float
    layer_on_all: int
    head_on_all: int


@dataclass(frozen=True)
class Baseline:
    """A baseline, and how much better the best head for a kind of mention is.

    Args:
        mention: The kind of mention.
        baseline: ``nearest``, ``head_match``, ``rule_based`` or ``random``.
        layer, head: The head of this kind.
        accuracy: Share of the anaphors whose antecedent the baseline finds, on all documents.
        gain: The head's accuracy minus the baseline's on the documents that score.
        p_gain: Two-sided, of no gain, the splits combined; corrected over kinds and baselines.
    """

    mention: str
    baseline: str
    layer: int
    head: int
    accuracy: Estimate
    gain: Estimate
    p_gain: float

    @property
    def differs(self) -> bool:
        """Whether the head is significantly better or worse."""
        return self.p_gain <= LEVEL


@dataclass(frozen=True)
class Documents:
    """The documents, what was left out, and the settings that a page tells.

    Args:
        corpus: Name of the task that brought the documents.
        documents, texts: Documents, and windows of them, that were read.
        outside: Mentions that do not count because all antecedents lie outside of their window.
        vanished: Mentions that do not count because they or all antecedents have no token of their own.
        unanswered: Mentions of which no offered choice is an antecedent; they do not count.
        splits: Random splits of the documents.
        candidates, windows: Settings of the measure.
    """

    corpus: str
    documents: int
    texts: int
    outside: int
    vanished: int
    unanswered: int
    splits: int
    candidates: str
    windows: str
