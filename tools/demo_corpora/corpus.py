"""The demo tasks: endless streams of labelled sentences, balanced by class, cut into splits that share no sentence."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Generic, TypeVar

from bertsecrets.data.example import Example
from bertsecrets.errors import choices
from tools.demo_corpora.events import Sampler
from tools.demo_corpora.pairs import NLI_LABELS, PARAPHRASE_LABELS, SCORE_RANGE, nli, paraphrase, similarity
from tools.demo_corpora.sentences import Draft, annotate, coreference_clusters, forms, text_of
from tools.demo_corpora.sentiment import SENTIMENT_LABELS, sentiment

SPLITS = {"train": (0, 2000), "validation": (2000, 2400), "test": (2400, 2800)}
SCORE_BINS = 5

Labelled = tuple[tuple[Draft, ...], int | float]
Item = TypeVar("Item")


@dataclass
class Matcher(Generic[Item]):
    """Groups candidates, one of each class, that have the same surface (say, the same length).

    A candidate waits until each of the ``classes`` has one with its surface; then the whole group is released.
    """

    classes: int
    _waiting: dict[Hashable, tuple[deque[Item], ...]] = field(default_factory=dict)

    def add(self, label: int, surface: Hashable, item: Item) -> Iterator[Item]:
        """Add a candidate of class ``label`` (from 0), and yield the group that it completes, if any."""
        queues = self._waiting.setdefault(surface, tuple(deque[Item]() for _ in range(self.classes)))
        queues[label].append(item)
        if all(queues):
            yield from (queue.popleft() for queue in queues)


def overlap(first: Sequence[str], second: Sequence[str]) -> tuple[float, int, int]:
    """Jaccard overlap of two word sequences (0 to 1), their difference in length and the number of shared words."""
    one, two = {word.lower() for word in first}, {word.lower() for word in second}
    return len(one & two) / len(one | two), len(second) - len(first), len(one & two)


@dataclass(frozen=True)
class Recipe:
    """How a task is generated.

    Args:
        draw: Draws a candidate; None if the draw failed.
        classes: Number of classes to balance.
        surface: A property of the spelt sentences that is distributed alike in all classes.
    """

    draw: Callable[[Sampler], Labelled | None]
    classes: int
    surface: Callable[[Sequence[Sequence[str]]], Hashable]

    def class_of(self, label: int | float) -> int:
        """The class to balance: the label itself, or the bin of a score."""
        if isinstance(label, int):
            return label
        return min(int(label / SCORE_RANGE[1] * SCORE_BINS), SCORE_BINS - 1)


def _pair_surface(spelt: Sequence[Sequence[str]]) -> Hashable:
    jaccard, difference, _ = overlap(*spelt)
    return round(jaccard * 8), max(-4, min(4, difference))


def _coarse_surface(spelt: Sequence[Sequence[str]]) -> Hashable:
    return None


def _length(spelt: Sequence[Sequence[str]]) -> Hashable:
    return len(spelt[0])


RECIPES = {
    "demo_paraphrase": Recipe(paraphrase, len(PARAPHRASE_LABELS), _pair_surface),
    "demo_sentiment": Recipe(sentiment, len(SENTIMENT_LABELS), _length),
    "demo_similarity": Recipe(similarity, SCORE_BINS, _coarse_surface),
    "demo_nli": Recipe(nli, len(NLI_LABELS), _pair_surface),
}


def generate(task: str, seed: int = 0) -> dict[str, list[Example]]:
    """The examples of a demo task by split: "train", "validation" and "test".

    The same arguments give the same examples on every machine. "train" has 2,000 examples, the others 400, and no
    sentence occurs twice in a task. Labels are class indices (0 or 1; 0 to 2 for NLI), scores from 0.0 to 5.0, and
    None throughout "test".

    Raises:
        ValueError: There is no such task.
    """
    if task not in RECIPES:
        raise ValueError(f"Unknown demo task {task!r}: {choices(task, RECIPES)}.")
    rows = list(
        islice(_stream(RECIPES[task], Sampler(Random(f"{task} {seed}"))), max(last for _, last in SPLITS.values()))
    )
    splits = {}
    for split, (first, last) in SPLITS.items():
        drawn = rows[first:last]
        Random(f"{task} {seed} {split}").shuffle(drawn)
        splits[split] = [
            _example(index, drafts, None if split == "test" else label) for index, (drafts, label) in enumerate(drawn)
        ]
    return splits


def _stream(recipe: Recipe, sampler: Sampler) -> Iterator[Labelled]:
    """Labelled sentences without repetition; every ``classes`` consecutive rows have one of each class."""
    seen: set[str] = set()
    matcher = Matcher[Labelled](recipe.classes)
    while True:
        drawn = recipe.draw(sampler)
        if drawn is None:
            continue
        drafts, label = drawn
        spelt = [forms(draft) for draft in drafts]
        texts = {text_of(words) for words in spelt}
        if len(texts) < len(drafts) or texts & seen:
            continue
        seen |= texts
        yield from matcher.add(recipe.class_of(label), recipe.surface(spelt), drawn)


def _example(index: int, drafts: Sequence[Draft], label: int | float | None) -> Example:
    clusters = coreference_clusters(drafts)
    spelt = [forms(draft) for draft in drafts]
    return Example(
        index,
        tuple(text_of(words) for words in spelt),
        label,
        tuple(annotate(draft, words, clusters) for draft, words in zip(drafts, spelt, strict=True)),
    )
