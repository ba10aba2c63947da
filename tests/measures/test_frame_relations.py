"""Relation-specific heads: hand-worked sentences, a naive loop, and tests that distinguish relation, distance and
word.
"""

import itertools
import json
import os
from collections import Counter
from pathlib import Path

import families
import numpy as np
import pytest
import torch
from data.tasks import task
from hypothesis import given, settings
from hypothesis import strategies as st
from measures.naive import maps
from scipy import stats
from torch import Tensor

from bertsecrets.attention.watch import capture
from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Annotation, Frame, FrameElement, Word
from bertsecrets.data.framenet.source import read_published
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.measures.base import Passed
from bertsecrets.measures.frame_relations.links import (
    Exchange,
    Link,
    Moved,
    Placements,
    averages,
    drawn_placements,
    fixed_offsets,
    links_of,
    p_values,
    placements_within,
)
from bertsecrets.measures.frame_relations.measure import FrameRelations
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.models.loading import load_model, load_tokenizer
from bertsecrets.models.spec import ModelSpec


def annotation(words: int, *frames: Frame) -> Annotation:
    return Annotation(tuple(Word("w", 2 * i, 2 * i + 1, "X", -1, "root") for i in range(words)), frames)


def batch_of(*rows: tuple[list[int], list[int], tuple[Annotation, ...]]) -> Batch:
    """Examples given by token ids and word numbers (-1 for special tokens) and annotation, padded on the right."""
    size = max(len(ids) for ids, _, _ in rows)

    def padded(values: list[int], filler: int) -> list[int]:
        return values + [filler] * (size - len(values))

    ids_BS, mask_BS = (
        torch.tensor([padded(values, 0) for values in each])
        for each in ([ids for ids, _, _ in rows], [[1] * len(ids) for ids, _, _ in rows])
    )
    batch = families.batch_of({"input_ids": ids_BS, "attention_mask": mask_BS})
    batch.word_BS = torch.tensor([padded(words, -1) for _, words, _ in rows])
    batch.special_BS = (batch.word_BS < 0) & mask_BS.bool()
    batch.annotations = tuple(sentences for _, _, sentences in rows)
    return batch


def hand_worked() -> Batch:
    """[CLS] he was becoming agitated . [SEP], and [CLS] the ##o man saw the ##o boy run ##s [SEP].

    In the second, "the ##o boy" (words 3, 4) and "man" (word 1) are elements of "runs" (word 5, two pieces); its first
    two pieces stand earlier in the sentence as well.
    """
    simple = annotation(5, Frame("F", 3, (FrameElement("A", 0, 0),)))
    double = annotation(
        6, Frame("G", 5, (FrameElement("B", 3, 4), FrameElement("C", 1, 1), FrameElement("D", 2, 2, core=False)))
    )
    return batch_of(
        ([1, 10, 11, 12, 13, 14, 2], [-1, 0, 1, 2, 3, 4, -1], (simple,)),
        ([1, 20, 21, 22, 23, 20, 21, 24, 25, 26, 2], [-1, 0, 0, 1, 2, 3, 3, 4, 5, 5, -1], (double,)),
    )


PAIRS = {
    ("zip", "kovaleva"): [{(1, 4)}, {(1, 8), (2, 9)}],
    ("zip", "offsets"): [{(1, 4)}, {(5, 8), (6, 9)}],
    ("all", "kovaleva"): [{(1, 4)}, set(itertools.product((1, 2, 7, 3), (8, 9)))],
    ("all", "offsets"): [{(1, 4)}, set(itertools.product((5, 6, 7, 3), (8, 9)))],
}
"""Worked out by hand: the token pairs from element to target."""


@pytest.mark.parametrize("size", [(1, 2), (6, 12), (24, 16)])
def test_enough_drawings_decide_at_the_level_in_a_model_of_any_size(size: tuple[int, int]) -> None:
    heads = size[0] * size[1]
    measure = FrameRelations(*size)
    # A perfect head, among others of noise, is beyond every drawing; the corrected p-value is the smallest possible.
    noise_RN = np.random.default_rng(0).normal(size=(measure.permutations, heads))
    _, corrected_N = p_values(np.array([20.0, *[0.0] * (heads - 1)]), noise_RN, 1e-9)
    assert corrected_N[0] == 1 / (measure.permutations + 1)
    assert 0.05 * measure.permutations >= 200
    with pytest.warns(UserWarning, match="fewer than 20 drawings decide at the level 0.05"):
        FrameRelations(*size, permutations=398)


