"""Attention to linguistic features against a naive loop and hand-worked sentences."""

import numpy as np
import pytest
import torch
from data.tasks import task
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Annotation, Word
from bertsecrets.errors import UserError
from bertsecrets.measures.base import Need
from bertsecrets.measures.features import Feature, Features, attention_received, feature_masks

ALL = {
    "nouns": {"pos": ["NOUN"]},
    "subjects": {"relation": ["nsubj"]},
    "not": {"lexicon": ["Not"]},
    "negation": {"negation": True},
    "cls": {"special": "first"},
    "sep": {"special": "separator"},
}


def hand_worked() -> Batch:
    """[CLS] the dog ##s do not see [SEP] dogs [SEP] and, shorter, [CLS] they see [SEP] + padding."""
    first = Annotation(
        (
            Word("the", 0, 3, "DET", 1, "det"),
            Word("dogs", 4, 8, "NOUN", 4, "nsubj"),
            Word("do", 9, 11, "AUX", 4, "aux"),
            Word("not", 12, 15, "PART", 4, "advmod", negation=True),
            Word("see", 16, 19, "VERB", -1, "root"),
        )
    )
    second = Annotation((Word("dogs", 0, 4, "NOUN", -1, "root"),))
    short = Annotation((Word("they", 0, 4, "PRON", 1, "nsubj"), Word("see", 5, 8, "VERB", -1, "root")))
    word_BS = torch.tensor([[-1, 0, 1, 1, 2, 3, 4, -1, 5, -1], [-1, 0, 1, -1, -1, -1, -1, -1, -1, -1]])
    mask_BS = torch.tensor([[1] * 10, [1] * 4 + [0] * 6])
    special_BS = torch.zeros(2, 10, dtype=torch.bool)
    special_BS[0, [0, 7, 9]] = True
    special_BS[1, [0, 3]] = True
    return Batch(
        input_ids_BS=torch.zeros(2, 10, dtype=torch.long),
        attention_mask_BS=mask_BS,
        token_type_ids_BS=None,
        special_BS=special_BS,
        word_BS=word_BS,
        index_B=torch.arange(2),
        label_B=None,
        annotations=((first, second), (short,)),
    )


def random_maps(batch: Batch, seed: int, heads: int = 3) -> Tensor:
    """Maps whose padding columns are 0 and whose padding rows are not."""
    size = batch.input_ids_BS.shape[1]
    scores = torch.randn(batch.size, heads, size, size, generator=torch.Generator().manual_seed(seed)).double()
    scores = scores.masked_fill(~batch.attention_mask_BS.bool()[:, None, None], -torch.inf)
    return scores.softmax(-1)


def positions(row: int) -> dict[str, list[int]]:
    """Where the features of the hand-worked batch stand, read off by eye."""
    return [
        {"nouns": [2, 3, 8], "subjects": [2, 3], "not": [5], "negation": [5], "cls": [0], "sep": [7, 9]},
        {"nouns": [], "subjects": [1], "not": [], "negation": [], "cls": [0], "sep": [3]},
    ][row]


def test_tokens_of_each_feature_are_those_read_off_by_eye() -> None:
    batch = hand_worked()
    features = [Feature.from_config(name, section) for name, section in ALL.items()]
    mask_BFS = feature_masks(features, batch)
    for row in range(2):
        for place, name in enumerate(ALL):
            assert mask_BFS[row, place].nonzero()[:, 0].tolist() == positions(row)[name], (row, name)


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_measure_equals_a_naive_loop(seed: int) -> None:
    batch = hand_worked()
    attention_BHQK = random_maps(batch, seed)
    for absent in ("exclude", "kovaleva"):
        measure = Features(1, 3, ALL, absent=absent)
        measure.update(0, attention_BHQK, batch)
        grid = measure.compute()
        for head in range(3):
            for place, name in enumerate(ALL):
                values = []
                for row, length in enumerate((10, 4)):
                    received = attention_BHQK[row, head, :length, :length].numpy().mean(axis=0)
                    found = positions(row)[name]
                    if found:
                        values.append(max(received[position] for position in found))
                    elif absent == "kovaleva":
                        values.append(0.0)
                assert grid.value_LHC[0, head, place].item() == pytest.approx(np.mean(values), abs=1e-12)
                assert grid.count_LHC[0, head, place].item() == len(values)


def test_uniform_attention_gives_every_token_its_share() -> None:
    batch = hand_worked()
    real_BS = batch.attention_mask_BS.bool()
    length_B = real_BS.sum(-1)
    uniform = (real_BS[:, None, None] / length_B[:, None, None, None]).expand(2, 3, 10, 10)
    mask_BFS = feature_masks([Feature(special="first")], batch)
    found = attention_received(uniform, real_BS, mask_BFS)
    assert torch.allclose(found[:, :, 0], (1 / length_B)[:, None].expand(2, 3).to(found.dtype))


def test_padding_changes_nothing() -> None:
    batch = hand_worked()
    features = [Feature.from_config(name, section) for name, section in ALL.items()]
    attention_BHQK = random_maps(batch, 3)
    whole = attention_received(attention_BHQK, batch.attention_mask_BS.bool(), feature_masks(features, batch))
    alone = Batch(
        input_ids_BS=batch.input_ids_BS[1:, :4],
        attention_mask_BS=batch.attention_mask_BS[1:, :4],
        token_type_ids_BS=None,
        special_BS=batch.special_BS[1:, :4],
        word_BS=batch.word_BS[1:, :4],
        index_B=batch.index_B[1:],
        label_B=None,
        annotations=batch.annotations[1:],
    )
    cropped = attention_received(
        attention_BHQK[1:, :, :4, :4], alone.attention_mask_BS.bool(), feature_masks(features, alone)
    )
    assert torch.allclose(whole[1:], cropped, equal_nan=True)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"possition": ["NOUN"]}, "Unknown kind 'possition' of feature 'x'"),
        ({"special": "last"}, "Unknown special token 'last'"),
        ({"special": "first", "pos": ["NOUN"]}, "give one of the two"),
        ({}, "give one of the two"),
    ],
)
def test_a_feature_that_is_none_is_told(section: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Feature.from_config("x", section)


def test_what_the_measure_needs_depends_on_its_features() -> None:
    assert Features(1, 1, {"cls": {"special": "first"}}).needs == frozenset()
    assert Features(1, 1, ALL).needs == {Need.ANNOTATION}
    with pytest.raises(UserError, match="Unknown absent 'zero'"):
        Features(1, 1, ALL, absent="zero")
    with pytest.raises(UserError, match="was given none"):
        Features(1, 1, {})


def test_every_feature_of_the_configuration_occurs_in_the_demo_corpus() -> None:
    from pathlib import Path

    import yaml

    from bertsecrets.data.sources.demo import DemoSource

    sections = yaml.safe_load((Path(__file__).parents[2] / "conf/measure/features.yaml").read_text())["features"]
    examples = DemoSource(task("demo_paraphrase")).examples("validation")
    words = [word for example in examples for sentence in example.annotations for word in sentence.words]
    for name, section in sections.items():
        feature = Feature.from_config(name, section)
        if feature.special is None and name != "negation":
            assert any(feature.fits(word) for word in words), name
