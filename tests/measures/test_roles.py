"""Sieve bias scores against a naive loop over tokens, and the test of roles."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from measures.naive import Plain, bert_tokenizer, demo, maps, plain
from measures.toy import view_of
from scipy import stats
from torch import nn

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.role_rows import sieve_tests
from bertsecrets.measures.roles import Roles

RELATIONS = ("nsubj", "amod")


def entropy(row: list[float]) -> float:
    return -sum(weight * math.log(weight) for weight in row if weight > 0)


def naive(example: Plain, to: list[list[float]]) -> list[float]:
    """Local, syntactic, block, delimiter, first special, other specials, then each relation; NaN where there is no
    sieve.
    """
    size = len(example.tokens)
    special = [index for index in range(size) if example.sentences[index] is None]

    def bias(sieve_of: dict[int, list[int]]) -> float:
        scores = [np.mean([to[i][j] for j in sieve]) / np.mean(to[i]) for i, sieve in sieve_of.items() if sieve]
        return float(np.mean(scores)) if scores else math.nan

    local = bias({i: [j for j in range(size) if abs(i - j) <= 2] for i in range(size)})
    delimiters = [bias(dict.fromkeys(range(size), keys)) for keys in (special, special[:1], special[1:])]
    block = math.nan
    if 1 in example.sentences and 0 in example.sentences:
        block, separator = 0.0, special[1]
        for i in range(size):
            own = 0 if i < separator else 1
            mean = np.mean([to[i][j] for j in range(size) if example.sentences[j] == own])
            block += mean / np.mean(to[i]) * entropy(to[i]) / math.log(size) / size
    pairs: dict[str, list[float]] = {relation: [] for relation in RELATIONS}
    for sentence, annotation in enumerate(example.example.annotations):
        for number, word in enumerate(annotation.words):
            if word.relation in pairs and word.head >= 0:
                own, head = (
                    [index for index in range(size) if example.words[index] == (sentence, at)]
                    for at in (number, word.head)
                )
                if own and head:
                    forth, back = (np.mean([[to[i][j] for j in b] for i in a]) for a, b in ((own, head), (head, own)))
                    pairs[word.relation].append(float((forth + back) / 2 * size))
    together = [score for scores in pairs.values() for score in scores]
    syntactic, *single = (float(np.mean(scores)) if scores else math.nan for scores in (together, *pairs.values()))
    return [local, syntactic, block, *delimiters, *single]


@pytest.mark.parametrize(("name", "count"), [("demo_paraphrase", 3), ("demo_sentiment", 2)])
def test_every_score_equals_a_naive_loop(name: str, count: int) -> None:
    examples = demo(name, count)
    tokenizer = bert_tokenizer()
    split = EncodedSplit(examples, tokenizer, 64)
    batch = split[list(range(count))]
    attention = maps(batch, 2, seed=1)
    measure = Roles(1, 2, relations=RELATIONS)
    scores = measure.per_example(attention, batch, None)
    assert scores.shape == (count, 2, len(measure.columns))
    assert not scores[..., 1].isnan().all()
    for row, example in enumerate(examples):
        length = int(batch.lengths_B[row])
        for head in range(2):
            to = attention[row, head, :length, :length].tolist()
            expected = naive(plain(example, tokenizer, 64), to)
            assert scores[row, head].tolist() == pytest.approx(expected, abs=1e-10, nan_ok=True)


def test_examples_without_annotation_or_with_one_sentence_do_not_count_there() -> None:
    words = (Word("cats", 0, 4, "NOUN", -1, "root"),)
    examples = [Example(0, ("cats sleep",), None), Example(1, ("cats",), None, (Annotation(words),))]
    batch = EncodedSplit(examples, bert_tokenizer(), 16)[[0, 1]]
    measure = Roles(1, 1)
    names = [column.name for column in measure.columns]
    scores = measure.per_example(maps(batch, 1, seed=0), batch, None)
    for name in names:
        absent = name in ("block", "syntactic", *measure.relations)
        assert scores[..., names.index(name)].isnan().all() == absent


@pytest.mark.parametrize(("high", "passes"), [(1, False), (6, True)])
def test_roles_are_tested_against_the_threshold_with_correction(tmp_path: Path, high: int, passes: bool) -> None:
    """One score of 4.2 with an error of 0.5 would pass alone, but not as one of twelve; six of them pass."""
    measure = Roles(2, 3, relations=RELATIONS)
    measure.columns = measure.columns[:2]
    value_LHC = torch.ones(2, 3, 2, dtype=torch.float64)
    value_LHC.view(-1, 2)[:high, 0] = 4.2
    grid = HeadGrid("roles", measure.columns, value_LHC, torch.full_like(value_LHC, 0.5), torch.full((2, 3, 2), 20))
    alone = 1 - stats.t.cdf((4.2 - 3) / 0.5, 19)
    assert alone < 0.05 < alone * 12
    tests = sieve_tests(view_of(tmp_path, measure, grid, found=measure.findings(grid, nn.Identity())))
    assert (tests["local"].sum(), tests["syntactic"].any()) == (high * passes, False)