def test_corrected_p_values_equal_a_naive_loop() -> None:
    chance = np.random.default_rng(3)
    drawn_RN = chance.normal(size=(200, 6)) * [1, 5, 1, 0, 2, 1]
    observed_N = np.array([2.5, 3.0, -1.0, 0.0, 4.5, 1.0])
    raw_N, corrected_N = p_values(observed_N, drawn_RN, 1e-9)
    everything = [observed_N, *drawn_RN]
    mean_N, spread_N = np.mean(everything, 0), np.std(everything, 0)

    def standard(values_N: np.ndarray) -> list[float]:
        return [(v - m) / s if s else 0.0 for v, m, s in zip(values_N, mean_N, spread_N, strict=True)]

    observed = standard(observed_N)
    left, least = list(range(6)), 0.0
    while left:
        # Westfall and Young 1993, algorithm 4.1: the largest head, then the largest of the rest.
        head = max(left, key=lambda index: observed[index])
        reached = sum(max(standard(row)[index] for index in left) >= observed[head] - 1e-12 for row in drawn_RN)
        least = max(least, (1 + reached) / 201)
        assert corrected_N[head] == pytest.approx(least)
        assert raw_N[head] == pytest.approx((1 + (drawn_RN[:, head] >= observed_N[head]).sum()) / 201)
        left.remove(head)


@pytest.mark.parametrize(("pairs", "matching"), PAIRS)
@pytest.mark.parametrize("direction", ["element_to_target", "target_to_element", "both"])
def test_pairs_are_those_worked_out_by_hand(pairs: str, matching: str, direction: str) -> None:
    links = links_of(hand_worked(), pairs, direction, matching)
    for link, expected in zip(links, PAIRS[pairs, matching], strict=True):
        turned = {(key, query) for query, key in expected}
        wanted = {"element_to_target": expected, "target_to_element": turned, "both": expected | turned}[direction]
        assert set(link.pairs) == wanted
        assert len(link.pairs) == len(wanted)
    assert [link.words for link in links] == [range(1, 6), range(1, 10)]


def test_the_papers_example_with_every_weight() -> None:
    """The row of "he" as methods K3 prints it for head 1-2; the link is he -> agitated."""
    row_K = torch.tensor([0.02, 0.01, 0.05, 0.32, 0.46, 0.02, 0.12])
    attention_BHQK = torch.zeros(1, 1, 7, 7)
    attention_BHQK[0, 0, 1] = row_K
    # was -> "." is the only other place at the same distance; "was", "becoming" and "." also attend to "agitated".
    attention_BHQK[0, 0, 2, 5] = 0.10
    attention_BHQK[0, 0, [2, 3, 5], 4] = torch.tensor([0.30, 0.20, 0.04])
    batch = batch_of(([1, 10, 11, 12, 13, 14, 2], [-1, 0, 1, 2, 3, 4, -1], hand_worked().annotations[0]))
    measure = FrameRelations(1, 1, permutations=4000)
    measure.update(Passed(0, batch, attention_BHQK))
    grid = measure.compute()
    value = dict(zip(grid.columns, grid.value_LHC[0, 0].tolist(), strict=True))
    assert value["weight"] == pytest.approx(0.46)
    assert value["position"] == pytest.approx(0.10)
    assert value["received"] == pytest.approx((0.30 + 0.20 + 0.04) / 3)
    assert value["over_position"] == pytest.approx(0.36)
    assert value["uniform"] == pytest.approx(1 / 7)
    # Drawn: one of two places, and one of four; the link's own is the only one that reaches 0.46.
    assert value["p_position"] == pytest.approx(1 / 2, abs=0.03)
    assert value["p_received"] == pytest.approx(1 / 4, abs=0.03)


def random_batch(seed: int, rows: int = 4) -> Batch:
    """Sentences of one to three pieces a word, with one or two frames; every third example has two sentences."""
    chance = np.random.default_rng(seed)
    built = []
    for row in range(rows):
        ids, numbers, sentences, word = [1], [-1], [], 0
        for _ in range(2 if row % 3 == 2 else 1):
            words = int(chance.integers(3, 8))
            for _ in range(words):
                pieces = int(chance.integers(1, 4))
                ids += [int(number) for number in chance.integers(5, 12, pieces)]
                numbers += [word] * pieces
                word += 1
            ids, numbers = [*ids, 2], [*numbers, -1]
            frames = []
            for _ in range(int(chance.integers(0, 3))):
                target = int(chance.integers(words))
                first = int(chance.integers(words))
                element = FrameElement("E", first, min(first + 1, words - 1))
                frames.append(Frame("F", target, (element,), target_last=min(target + 1, words - 1)))
            sentences.append(annotation(words, *frames))
        built.append((ids, numbers, tuple(sentences)))
    return batch_of(*built)


