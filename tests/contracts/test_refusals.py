"""Wrong settings of measures and analyses, in one table: each is refused in a sentence when it is read."""

import pytest

from bertsecrets.ablation.blocking import BlockAttention
from bertsecrets.ablation.shapley import ShapleyHeads
from bertsecrets.errors import UserError
from bertsecrets.importance.sink_heads import InterveneOnSinks
from bertsecrets.measures.linguistic.word_features import Feature
from bertsecrets.measures.linguistic.word_pairs import WordPair
from bertsecrets.measures.shipped import shipped_measure, shipped_names
from bertsecrets.probes.analysis import TrainProbes


@pytest.mark.parametrize("name", shipped_names())
def test_every_measure_checks_its_arguments_by_their_types(name: str) -> None:
    measure = shipped_measure(name)
    with pytest.raises(UserError, match=r"\w+\.max_examples is 0; expected a whole number from 1, or null for all\."):
        measure(2, 2, max_examples=0)
    with pytest.raises(UserError, match=r"\w+\.num_heads is '2'; expected a whole number\."):
        measure(2, "2")
    assert measure(2, 2, max_examples=3).feed.max_examples == 3


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("clusters", {"smoothing": 1.0}, "Clusters.smoothing is 1.0; expected a share"),
        ("clusters", {"groups": 5}, "Clusters.groups is 5; expected a whole number from 2 to the 4 heads"),
        ("clusters", {"replicates": -1}, "Clusters.replicates is -1"),
        ("coreference", {"candidates": "mentions"}, "Coreference.candidates 'mentions'; valid names: earlier, others"),
        ("coreference", {"windows": "second"}, "Unknown Coreference.windows 'second'"),
        ("coreference", {"splits": 0}, "Coreference.splits is 0; expected a whole number from 1"),
        ("dependency", {"from_word": "last"}, "Unknown Dependency.from_word 'last'"),
        ("dependency", {"offsets": []}, "Dependency.offsets is"),
        ("dependency", {"min_count": 0}, "Dependency.min_count is 0; expected a whole number from 1"),
        ("dependency", {"splits": 0}, "Dependency.splits is 0"),
        ("drift", {"padding": "kovalev"}, "did you mean 'kovaleva'"),
        ("features", {"absent": "zero"}, "Unknown Features.absent 'zero'"),
        ("frame_relations", {"pairs": "zipped"}, "Unknown FrameRelations.pairs 'zipped'.*did you mean 'zip'"),
        ("frame_relations", {"direction": "up"}, "Unknown FrameRelations.direction 'up'"),
        ("frame_relations", {"matching": "words"}, "Unknown FrameRelations.matching 'words'"),
        ("frame_relations", {"permutations": 0}, "FrameRelations.permutations is 0"),
        ("offsets", {"offsets": []}, r"Offsets.offsets is \[\]; expected a list"),
        ("offsets", {"offsets": [1, 1]}, "expected a list of different whole numbers"),
        ("offsets", {"offsets": "-1"}, "expected a list of different whole numbers"),
        ("offsets", {"mean_over": "token"}, "did you mean 'tokens'"),
        ("roles", {"relations": []}, r"Roles.relations is \[\]"),
        ("roles", {"relations": ["nsubj", "nsubj"]}, "expected a list of different relations"),
        ("roles", {"relations": ["local"]}, "expected a list of different relations"),
        ("roles", {"threshold": 0}, "Roles.threshold is 0; expected a number above 0"),
        ("surface", {"marks": ".,"}, "Surface.marks is .*; expected a list of tokens"),
        ("surface", {"marks": [".", ""]}, "Surface.marks is .*; expected a list of tokens"),
        ("surface", {"marks": [1]}, "Surface.marks is .*; expected a list of tokens"),
        ("token_to_token", {"far": 0}, "TokenToToken.far is 0"),
        ("voita_roles", {"relations": "nsubj"}, "VoitaRoles.relations is 'nsubj'"),
        ("voita_roles", {"relations": ["nsubj", "nsubj"]}, "VoitaRoles.relations is"),
        ("voita_roles", {"gain": 0.0}, "VoitaRoles.gain is 0.0"),
        ("voita_roles", {"min_count": 0}, "VoitaRoles.min_count is 0"),
        ("confidence", {"mean_over": "words"}, "Unknown Confidence.mean_over 'words'"),
        ("confidence", {"rows": "word"}, "Unknown Confidence.rows 'word'"),
        ("first_order", {"reference_examples": 0}, "FirstOrder.reference_examples is 0"),
        ("gradient_importance", {"marks": ".,"}, r"GradientImportance.marks is '\.,'"),
        ("integrated_gradients", {"steps": 0}, "IntegratedGradients.steps is 0"),
    ],
)
def test_wrong_settings_of_a_measure_are_reported(name: str, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        shipped_measure(name)(2, 2, **wrong)


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (BlockAttention, {"tokens": ["eos"]}, r"BlockAttention.tokens is .*'eos'.*; expected a list of sep and cls"),
        (
            InterveneOnSinks,
            {"tokens": ["pad"]},
            r"InterveneOnSinks.tokens is \['pad'\]; expected a list of sep and cls",
        ),
        (InterveneOnSinks, {"attention": 2}, "attention is 2; expected a number above 0 and up to 1"),
        (ShapleyHeads, {"permutations": 1}, "ShapleyHeads.permutations is 1; expected a whole number from 2"),
        (TrainProbes, {"probes": ["atention"]}, "Unknown probe 'atention'; did you mean 'attention'"),
        (TrainProbes, {"probes": []}, r"TrainProbes.probes is \[\]; expected a list of "),
        (TrainProbes, {"glove": "nowhere.txt"}, "analysis.probes.glove is 'nowhere.txt', which is not a file"),
    ],
)
def test_wrong_settings_of_an_analysis_are_reported(kind: type, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        kind(**wrong)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"possition": ["NOUN"]}, "Unknown key 'features.x.possition'; did you mean 'pos"),
        ({"special": "last"}, "features.x.special is 'last'; expected first, separator or null"),
        ({"special": "first", "pos": ["NOUN"]}, "A feature is defined by exactly one of"),
        ({"contains": ["not"], "pos": ["NOUN"]}, "A feature is defined by exactly one of"),
        ({}, "A feature is defined by exactly one of"),
        ({"pos": "NOUN"}, r"features.x.pos is 'NOUN'; expected a list of texts.*e.g. \[NOUN\]"),
        ({"special": "first", "pool": "mean"}, "Unknown features.x.pool 'mean'; did you mean 'max'"),
        ({"special": "first", "pool": None}, "features.x.pool is null; expected max or sum"),
        ({"pos": None}, "features.x.pos is null; expected a list"),
    ],
)
def test_a_wrong_feature_is_an_error(section: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Feature.read("features.x", section)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "Unknown link ''"),
        ({"link": "haed"}, "Unknown link 'haed' of a word pair; did you mean 'head'"),
        ({"link": "head", "form": {"pos": ["VERB"]}}, "Unknown key 'form' of pair 'x'; did you mean 'from'"),
        ({"link": "head", "from": {"special": "first"}}, "A word pair links words"),
        ({"link": "head", "to": {"poss": ["VERB"]}}, "Unknown key 'pairs.x.to.poss'"),
        ("head", "Pair 'x' is 'head'"),
    ],
)
def test_a_wrong_pair_is_an_error(section: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        WordPair.from_config("x", section)
