"""Shares of largest weights against a naive loop over tokens, and the roles they give."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from measures.naive import bert_tokenizer, demo, maps, plain
from measures.toy import view_of
from torch import nn

from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Passed
from bertsecrets.measures.role_rows import Distance, Limits, judged_relations, voita_roles
from bertsecrets.measures.voita_roles import VoitaRoles

RELATIONS = ("nsubj", "amod")
FREQUENT = 12


def naive(example: Example, counts: Counter[str], to: list[list[float]]) -> dict[str, list[bool]]:
    """For each column whether each token or pair hits."""
    known = plain(example, bert_tokenizer(), 64)
    size = len(known.tokens)
    special = [index for index in range(size) if known.sentences[index] is None]
    ends = special[1:]
    words = [index for index in range(size) if index not in special]
    most = [max((j for j in range(size) if j not in ends), key=lambda j, i=i: to[i][j]) for i in range(size)]
    hits: dict[str, list[bool]] = {
        "previous": [most[i] == i - 1 for i in words if i - 1 not in ends],
        "next": [most[i] == i + 1 for i in words if i + 1 not in ends],
    }
    for relation in RELATIONS:
        forth, back = [], []
        for sentence, annotation in enumerate(example.annotations):
            tokens = [[p for p in range(size) if known.words[p] == (sentence, n)] for n in range(len(annotation.words))]

            def most_of(number: int, tokens: list[list[int]] = tokens) -> int:
                weights = [np.mean([sum(to[i][j] for j in keys) for i in tokens[number]]) for keys in tokens]
                return int(np.argmax(weights))

            for number, word in enumerate(annotation.words):
                if word.relation == relation and word.head >= 0:
                    forth.append(most_of(number) == word.head)
                    back.append(most_of(word.head) == number)
        hits[relation], hits[relation + "_from_head"] = forth, back
    ordered = sorted(counts[known.tokens[index]] for index in words)
    frequent = {token for token, _ in counts.most_common(FREQUENT)}
    rarest = [index for index in words if counts[known.tokens[index]] == ordered[0]]
    if all(known.tokens[index] in frequent for index in rarest):
        hits["rarest"], hits["two_rarest"] = [], []
    else:
        two = [index for index in words if counts[known.tokens[index]] <= ordered[1]]
        hits["rarest"], hits["two_rarest"] = [most[i] in rarest for i in words], [most[i] in two for i in words]
    return hits


def test_every_share_equals_a_naive_loop() -> None:
    examples, tokenizer = demo("demo_paraphrase", 8), bert_tokenizer()
    split = EncodedSplit(examples, tokenizer, 64)
    counts: Counter[str] = Counter()
    for example in examples:
        known = plain(example, tokenizer, 64)
        counts.update(t for t, sentence in zip(known.tokens, known.sentences, strict=True) if sentence is not None)
    measure = VoitaRoles(1, 2, relations=RELATIONS, frequent=FREQUENT)
    measure.prepare(split)
    expected: list[dict[str, list[list[bool]]]] = [{}, {}]
    for part in ([0, 3, 5], [1, 2, 4, 6, 7]):
        batch = split[part]
        attention = maps(batch, 2, seed=part[0], sharpness=3.0)
        measure.update(Passed(0, batch, attention))
        for row, index in enumerate(part):
            length = int(batch.lengths_B[row])
            for head in range(2):
                to = attention[row, head, :length, :length].tolist()
                for name, hits in naive(examples[index], counts, to).items():
                    expected[head].setdefault(name, []).append(hits)
    grid = measure.compute()
    assert list(grid.columns) == [
        "previous", "next", "nsubj", "amod", "nsubj_from_head", "amod_from_head", "rarest", "two_rarest"
    ]  # fmt: skip
    for head in range(2):
        for position, name in enumerate(grid.columns):
            texts = [hits for hits in expected[head][name] if hits]
            things, successes = np.array([len(hits) for hits in texts]), np.array([sum(hits) for hits in texts])
            share = successes.sum() / things.sum()
            assert grid.value_LHC[0, head, position].item() == pytest.approx(share), name
            assert grid.count_LHC[0, head, position] == len(texts)
            error = math.sqrt(((successes - share * things) ** 2).sum() * len(texts) / (len(texts) - 1)) / things.sum()
            assert grid.stderr_LHC[0, head, position].item() == pytest.approx(error, rel=1e-6), name
    assert grid.column("rarest").isfinite().all()


def test_texts_without_annotation_have_no_syntactic_role() -> None:
    split = EncodedSplit(
        [Example(0, ("the cat sat on a mat",), None), Example(1, ("dogs",), None)], bert_tokenizer(), 16
    )
    measure = VoitaRoles(1, 1, frequent=1)
    measure.prepare(split)
    batch = split[[0, 1]]
    measure.update(Passed(0, batch, maps(batch, 1, seed=0)))
    grid = measure.compute()
    assert grid.column("nsubj").isnan().all()
    assert grid.column("previous").isfinite().all()
    assert measure.findings(grid, nn.Identity()) == [measure.limits]


def test_a_head_that_always_attends_to_the_token_before_is_positional(tmp_path: Path) -> None:
    split = EncodedSplit(demo("demo_paraphrase", 8), bert_tokenizer(), 64)
    measure = VoitaRoles(1, 3, relations=RELATIONS, min_count=1, frequent=FREQUENT)
    measure.prepare(split)
    batch = split[list(range(8))]
    size = batch.input_ids_BS.shape[1]
    shape = (8, 1, size, size)
    previous = torch.diag(torch.ones(size - 1), -1).double().expand(shape)
    first = torch.zeros(shape).double()
    first[..., 0] = 1.0
    # Each dependent's first head word by distance: an oracle of nsubj.
    oracle = torch.zeros(shape).double()
    for row, example in enumerate(demo("demo_paraphrase", 8)):
        offset = 0
        for sentence in example.annotations:
            for number, word in enumerate(sentence.words):
                if word.relation == "nsubj":
                    own, head = (batch.word_BS[row] == offset + at for at in (number, word.head))
                    oracle[row, 0][own[:, None] & head[None]] = 1.0
            offset += len(sentence.words)
    measure.update(Passed(0, batch, torch.cat((previous, first, oracle), 1)))
    grid = measure.compute()
    assert grid.column("previous")[0].tolist()[:1] == [1.0]
    assert grid.column("nsubj")[0, 2] == 1.0
    roles = voita_roles(view_of(tmp_path, measure, grid, found=measure.findings(grid, nn.Identity())))
    assert roles["positional"].tolist() == [[True, False, False]]
    assert roles["syntactic"][0, 2]
    assert not roles["rare words"].any()


@pytest.mark.parametrize(
    ("pairs", "judged"), [(99, {}), (100, {"nsubj": 0.2, "nsubj_from_head": 0.2})], ids=["few pairs", "enough"]
)
def test_a_relation_with_few_pairs_or_that_was_not_measured_is_not_judged(
    tmp_path: Path, pairs: int, judged: dict[str, float]
) -> None:
    measure = VoitaRoles(1, 1, relations=["nsubj"])
    value_LHC = torch.ones((1, 1, 6), dtype=torch.float64)
    grid = HeadGrid(measure.name, measure.columns, value_LHC, value_LHC / 10, torch.full((1, 1, 6), 9))
    apart = [Distance(name, distance, count) for name in ("nsubj", "obj") for distance, count in enumerate([20] * 4)]
    found = [Limits(0.9, 0.1, 0.5, 100), *apart, *(Distance(name, 9, pairs - 80) for name in ("nsubj", "obj"))]
    view = view_of(tmp_path, measure, grid, found=found)
    assert judged_relations(view) == judged
    assert list(voita_roles(view)) == ["positional", *(["syntactic"] if judged else []), "rare words"]