def naive(map_QK: np.ndarray, batch: Batch, row: int, pairs: str, matching: str) -> list[float] | None:
    """weight, position, received of one example, from element to target, by loops over strings of ids."""
    ids, words = batch.input_ids_BS[row].tolist(), batch.word_BS[row].tolist()
    numbers, offset = [], 0
    for sentence in batch.annotations[row]:
        for frame in sentence.frames:
            source = [
                p
                for e in frame.elements
                for w in range(e.first, e.last + 1)
                for p, n in enumerate(words)
                if n == offset + w
            ]
            target = [
                p for w in range(frame.target, frame.target_last + 1) for p, n in enumerate(words) if n == offset + w
            ]
            if matching == "kovaleva":
                source, target = [ids.index(ids[p]) for p in source], [ids.index(ids[p]) for p in target]
            chosen = list(zip(source, target, strict=False) if pairs == "zip" else itertools.product(source, target))
            chosen = [(q, k) for q, k in chosen if q != k]
            if not chosen:
                continue
            breaks = [p for p, n in enumerate(words) if n < 0]
            low = max(p for p in breaks if p < chosen[0][0])
            high = min([p for p in breaks if p > chosen[0][0]], default=len(words))
            together, attending = [], []
            for shift in range(-len(words), len(words)):
                moved = [(q + shift, k + shift) for q, k in chosen]
                if shift and all(low < p < high for pair in moved for p in pair):
                    together.append(max(map_QK[pair] for pair in moved))
                turned = [(q + shift, k) for q, k in chosen]
                if shift and all(low < q < high and q != k for q, k in turned):
                    attending.append(max(map_QK[pair] for pair in turned))
            own = max(map_QK[pair] for pair in chosen)
            numbers.append([own, *(np.mean(each) if each else np.nan for each in (together, attending))])
        offset += len(sentence.words)
    if not numbers:
        return None
    table = np.array(numbers)
    return [np.nan if np.isnan(column).all() else float(np.nanmean(column)) for column in table.T]


@given(st.integers(0, 10_000), st.sampled_from(["all", "zip"]), st.sampled_from(["offsets", "kovaleva"]))
@settings(max_examples=25, deadline=None)
def test_the_measure_equals_a_naive_loop(seed: int, pairs: str, matching: str) -> None:
    batch = random_batch(seed)
    if matching == "kovaleva":
        # The first equal token may stand in the other sentence; the naive loop looks within one.
        batch.annotations = tuple(sentences if len(sentences) == 1 else () for sentences in batch.annotations)
    attention_BHQK = maps(batch, 2, seed)
    measure = FrameRelations(1, 2, pairs=pairs, matching=matching, permutations=3)
    values_BHC = measure.per_example(attention_BHQK, batch, None)
    for row, head in itertools.product(range(batch.size), range(2)):
        expected = naive(attention_BHQK[row, head].numpy(), batch, row, pairs, matching)
        result = values_BHC[row, head, :3].tolist()
        assert result == pytest.approx(expected or [np.nan] * 3, abs=1e-12, nan_ok=True)


def sentences(count: int, length: int = 9) -> Batch:
    """Sentences of one-piece words with one link each, at varied places at least three tokens apart."""
    chance = np.random.default_rng(7)
    rows = []
    for _ in range(count):
        element, target = (0, 0)
        while abs(element - target) < 3:
            element, target = map(int, chance.integers(0, length, 2))
        frames = annotation(length, Frame("F", target, (FrameElement("A", element, element),)))
        rows.append(([1, *range(5, 5 + length), 2], [-1, *range(length), -1], (frames,)))
    return batch_of(*rows)


