"""The four demo tasks: endless streams of labelled sentences, cut into splits that share none."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from bertsecrets.data.demo.matching import Matcher, overlap
from bertsecrets.data.demo.pairs import NLI_LABELS, PARAPHRASE_LABELS, SCORE_RANGE, nli, paraphrase, similarity
from bertsecrets.data.demo.sampling import Sampler
from bertsecrets.data.demo.sentiment import SENTIMENT_LABELS, sentiment
from bertsecrets.data.demo.tokens import Draft, annotate, coreference_clusters, forms, text_of
from bertsecrets.data.example import Example

SPLITS = {"train": (0, 2000), "validation": (2000, 2400), "test": (2400, 2800)}
SCORE_BINS = 5

Labelled = tuple[tuple[Draft, ...], int | float]


@dataclass(frozen=True)
class Recipe:
    """How a task is made: what draws its candidates, its classes, and what the classes must not differ in."""

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


def examples(task: str, split: str, seed: int) -> list[Example]:
    """One split of a task; raises KeyError for a name that is not in ``RECIPES`` or ``SPLITS``."""
    first, last = SPLITS[split]
    rows = list(islice(_stream(RECIPES[task], Sampler(Random(f"{task} {seed}"))), first, last))
    Random(f"{task} {seed} {split}").shuffle(rows)
    return [_example(index, drafts, None if split == "test" else label) for index, (drafts, label) in enumerate(rows)]


def _stream(recipe: Recipe, sampler: Sampler) -> Iterator[Labelled]:
    """Labelled sentences, none of which occurs twice; every run of ``classes`` rows has one of each class."""
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
