"""Toy sentences for probes, and attention that gives their heads away."""

import random

import torch
from data.toy import wordpiece
from torch import Tensor

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.probes.attention_file import SPECIAL, AttentionFile
from bertsecrets.probes.sentences import Sentence, Sentences

FORMS = ("the", "cat", "dogs", "sees", "saw", "a", "man", "eats", "fish", "xylo9", "!")


def sentence(index: int, *words: tuple[str, int, str]) -> Example:
    """A sentence from its words, their heads (from 0, -1 for the root) and relations; an empty word has no token."""
    annotated, text = [], ""
    for form, head, relation in words:
        start = len(text)
        annotated.append(Word(form or "le", start, start + len(form), "X", head, relation))
        text += f"{form} " if form else ""
    return Example(index, (text,), None, (Annotation(tuple(annotated)),))


def random_sentences(count: int, seed: int = 0) -> list[Example]:
    """Random trees; a word's relation tells on which side its head is."""
    chance = random.Random(seed)
    examples = []
    for index in range(count):
        size = chance.randint(2, 7)
        order = chance.sample(range(size), size)
        head = {word: chance.choice(order[:position]) if position else -1 for position, word in enumerate(order)}
        words = []
        for word in range(size):
            relation = "root" if head[word] < 0 else "left" if head[word] < word else "right"
            words.append((chance.choice(FORMS[:-1]), head[word], relation))
        examples.append(sentence(index, *words))
    return examples


def sentences(examples: list[Example], punctuation: bool = False, seed: int = 0) -> Sentences:
    return Sentences.of(EncodedSplit(examples, wordpiece(), 64), punctuation=punctuation, seed=seed)


def telling_map(row: Sentence, channels: int, generator: torch.Generator) -> Tensor:
    """Random attention, but for the last two heads: words attend to their head, or [CLS], and heads to their
    dependents.

    The last but one tells heads on the left, the last one those on the right.
    """
    size = SPECIAL + len(row)
    map_nnC = 0.1 * torch.rand(size, size, channels, generator=generator)
    map_nnC[..., -2:] = 0.0
    for word, head in enumerate(row.head_W.tolist()):
        index, target = SPECIAL + word, SPECIAL + head - 1
        if not head:
            map_nnC[index, 0, -2:] = 0.9
        elif head - 1 < word:
            map_nnC[index, target, -2] = 0.9
        else:
            map_nnC[target, index, -1] = 0.9
    return map_nnC


def fill(file: AttentionFile, rows: tuple[Sentence, ...], seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for number, row in enumerate(rows):
        file.write(number, telling_map(row, file.channels, generator))