class Sentences:
    """The batch as the examples of a split, for ``prepare``."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return self.batch.size

    def __getitem__(self, positions: list[int]) -> Batch:
        return self.batch.rows(torch.tensor(positions))


def prepared(measure: FrameRelations, batch: Batch) -> FrameRelations:
    measure.prepare(Sentences(batch))
    return measure


def columns_of(attention_BHQK: Tensor, batch: Batch, permutations: int) -> dict[str, np.ndarray]:
    measure = prepared(FrameRelations(1, attention_BHQK.shape[1], permutations=permutations), batch)
    measure.update(Passed(0, batch, attention_BHQK))
    grid = measure.compute()
    return {column: grid.column(column)[0].numpy() for column in grid.columns}


def exchange_of(batch: Batch, permutations: int = 50, seed: int = 2) -> tuple[Exchange, list[Link], list[int]]:
    links = links_of(batch, "all", "element_to_target", "offsets")
    indices = [int(batch.index_B[link.row]) for link in links]
    return Exchange(zip(indices, links, strict=True), permutations, seed), links, indices


def test_links_exchange_places_with_those_of_equally_long_sentences() -> None:
    lengths = [5, 6, 5, 7, 5, 6]
    frames = [
        Frame("F", length - 1, (FrameElement("A", position % 3, position % 3),))
        for position, length in enumerate(lengths)
    ]
    batch = batch_of(
        *(
            ([1, *range(5, 5 + length), 2], [-1, *range(length), -1], (annotation(length, frame),))
            for length, frame in zip(lengths, frames, strict=True)
        )
    )
    batch.index_B = torch.tensor([4, 0, 17, 3, 5, 9])
    exchange, links, indices = exchange_of(batch)
    own = [(position % 3 + 1, length) for position, length in enumerate(lengths)]
    assert [link.pairs for link in links] == [(pair,) for pair in own]
    partners = [[2, 4], [5], [0, 4], [], [0, 2], [1]]
    for index, link, expected in zip(indices, links, partners, strict=True):
        assert sorted(exchange.others(index, link)) == sorted((own[position],) for position in expected)


def test_a_drawing_gives_each_place_of_a_block_once() -> None:
    batch = sentences(80)
    exchange, links, indices = exchange_of(batch, permutations=200)
    assert sorted(map(len, exchange.blocks)) == [26, 27, 27]
    drawn_NR = exchange.drawn(indices, links)
    for block in range(3):
        members = [position for position, index in enumerate(indices) if exchange.member_of[index, 0][0] == block]
        own = Counter(links[position].pairs for position in members)
        for drawing in range(200):
            taken = [
                [links[position].pairs, *exchange.others(indices[position], links[position])][
                    drawn_NR[position, drawing]
                ]
                for position in members
            ]
            assert Counter(taken) == own
    # Every place is drawn as often as the others.
    counts = torch.stack([torch.bincount(row, minlength=27)[:26] for row in drawn_NR]).sum(0).double()
    assert stats.chisquare(counts.numpy()).pvalue > 0.001
    again, _, _ = exchange_of(batch, permutations=200)
    assert torch.equal(again.drawn(indices[::-1], links[::-1]), drawn_NR.flip(0))


def test_two_links_of_one_sentence_never_exchange_places() -> None:
    frames = (Frame("F", 0, (FrameElement("A", 2, 2),)), Frame("G", 3, (FrameElement("A", 1, 1),)))
    rows = [([1, 5, 6, 7, 8, 2], [-1, 0, 1, 2, 3, -1], (annotation(4, *frames[:n]),)) for n in (2, 1)]
    exchange, links, indices = exchange_of(batch_of(*rows))
    first, second, other = links
    assert (first.pairs, second.pairs, other.pairs) == (((3, 1),), ((2, 4),), ((3, 1),))
    taken = [exchange.others(index, link) for index, link in zip(indices, links, strict=True)]
    assert sorted(map(len, taken)) == [0, 1, 1]
    assert second.pairs not in taken[0]
    assert first.pairs not in taken[1]


def test_p_values_of_exchanged_places_are_those_of_all_permutations() -> None:
    batch = sentences(4, length=6)
    attention_BHQK = maps(batch, 2, 3)
    result = columns_of(attention_BHQK, batch, permutations=40_000)
    query_P, key_P = zip(
        *(link.pairs[0] for link in links_of(batch, "all", "element_to_target", "offsets")), strict=True
    )
    for head in range(2):
        weight_PP = attention_BHQK[:, head, query_P, key_P]
        sums = [
            sum(weight_PP[row, index].item() for row, index in enumerate(order))
            for order in itertools.permutations(range(4))
        ]
        assert result["p_other_links"][head] == pytest.approx(np.mean(np.array(sums) >= sums[0] - 1e-9), abs=0.012)
        others = [weight_PP[row, index].item() for row in range(4) for index in range(4) if index != row]
        assert result["other_links"][head] == pytest.approx(np.mean(others))


def test_a_head_that_goes_by_absolute_position_beats_only_the_nulls_within_a_sentence() -> None:
    """Elements stand early and targets late: early tokens attend to late ones, whatever the words."""
    chance = np.random.default_rng(4)
    rows = []
    for _ in range(60):
        frame = Frame("F", int(chance.integers(6, 9)), (FrameElement("A", *[int(chance.integers(0, 3))] * 2),))
        rows.append(([1, *range(5, 14), 2], [-1, *range(9), -1], (annotation(9, frame),)))
    batch = batch_of(*rows)
    size = batch.input_ids_BS.shape[1]
    noise_BHQK = torch.rand(60, 2, size, size, generator=torch.Generator().manual_seed(1)).double() / 50
    maps_BHQK = noise_BHQK.clone()
    maps_BHQK[:, 0, 1:4, 7:10] += 0.5
    maps_BHQK[:, 1, 1:4, 7:10] += 0.5
    for link in links_of(batch, "all", "element_to_target", "offsets"):
        ((query, key),) = link.pairs
        maps_BHQK[link.row, 1, query, key] += 0.2
    result = columns_of(maps_BHQK, batch, permutations=2000)
    for name in ("position", "received"):
        assert (result[f"p_{name}_corrected"] < 0.05).all()
    assert result["p_other_links"][0] > 0.05
    assert result["p_other_links_corrected"][1] < 0.05
    assert result["over_other_links"][1] == pytest.approx(0.2, abs=0.07)


def test_a_link_without_an_equally_long_sentence_is_left_out() -> None:
    batch = sentences(1)
    result = columns_of(maps(batch, 2, 0), batch, permutations=500)
    assert np.isnan(result["other_links"]).all()
    assert np.isnan(result["over_other_links"]).all()
    assert (result["p_other_links"] == 1).all()
    assert (result["p_other_links_corrected"] == 1).all()


def test_relation_distance_and_word_are_distinguished() -> None:
    batch = sentences(40)
    size = batch.input_ids_BS.shape[1]
    links = links_of(batch, "all", "element_to_target", "offsets")
    chance = torch.Generator().manual_seed(0)
    noise_BQK = torch.rand(40, size, size, generator=chance).double() / 100
    by_distance_D = torch.rand(2 * size, generator=chance).double()
    index_S = torch.arange(size)
    diagonal_QK = by_distance_D[index_S[None] - index_S[:, None] + size]
    word_BQK, relation_BQK = noise_BQK.clone(), noise_BQK.clone()
    for link in links:
        ((query, key),) = link.pairs
        word_BQK[link.row, :, key] = 0.5
        relation_BQK[link.row, query, key] += 0.3
    maps_BHQK = torch.stack([diagonal_QK.expand(40, size, size), word_BQK, relation_BQK, noise_BQK], 1)
    result = columns_of(maps_BHQK, batch, permutations=2000)
    least = 1 / 2001
    # A head of fixed weights by distance gives every place of a link what it gives the link: no drawing is worse.
    assert result["p_position"][0] == 1.0
    assert result["over_position"][0] == pytest.approx(0, abs=1e-12)
    assert result["p_received"][1] == 1.0
    assert result["p_position"][1] == pytest.approx(least)
    assert result["p_position"][2] == result["p_received"][2] == pytest.approx(least)
    assert min(result["p_position"][3], result["p_received"][3]) > 0.01
    assert result["p_position_corrected"][2] == result["p_other_links_corrected"][2] == pytest.approx(least)
    # Links stand anywhere here: by distance alone a head reaches no more than by chance.
    assert min(result["p_other_links"][[0, 3]]) > 0.01


@pytest.mark.parametrize("moved", ["together", "attending"])
def test_drawings_equal_a_naive_loop(moved: Moved) -> None:
    batch = random_batch(8, rows=6)
    batch.index_B = torch.tensor([4, 0, 17, 3, 5, 9])
    links = links_of(batch, "all", "element_to_target", "offsets")
    assert max(Counter(link.row for link in links).values()) > 1
    attention_BHQK = maps(batch, 2, 8)
    places = Placements.of(links, [placements_within(link, moved) for link in links])
    drawn_NR = drawn_placements(links, places, batch.index_B, 30, seed=2)
    found_RH = averages(links, places, drawn_NR) @ places.weights(attention_BHQK)

    def at(link: Link, shift: int) -> list[tuple[int, int]]:
        return [(query + shift, key + shift * (moved == "together")) for query, key in link.pairs]

    def fits(link: Link, shift: int) -> bool:
        tokens = {index for pair in at(link, shift) for index in (pair if moved == "together" else pair[:1])}
        return tokens <= set(link.words) and all(query != key for query, key in at(link, shift))

    expected_RH = np.zeros((30, 2))
    for row in {link.row for link in links}:
        generator = torch.Generator().manual_seed((2 << 32) + int(batch.index_B[row]))
        own = [link for link in links if link.row == row]
        for link in own:
            # Its own place is number 0.
            shifts = [0, *(shift for shift in range(-30, 30) if shift and fits(link, shift))]
            for number, drawn in enumerate(torch.randint(len(shifts), (30,), generator=generator).tolist()):
                for head in range(2):
                    weights = [attention_BHQK[row, head, query, key].item() for query, key in at(link, shifts[drawn])]
                    expected_RH[number, head] += max(weights) / len(own)
    assert np.allclose(found_RH.numpy(), expected_RH, atol=1e-12)


def test_p_values_of_heads_without_a_relation_are_uniform() -> None:
    batch = sentences(25)
    result = columns_of(maps(batch, 300, 11), batch, permutations=400)
    for column in ("p_position", "p_received", "p_other_links"):
        assert stats.kstest(result[column], "uniform").pvalue > 0.001


def test_examples_without_a_link_count_nowhere() -> None:
    batch = batch_of(([1, 5, 6, 2], [-1, 0, 1, -1], (annotation(2),)))
    measure = FrameRelations(1, 2, permutations=10)
    measure.update(Passed(0, batch, maps(batch, 2, 0)))
    grid = measure.compute()
    assert not grid.count_LHC.any()
    assert grid.value_LHC.isnan().all()


def test_fixed_offsets_count_links_once() -> None:
    links = links_of(hand_worked(), "all", "element_to_target", "offsets")
    # From (5, 6, 7, 3) to (8, 9): 3 4, 2 3, 1 2, 5 6; and from 1 to 4: 3.
    assert fixed_offsets(links) == {1: 1, 2: 1, 3: 2, 4: 1, 5: 1, 6: 1}


@pytest.mark.hub
def test_figure_3_of_the_paper(glue: Path) -> None:
    """methods K3, with weights from the hub or from the folder that BERTSECRETS_BERT_BASE names."""
    shared = glue.parent
    spec = ModelSpec(name="bert_base", path=os.environ.get("BERTSECRETS_BERT_BASE", "bert-base-uncased"))
    try:
        tokenizer, model = load_tokenizer(spec), load_model(spec, task("sst2"), "pretrained", seed=0)
    except UserError as error:
        pytest.skip(f"bert-base-uncased cannot be had here: {error}")
    examples = read_published(shared / "framenet" / "kovaleva_473.txt")
    encoded = EncodedSplit(examples, tokenizer, 128)
    batches = [encoded[range(start, min(start + 64, 473))] for start in range(0, 473, 64)]
    measure = FrameRelations(12, 12, pairs="zip", matching="kovaleva", permutations=1)
    (grid,) = measure_pass(model, [measure], batches)
    weight_LH = grid.column("weight").numpy()
    highest = [divmod(int(index), 12) for index in np.argsort(-weight_LH, axis=None)[:2]]
    # The paper's 7-6 and 1-2.
    assert highest == [(6, 5), (0, 1)]
    assert weight_LH[6, 5] == pytest.approx(0.209, abs=0.005)
    assert weight_LH[0, 1] == pytest.approx(0.201, abs=0.005)
    figure = np.array(json.loads((shared / "reference_values" / "fig3_framenet.json").read_text()))
    assert np.abs(weight_LH - figure).mean() < 0.005

    (agitated,) = (
        number for number, each in enumerate(examples) if each.texts[0].startswith("He was becoming agitated")
    )
    (map_LHQK,) = capture(model, encoded[[agitated]].inputs())
    assert map_LHQK[0, 1, 1].tolist() == pytest.approx([0.02, 0.01, 0.05, 0.32, 0.46, 0.02, 0.12], abs=0.01)
    assert map_LHQK[6, 5, 1].tolist() == pytest.approx([0.00, 0.01, 0.01, 0.06, 0.87, 0.00, 0.06], abs=0.01)
