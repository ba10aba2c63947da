"""What a run keeps of its dependency heads: the table of the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RelationScore:
    """The best head of a relation: chosen on one half of the sentences and scored on the other.

    Args:
        relation: The relation; ``all`` for all words.
        count: Its words in the half that scores.
        layer, head: The head chosen.
        from_head: Whether the head word attends to its dependents, rather than a dependent to its head.
        accuracy, low, high: Share of the words whose head it points to, and the limits of a 95 % interval.
        offset: The best fixed offset, chosen on the same half.
        baseline: Its share on the half that scores.
        gain, gain_low, gain_high: Accuracy minus baseline, with limits.
        chosen_on_all: Accuracy of the head that is best on all sentences, scored on the same ones, as in the paper.
        baseline_on_all: The same for fixed offsets.
    """

    relation: str
    count: int
    layer: int
    head: int
    from_head: bool
    accuracy: float
    low: float
    high: float
    offset: int
    baseline: float
    gain: float
    gain_low: float
    gain_high: float
    chosen_on_all: float
    baseline_on_all: float


@dataclass(frozen=True)
class DependencyRecord:
    """The relations of a treebank, and what was left out.

    Args:
        task: Name of the task.
        sentences: Sentences that count.
        truncated: Sentences longer than the model or ``max_length``, left out.
        vanished: Words without a token of their own, which do not count, nor do the words that depend on them.
        replicates: Bootstrap samples of sentences behind the intervals.
        settings: Settings of the measure.
        relations: One score each; all words first, then in descending order of frequency.
    """

    task: str
    sentences: int
    truncated: int
    vanished: int
    replicates: int
    settings: dict[str, Any]
    relations: list[RelationScore]

    @classmethod
    def read(cls, extras: Mapping[str, Any]) -> "DependencyRecord | None":
        """The record in a run's extras; None if there is none."""
        if not extras:
            return None
        relations = [RelationScore(**entry) for entry in extras["relations"]]
        return cls(**{**extras, "relations": relations})
