"""Attention to linguistic features against a naive loop and hand-worked sentences."""

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from data.tasks import task
from data.toy import wordpiece
from families import batch_of
from hypothesis import given, settings
from hypothesis import strategies as st
from measures.naive import maps

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.sources.demo import DemoSource
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.measures.base import Feed, Need, Passed
from bertsecrets.measures.linguistic.baselines import RandomWords, chance_of_rank
from bertsecrets.measures.linguistic.features import Features
from bertsecrets.measures.linguistic.matching import OffsetMatching
from bertsecrets.measures.linguistic.word_features import features_from_config
from bertsecrets.measures.one_pass import check_needs

CONF = Path(__file__).parents[2] / "conf"

ALL = {
    "nouns": {"pos": ["NOUN"]},
    "subjects": {"relation": ["nsubj"]},
    "not": {"lexicon": ["Not"]},
    "negation": {"negation": True},
    "shared": {"shared": True, "pos": ["NOUN", "VERB"]},
    "cls": {"special": "first"},
    "sep": {"special": "separator"},
    "sep_total": {"special": "separator", "pool": "sum"},
}


def hand_worked() -> Batch:
    """[CLS] the dog ##s do not see [SEP] Dogs [SEP] and, shorter, [CLS] they see [SEP] + padding."""
    first = (
        Word("the", 0, 3, "DET", 1, "det"),
        Word("dogs", 4, 8, "NOUN", 4, "nsubj"),
        Word("do", 9, 11, "AUX", 4, "aux"),
        Word("not", 12, 15, "PART", 4, "advmod", negation=True),
        Word("see", 16, 19, "VERB", -1, "root"),
    )
    second = (Word("Dogs", 0, 4, "NOUN", -1, "root"),)
    short = (Word("they", 0, 4, "PRON", 1, "nsubj"), Word("see", 5, 8, "VERB", -1, "root"))
    mask_BS = torch.tensor([[1] * 10, [1] * 4 + [0] * 6])
    batch = batch_of({"input_ids": torch.zeros_like(mask_BS), "attention_mask": mask_BS})
    batch.word_BS = torch.tensor([[-1, 0, 1, 1, 2, 3, 4, -1, 5, -1], [-1, 0, 1, -1, -1, -1, -1, -1, -1, -1]])
    batch.special_BS[0, [0, 7, 9]] = True
    batch.special_BS[1, [0, 3]] = True
    batch.annotations = ((Annotation(first), Annotation(second)), (Annotation(short),))
    return batch


def positions(row: int) -> dict[str, list[int]]:
    """Where the features of the hand-worked batch stand, read off by eye."""
    nouns, subjects, negation = (([2, 3, 8], []), ([2, 3], [1]), ([5], []))
    separators = ([7, 9], [3])
    both = {"nouns": nouns, "subjects": subjects, "not": negation, "negation": negation, "shared": nouns}
    both |= {"cls": ([0], [0]), "sep": separators, "sep_total": separators}
    return {name: places[row] for name, places in both.items()}


def units(row: int, name: str) -> list[list[int]]:
    """The words of the hand-worked batch, as tokens, in which a feature may stand; for special tokens, all tokens."""
    if name in ("cls", "sep", "sep_total"):
        return [[token] for token in range((10, 4)[row])]
    words = hand_worked().word_BS[row].tolist()
    return [[token for token, word in enumerate(words) if word == number] for number in sorted({*words} - {-1})]


def mean_over_all_choices(received: np.ndarray, row: int, name: str) -> float:
    """The pooled number, averaged over every choice of as many words as have the feature."""
    pool = sum if name == "sep_total" else max
    having = [unit for unit in units(row, name) if set(unit) & set(positions(row)[name])]
    values = [pool(received[token] for token in unit) for unit in units(row, name)]
    return float(np.mean([pool(chosen) for chosen in itertools.combinations(values, len(having))]))


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_measure_equals_a_naive_loop(seed: int) -> None:
    batch = hand_worked()
    attention_BHQK = maps(batch, 3, seed)
    for absent in ("exclude", "kovaleva"):
        measure = Features(1, 3, ALL, absent=absent)
        measure.update(Passed(0, batch, attention_BHQK))
        grid = measure.compute()
        for head in range(3):
            for name in ALL:
                values, uniform, random = [], [], []
                for row, length in enumerate((10, 4)):
                    received = attention_BHQK[row, head, :length, :length].numpy().mean(axis=0)
                    tokens = positions(row)[name]
                    if tokens:
                        pool = sum if name == "sep_total" else max
                        values.append(pool(received[position] for position in tokens))
                        uniform.append(pool(1 / length for _ in tokens))
                        random.append(mean_over_all_choices(received, row, name))
                    elif absent == "kovaleva" and name != "negation":
                        values.append(0.0)
                        uniform.append(0.0)
                        random.append(0.0)
                over = [value - level for value, level in zip(values, random, strict=True)]
                for column, expected in (
                    (name, values),
                    (f"{name}_uniform", uniform),
                    (f"{name}_random", random),
                    (f"{name}_over_random", over),
                ):
                    assert grid.column(column)[0, head].item() == pytest.approx(np.mean(expected), abs=1e-12)
                    assert grid.count_LHC[0, head, grid.columns.index(column)].item() == len(expected)


