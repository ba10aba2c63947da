"""Matching by spelling against a naive loop that works on strings alone, and against sentences worked by hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from data.toy import annotate
from measures.naive import Plain, bert_tokenizer, maps, plain

from bertsecrets.data.example import Annotation, Example
from bertsecrets.data.sources.conllu import read_conllu
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.measures.base import Passed
from bertsecrets.measures.linguistic.features import Features
from bertsecrets.measures.linguistic.matching import StringMatching
from bertsecrets.measures.linguistic.token_to_token import TokenToToken
from bertsecrets.measures.linguistic.word_features import Feature

CONF = Path(__file__).parents[2] / "conf"
SECTIONS = yaml.safe_load((CONF / "feature" / "kovaleva.yaml").read_text())
MEASURE = yaml.safe_load((CONF / "measure" / "token_to_token_kovaleva.yaml").read_text())
PAIRS = MEASURE["token_to_token_kovaleva"]["pairs"]

NEGATIONS = [
    "neither", "nor", "not", "never", "none", "don't", "won't", "didn't", "hadn't", "haven't", "can't", "isn't",
    "wasn't", "shouldn't", "couldn't", "nothing", "nowhere",
]  # fmt: skip
NOUNS, VERBS, PRONOUNS = {"NN", "NNP", "NNPS", "NNS"}, {"VB", "VBD", "VBG", "VBN", "VBP", "VBZ"}, {"PRP", "PRP$"}
SUBJECTS = {"nsubj", "nsubj:pass", "csubj", "csubj:pass", "agent", "expl"}
OBJECTS = {"obj", "iobj", "attr", "oprd"}


def found_words(example: Example, name: str) -> set[str]:
    words = [word for sentence in example.annotations for word in sentence.words]
    if name == "negation":
        return {negation for negation in NEGATIONS for text in example.texts if negation in text}
    tags = {"nouns": NOUNS, "verbs": VERBS, "pronouns": PRONOUNS}.get(name)
    if tags is not None:
        return {word.form for word in words if word.tag in tags}
    return {word.form for word in words if word.relation in (SUBJECTS if name == "subjects" else OBJECTS)}


def spelt_like(example: Plain, words: set[str]) -> list[int]:
    pieces = [piece for word in words for piece in bert_tokenizer().tokenize(word)]
    return [index for index, token in enumerate(example.tokens) if token in pieces]


def naive_positions(example: Plain, name: str) -> list[int]:
    if name == "cls":
        return [0]
    if name == "sep":
        return [index for index, token in enumerate(example.tokens) if token == "[SEP]"]
    return spelt_like(example, found_words(example.example, name))


def tagged(text: str, *words: tuple[str, str, int, str]) -> Annotation:
    """A sentence of (form, tag, head, relation)."""
    forms = annotate(text, *(form for form, *_ in words)).words
    return Annotation(
        tuple(
            replace(word, pos="VERB" if tag == "VB" else "X", head=head, relation=relation, tag=tag)
            for word, (_, tag, head, relation) in zip(forms, words, strict=True)
        )
    )


def hand_worked() -> Example:
    first, second = "I don't note normal dogs.", "Dogs can't win"
    dont = (("I", "PRP", 3, "nsubj"), ("do", "VBP", 3, "aux"), ("n't", "RB", 3, "neg"), ("note", "VB", -1, "root"))
    dogs = (("normal", "JJ", 5, "amod"), ("dogs", "NNS", 3, "obj"), (".", ".", 3, "punct"))
    cant = (("Dogs", "NNS", 3, "nsubj"), ("ca", "MD", 3, "aux"), ("n't", "RB", 3, "neg"), ("win", "VB", -1, "root"))
    return Example(0, (first, second), None, (tagged(first, *dont, *dogs), tagged(second, *cant)))


def test_the_sentences_worked_by_hand() -> None:
    example = hand_worked()
    split = EncodedSplit([example], bert_tokenizer(), 64)
    tokens = bert_tokenizer().convert_ids_to_tokens(split[[0]].input_ids_BS[0].tolist())
    #                  0       1    2      3    4    5       6         7       8    9        10      11     12   13   14
    assert tokens == ["[CLS]", "i", "don", "'", "t", "note", "normal", "dogs", ".", "[SEP]", "dogs", "can", "'", "t",
                      "win", "[SEP]"]  # fmt: skip
    features = {name: Feature.read(name, section) for name, section in SECTIONS.items()}
    matching = StringMatching(list(features.values()))
    matching.prepare(split)
    mask_BFS = matching.masks(split[[0]])
    result = {name: mask_BFS[0, index].nonzero()[:, 0].tolist() for index, name in enumerate(features)}
    assert result == {
        # Both sentences' dogs.
        "nouns": [7, 10],
        # "do" is a verb, but no token is spelt so; "ca" is a modal and no verb.
        "verbs": [5, 14],
        "pronouns": [1],
        "subjects": [1, 7, 10],
        # An object in the first sentence alone, yet the second sentence's "dogs" counts as well.
        "objects": [7, 10],
        # "don't" and "can't" with every apostrophe and every t; "nor" in "normal" and "not" in "note" are no token
        # here.
        "negation": [2, 3, 4, 11, 12, 13],
        "cls": [0],
        "sep": [9, 15],
    }


def real_examples(glue: Path, count: int = 60) -> list[Example]:
    treebank = glue.parent / "ud" / "UD_English-EWT" / "en_ewt-ud-dev.conllu"
    if not treebank.is_file():
        pytest.skip(f"{treebank.name} is not there")
    sentences = [each for each, _ in zip(read_conllu(treebank), range(2 * count), strict=False)]
    return [
        Example(index, (left[0], right[0]), None, (left[1], right[1]))
        for index, (left, right) in enumerate(zip(sentences[::2], sentences[1::2], strict=True))
    ]


def test_features_and_pairs_equal_a_naive_loop_on_a_real_treebank(glue: Path) -> None:
    examples = real_examples(glue)
    split = EncodedSplit(examples, bert_tokenizer(), 64)
    measures = (
        Features(1, 2, SECTIONS, matching="kovaleva", absent="kovaleva"),
        TokenToToken(1, 2, SECTIONS, PAIRS, matching="kovaleva", absent="kovaleva"),
    )
    for measure in measures:
        measure.prepare(split)
    expected: dict[str, list[list[float]]] = {}
    seen_without = set()
    for start in range(0, len(examples), 16):
        batch = split[list(range(start, min(start + 16, len(examples))))]
        attention_BHQK = maps(batch, 2, start)
        for measure in measures:
            measure.update(Passed(0, batch, attention_BHQK))
        for row in range(batch.size):
            example = plain(examples[start + row], bert_tokenizer(), 64)
            length = len(example.tokens)
            map_HQK = attention_BHQK[row, :, :length, :length].numpy()
            for name in SECTIONS:
                places = naive_positions(example, name)
                if places:
                    largest = [[max(weights[places]) for weights in (to.mean(0), to[0])] for to in map_HQK]
                    expected.setdefault(name, []).append([received for received, _ in largest])
                    expected.setdefault(f"cls_to_{name}", []).append([from_first for _, from_first in largest])
                else:
                    seen_without.add(name)
                    if name != "negation":
                        expected.setdefault(name, []).append([0.0, 0.0])
            linked = [
                (word.form, sentence.words[word.head].form)
                for sentence in example.example.annotations
                for word in sentence.words
                if word.relation == "nsubj" and sentence.words[word.head].pos == "VERB"
            ]
            subjects, verbs = (spelt_like(example, {pair[end] for pair in linked}) for end in (0, 1))
            for name, ends in (("subject_to_verb", (subjects, verbs)), ("verb_to_subject", (verbs, subjects))):
                pairs = [*zip(*ends)]  # noqa: B905
                numbers = [max((to[pair] for pair in pairs), default=0.0) for to in map_HQK]
                expected.setdefault(name, []).append(numbers)
    assert {"negation", "objects"} <= seen_without
    for name, values in expected.items():
        measure = measures[name not in SECTIONS]
        grid = measure.compute()
        assert grid.count_LHC[0, 0, grid.columns.index(name)] == len(values), name
        assert grid.column(name)[0].numpy() == pytest.approx(np.mean(values, axis=0), abs=1e-12), name


def test_offsets_and_spelling_differ_where_words_repeat() -> None:
    example = hand_worked()
    split = EncodedSplit([example], bert_tokenizer(), 64)
    attention_BHQK = maps(split[[0]], 1, 0)
    objects = {"objects": SECTIONS["objects"]}
    values = []
    for matching in ("offsets", "kovaleva"):
        measure = Features(1, 1, objects, matching=matching)
        measure.prepare(split)
        values.append(measure.per_example(attention_BHQK, split[[0]], None)[0, 0, 0].item())
    received = attention_BHQK[0, 0].mean(0)
    assert math.isclose(values[0], received[7].item(), rel_tol=1e-12)
    assert math.isclose(values[1], max(received[7].item(), received[10].item()), rel_tol=1e-12)
