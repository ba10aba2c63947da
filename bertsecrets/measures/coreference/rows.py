"""Results of the coreference measure besides its grid."""

from dataclasses import dataclass

from bertsecrets.results.estimate import Estimate
from bertsecrets.statistics.corrections import LEVEL


@dataclass(frozen=True)
class Mentions:
    """The best head for a kind of mention, chosen on one third of the documents and scored on the rest, over random
    splits.

    Args:
        mention: ``all``, ``pronoun``, ``proper`` or ``nominal``.
        mentions, documents: Anaphors, and documents that have any.
        layer, head: The head chosen most often for this kind.
        chosen: Share of the splits that chose it.
        accuracy: Share of the anaphors whose antecedent the chosen head attends to most.
        one_head: The same for one head chosen for all kinds, as in the paper.
        rules: Accuracy of the baseline ``rule_based`` on all documents.
        chosen_on_all: Accuracy of the best head on all documents, scored on the same documents, as in the paper.
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
    """A baseline, and the gain of the best head for a kind of mention.

    Args:
        mention: The kind of mention.
        baseline: ``nearest``, ``head_match``, ``rule_based`` or ``random``.
        layer, head: The head of this kind.
        accuracy: Share of the anaphors whose antecedent the baseline finds, on all documents.
        gain: The head's accuracy minus the baseline's on the scored documents.
        p_gain: Two-sided p-value of no gain, combined over splits and corrected over kinds and baselines.
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
    """The documents, counts of excluded mentions, and settings for the page.

    Args:
        corpus: Name of the task with the documents.
        documents, texts: Numbers of documents and of windows read.
        outside: Mentions excluded because all antecedents are outside their window.
        vanished: Mentions excluded because they or all antecedents have no token.
        unanswered: Mentions excluded because none of the choices is an antecedent.
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