@given(st.integers(1, 9), st.data())
@settings(max_examples=40, deadline=None)
def test_the_chance_of_each_rank_is_that_of_all_choices(size: int, data: st.DataObject) -> None:
    drawn = data.draw(st.integers(1, size))
    ranks = [min(chosen) for chosen in itertools.combinations(range(size), drawn)]
    expected = [ranks.count(rank) / len(ranks) for rank in range(12)]
    chance_BFR = chance_of_rank(torch.tensor([size]), torch.tensor([[drawn, 0]]), 12)
    assert chance_BFR[0, 0].tolist() == pytest.approx(expected, abs=1e-12)
    assert not chance_BFR[0, 1].any()


def test_matching_by_spelling_draws_tokens_not_words() -> None:
    batch = hand_worked()
    features = list(features_from_config({"nouns": ALL["nouns"]}).values())
    mask_BFS = torch.zeros(2, 1, 10, dtype=torch.bool)
    mask_BFS[0, 0, [2, 5]] = True
    received = torch.rand(2, 1, 10, dtype=torch.float64)
    result = RandomWords(features, mask_BFS, batch, by_token=True).expected(received)
    text = [token for token in range(10) if not batch.special_BS[0, token]]
    pairs = itertools.combinations(received[0, 0, text].tolist(), 2)
    assert result[0, 0, 0].item() == pytest.approx(np.mean([max(pair) for pair in pairs]))
    assert result[1, 0, 0].isnan()


def test_an_example_without_annotation_has_no_words() -> None:
    batch = hand_worked()
    batch.annotations = (batch.annotations[0], ())
    mask_BFS = OffsetMatching(list(features_from_config(ALL).values())).masks(batch)
    assert mask_BFS[0, 1].any()
    assert not mask_BFS[1, 1].any()


def test_what_the_measure_needs_depends_on_its_features() -> None:
    assert Features(1, 1, {"cls": {"special": "first"}}).needs == frozenset()
    assert Features(1, 1, ALL).needs == {Need.ANNOTATION}
    with pytest.raises(UserError, match="has no features"):
        Features(1, 1, {})


@cache
def demo_examples() -> list[Example]:
    return DemoSource(task("demo_nli")).examples("validation")


def encoded(examples: list[Example]) -> EncodedSplit:
    return EncodedSplit(examples, wordpiece(), 64)


def test_every_feature_of_the_configuration_occurs_in_the_demo_corpus() -> None:
    sections = yaml.safe_load((CONF / "feature" / "default.yaml").read_text())
    Features(1, 1, sections).prepare(encoded(demo_examples()))


def test_a_feature_that_matches_nothing_is_an_error_before_the_first_batch() -> None:
    wrong = {**ALL, "interjections": {"pos": ["INTJ"], "relation": ["discourse"]}}
    with pytest.raises(
        UserError,
        match=r"Feature 'interjections' matches nothing in the 400 examples.*pos "
        r"INTJ.*measure\.features\.features\.interjections=null",
    ):
        Features(1, 1, wrong).prepare(encoded(demo_examples()))
    left_out = Features(1, 1, {**wrong, "interjections": None})
    left_out.prepare(encoded(demo_examples()))
    assert not [column for column in left_out.columns if column.name.startswith("interjections")]


def test_features_by_penn_tags_need_annotation_with_tags() -> None:
    untagged = Example(0, ("dogs",), None, (Annotation((Word("dogs", 0, 4, "NOUN", -1, "root"),)),))
    with pytest.raises(UserError, match=r"defined by Penn Treebank tags \(NN, NNS\).*use annotation=spacy"):
        Features(1, 1, {"nouns": {"tag": ["NN", "NNS"]}}).prepare(encoded([untagged]))


@pytest.mark.parametrize("settings", [{"max_examples": 0}, {"max_length": 2}, {"max_length": 9.5}])
def test_no_examples_and_too_few_tokens_are_errors(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(settings))} of a measure is "):
        Feed(**settings)


def test_strings_that_sentences_contain_are_for_the_original_matching_alone() -> None:
    with pytest.raises(UserError, match="Feature 'negation' uses contains, which needs matching=kovaleva"):
        Features(1, 1, {"negation": {"contains": ["not"]}})
    with pytest.raises(ValueError, match="call prepare"):
        Features(1, 1, {"negation": {"contains": ["not"]}}, matching="kovaleva").per_example(
            maps(hand_worked(), 3, 0), hand_worked(), None
        )


def test_the_error_for_words_without_annotation_names_three_ways_to_get_it() -> None:
    with pytest.raises(UserError) as error:
        check_needs([Features(1, 1, ALL)], None, annotated=False)
    for way in ("annotation=spacy annotation.pipeline=", "task=demo_paraphrase", "task=ud_ewt data.root="):
        assert way in str(error.value)
    check_needs([Features(1, 1, {"cls": {"special": "first"}})], None, annotated=False)
