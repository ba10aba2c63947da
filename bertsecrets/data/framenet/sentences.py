"""Exemplars as examples: words with their offsets, the target and the elements that are linked to it."""

import re
from collections.abc import Collection
from itertools import pairwise

from bertsecrets.data.example import Annotation, Example, Frame, FrameElement, Word
from bertsecrets.data.framenet.corpus import Exemplar, Span


def annotated(index: int, exemplar: Exemplar, linked: Collection[Span]) -> Example:
    """An exemplar as an example without label; elements that are not in ``linked`` are there with ``core=False``.

    Words are stretches without spaces, cut where a target or an element begins or ends, so that each of these is a
    whole number of words. FrameNet has neither syntax nor universal tags: every word is "X" and a root.
    """
    target = exemplar.targets[0]
    words = _words(exemplar.text, [target, *exemplar.elements])
    places = [(span, _place(span, words)) for span in exemplar.elements]
    elements = [FrameElement(span.name, *place, core=span in linked) for span, place in places if place is not None]
    place = _place(target, words)
    frames = (Frame(exemplar.frame, place[0], tuple(elements), target_last=place[1]),) if place else ()
    return Example(index, (exemplar.text,), None, (Annotation(tuple(words), frames),))


def _words(text: str, spans: Collection[Span]) -> list[Word]:
    cuts = {edge for span in spans for edge in (span.start, span.end)}
    words = []
    for found in re.finditer(r"\S+", text):
        edges = [found.start(), *sorted(cut for cut in cuts if found.start() < cut < found.end()), found.end()]
        words += [
            Word(text[start:end], start, end, pos="X", head=-1, relation="root") for start, end in pairwise(edges)
        ]
    return words


def _place(span: Span, words: list[Word]) -> tuple[int, int] | None:
    """First and last word of a span; None if it covers none."""
    inside = [number for number, word in enumerate(words) if word.start >= span.start and word.end <= span.end]
    return (inside[0], inside[-1]) if inside else None
