"""What a run keeps of its coreference heads: table 2 of Clark et al. 2019."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BaselineScore:
    """A baseline on the documents that score.

    Args:
        name: ``nearest``, ``head_match``, ``rule_based`` or ``random``.
        accuracy, low, high: Share of the anaphors whose antecedent it finds, and the limits of a 95 % interval.
        gain, gain_low, gain_high: The head's accuracy minus this, with limits.
        on_all: Its share on all documents.
    """

    name: str
    accuracy: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float
    on_all: float


@dataclass(frozen=True)
class MentionScore:
    """The best head for a kind of mention: chosen on one half of the documents and scored on the other.

    Args:
        kind: ``all``, ``pronoun``, ``proper`` or ``nominal``.
        count, documents: Anaphors in the half that scores, and its documents that have any.
        layer, head: The head chosen for this kind.
        accuracy, low, high: Share of the anaphors whose antecedent it attends to most, and the limits of a 95 % interval.
        one_head, one_head_low, one_head_high: The same for the head chosen for all kinds together, as the paper shows one head.
        baselines: The baselines.
        chosen_on_all: Accuracy of the head that is best on all documents, scored on the same ones, as in the paper.
        layer_on_all, head_on_all: That head.
    """

    kind: str
    count: int
    documents: int
    layer: int
    head: int
    accuracy: float
    low: float
    high: float
    one_head: float
    one_head_low: float
    one_head_high: float
    baselines: list[BaselineScore]
    chosen_on_all: float
    layer_on_all: int
    head_on_all: int


@dataclass(frozen=True)
class CoreferenceRecord:
    """The kinds of mentions of a set of documents, and what was left out.

    Args:
        task: Name of the task.
        documents, windows: Documents and windows of them that were read.
        outside: Mentions that do not count because all antecedents lie outside of their window.
        vanished: Mentions that do not count because they or all antecedents have no token of their own.
        unanswered: Mentions of which no offered choice is an antecedent; they do not count.
        replicates: Bootstrap samples of documents behind the intervals.
        settings: Settings of the measure.
        kinds: One score each, all kinds together first; empty if a half of the documents has no anaphor.
    """

    task: str
    documents: int
    windows: int
    outside: int
    vanished: int
    unanswered: int
    replicates: int
    settings: dict[str, Any]
    kinds: list[MentionScore]

    @classmethod
    def read(cls, extras: Mapping[str, Any]) -> "CoreferenceRecord | None":
        """The record in a run's extras; None if there is none."""
        if not extras:
            return None
        kinds = [
            MentionScore(**{**entry, "baselines": [BaselineScore(**baseline) for baseline in entry["baselines"]]})
            for entry in extras["kinds"]
        ]
        return cls(**{**extras, "kinds": kinds})
