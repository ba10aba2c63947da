"""What the paper's sections claim, against tables made by hand."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from reporting.finished_runs import make_run

from bertsecrets.papers.chapter import Answers, Chapter, PaperRuns
from bertsecrets.papers.kovaleva2019.disabling import disabled_heads
from bertsecrets.papers.kovaleva2019.drift import drift
from bertsecrets.papers.kovaleva2019.features import features
from bertsecrets.papers.kovaleva2019.initialisation import initialisation
from bertsecrets.papers.kovaleva2019.relations import relations
from bertsecrets.papers.kovaleva2019.token_to_token import token_to_token
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import find_runs

BERT = {"name": "bert_base", "path": "model"}


def chapter_of(make: Callable[[PaperRuns], Chapter | None], folder: Path, *runs: dict[str, Any]) -> Chapter:
    """The chapter on one run each, of the paper's model."""
    for number, settings in enumerate(runs):
        make_run(folder / str(number), **{"model": BERT, **settings})
    chapter = make(PaperRuns(*find_conditions(find_runs([str(folder)])[0])))
    assert chapter is not None
    return chapter


def by_layer(*means: float) -> ArrayLike:
    return np.repeat(np.array(means)[:, None], 2, axis=1)


@pytest.mark.parametrize(
    ("drifts", "holds", "said"),
    [
        ({"rte": (0.5, 0.9, 0.8, 0.7)}, False, "are the last two, significantly: not for rte."),
        ({"rte": (0.9, 0.8, 0.6, 0.5)}, True, "are the last two, significantly: for rte."),
        ({"qqp": (0.9, 0.5, 0.4, 0.8)}, None, "are the last two, significantly: not for qqp."),
        (
            {"qqp": (0.9, 0.5, 0.4, 0.8), "rte": (0.9, 0.8, 0.6, 0.5)},
            True,
            "are the last two, significantly: in 1 of 2 (not for qqp).",
        ),
        (
            {"qqp": (0.9, 0.8, 0.6, 0.5), "rte": (0.9, 0.5, 0.4, 0.8)},
            False,
            "are the last two, significantly: in 1 of 2 (not for rte).",
        ),
    ],
)
def test_only_the_papers_own_exception_is_one(
    tmp_path: Path, drifts: Mapping[str, tuple[float, ...]], holds: bool | None, said: str
) -> None:
    runs = ({"task": task, "cosine_LH": by_layer(*means)} for task, means in drifts.items())
    claim = chapter_of(drift, tmp_path, *runs).claims[0]
    assert claim.holds is holds
    assert claim.here.endswith(said)


@pytest.mark.parametrize(("first", "holds"), [(0.96, True), (0.926, True), (0.9, False)])
def test_a_first_layer_hardly_changes_as_little_as_the_papers(tmp_path: Path, first: float, holds: bool) -> None:
    claim = chapter_of(drift, tmp_path, {"cosine_LH": by_layer(first, 0.8, 0.7)}).claims[1]
    assert claim.holds is holds
    assert "its mean is 0.93 or more: " + ("for mrpc." if holds else "not for mrpc.") in claim.here


def test_a_score_that_is_undefined_is_no_defeat(tmp_path: Path) -> None:
    def runs(task: str, pretrained: float | None, random: float | None) -> list[dict[str, Any]]:
        both = (("pretrained", pretrained), ("random_normal", random))
        return [{"task": task, "init": init, "accuracy": score, "constant": 0.0} for init, score in both]

    # A model with random weights that answers one number only has no correlation.
    some = chapter_of(initialisation, tmp_path / "some", *runs("mrpc", 0.8, 0.6), *runs("rte", 0.7, None))
    assert [claim.holds for claim in some.claims] == [True, False]
    for claim in some.claims:
        assert claim.here.endswith("Left out, as the score of some seed is undefined: rte.")
    alone = chapter_of(initialisation, tmp_path / "none", *runs("rte", 0.7, None))
    assert [claim.holds for claim in alone.claims] == [None, None]
    # Table 1: fine-tuned, random and fine-tuned, and before fine-tuning.
    assert alone.section.tables[0].rows[0][-1] == "64.6 / 52.7 / 52.7"


WEIGHT = np.array([[0.1, 0.7], [0.2, 0.3]])


def relation_run(p: Sequence[float] | None, task: str = "mrpc", others: float = 0.001) -> dict[str, Any]:
    """The three corrected p-values of the highest head; the other heads have ``others`` in all tests."""
    columns = {"weight": WEIGHT, "over_position": np.full((2, 2), 0.05)}
    for name, value in zip(("position", "received", "other_links"), p or (), strict=False):
        columns[f"p_{name}_corrected"] = np.where(np.isclose(WEIGHT, 0.7), value, others)
    return {"task": task, "measured": [("initial", "frame_relations", columns)]}


@pytest.mark.parametrize(
    ("p", "verdict", "count"),
    [
        ((0.01, 0.02, 0.03), "relation", 4),
        ((0.01, 0.6, 0.01), "not shown", 3),
        ((0.5, 0.02, 0.01), "not shown", 3),
        ((0.01, 0.02, 0.5), "not shown", 3),
    ],
)
def test_a_head_attends_along_relations_if_its_tests_say_so(
    tmp_path: Path, p: Sequence[float], verdict: str, count: int
) -> None:
    chapter = chapter_of(relations, tmp_path, relation_run(p))
    [claim] = chapter.claims
    assert claim.holds is True
    [row] = chapter.section.tables[1].rows
    highest = f"layer 0 · head 1: 0.700 ({verdict}); layer 1 · head 1: 0.300 (relation)"
    assert row[2].startswith(highest)
    assert row[4] == f"{count} of 4"
    assert row[6] == "layer 0 · head 1: 0.201; layer 6 · head 5: 0.209"


def test_that_no_head_is_shown_to_follow_the_relation_refutes_nothing(tmp_path: Path) -> None:
    [claim] = chapter_of(relations, tmp_path, relation_run((0.01, 0.01, 0.5), others=0.5)).claims
    assert claim.holds is None


def test_relations_without_tests_are_undecided(tmp_path: Path) -> None:
    [claim] = chapter_of(
        relations, tmp_path / "new", relation_run(None), relation_run((0.01, 0.01, 0.01), task="rte")
    ).claims
    assert (claim.holds, "exists for rte (three" in claim.here) == (True, True)
    [untested] = chapter_of(relations, tmp_path / "old", relation_run(None)).claims
    assert untested.holds is None


SPECIAL = {"cls": by_layer(0.4, 0.1, 0.1), "sep": by_layer(0.1, 0.2, 0.5), "nouns": by_layer(0.03, 0.03, 0.06)}


def feature_run(names: Sequence[str], task: str = "qqp", rise: float = 0.02) -> dict[str, Any]:
    """Nouns get more than before fine-tuning, in every head."""
    own = {name: np.asarray(SPECIAL[name]) for name in names}
    own |= {f"{name}_uniform": np.full((3, 2), 0.05) for name in names}
    own |= {f"{name}_random": np.full((3, 2), 0.05) for name in names}
    own |= {f"{name}_over_random": own[name] - 0.05 for name in names}
    delta = {name: np.full((3, 2), rise if name in ("nouns", "nouns_over_random") else 0.0) for name in own}
    before = {name: own[name] - delta[name] for name in own}
    stages = (("training", own), ("initial", before), ("training-initial", delta))
    return {"task": task, "stderr": 0.002, "measured": [(stage, "features", columns) for stage, columns in stages]}


def test_special_tokens_and_words_are_judged_each_by_itself(tmp_path: Path) -> None:
    chapter = chapter_of(features, tmp_path / "rising", feature_run(["cls", "sep", "nouns"]))
    assert [claim.holds for claim in chapter.claims] == [True, True, True]
    assert {block.name for block in chapter.section.figures} == {"paper_figure6_cls", "paper_figure6_sep"}
    layers, words = (table.rows for table in chapter.section.tables[1:])
    assert [row[:3] for row in layers] == [["[CLS]", "qqp", ".40 .10 .10"], ["[SEP]", "qqp", ".10 .20 .50"]]
    # The authors' notebook on QQP has nouns at 0.031 before and 0.052 after fine-tuning.
    assert ["qqp", "nouns", "0.020", "0.040", "0.050", "6", "0", "0.031 → 0.052"] in words
    assert {row[1] for row in words} == {"[CLS]", "[SEP]", "nouns"}
    assert "the largest rise is that of layer 0 · head 0 (nouns: 0.010 → 0.030) on qqp." in chapter.claims[-1].here
    falling = chapter_of(features, tmp_path / "falling", feature_run(["cls", "nouns"], rise=-0.02))
    # That no head is shown to rise refutes nothing.
    assert falling.claims[-1].holds is None


@pytest.mark.parametrize(
    ("names", "claims", "missing"),
    [
        (["cls", "nouns"], 2, ["[SEP]"]),
        (["sep", "nouns"], 2, ["[CLS]"]),
        (["nouns"], 1, ["[CLS]", "[SEP]"]),
    ],
)
def test_a_feature_that_was_left_out_takes_only_its_own_claim_along(
    tmp_path: Path, names: list[str], claims: int, missing: list[str]
) -> None:
    chapter = chapter_of(features, tmp_path, feature_run(names))
    assert len(chapter.claims) == claims
    assert len(chapter.section.figures) == 2 - len(missing)
    for token in ("[CLS]", "[SEP]"):
        said = f"No run measured attention to {token}: the paper's statement about it is left out."
        assert (said in chapter.section.paragraphs) == (token in missing)


def test_a_task_without_a_feature_is_not_counted_against_the_paper(tmp_path: Path) -> None:
    runs = feature_run(["cls", "nouns"]), feature_run(["cls", "sep"], task="rte")
    assert [claim.here for claim in chapter_of(features, tmp_path, *runs).claims[:2]] == [
        "Its highest layer lies in the lower half, significantly above the other half: in all 2.",
        "Its highest layer lies in the upper half, significantly above the other half: for rte.",
    ]


CLS = {"cls_to_sep": np.array([[0.9, 0.9], [0.4, 0.2]]), "cls_to_nouns": np.array([[0.1, 0.1], [0.05, 0.15]])}


def pair(name: str, weight: float, mean: float, beyond: float) -> dict[str, ArrayLike]:
    """One head that attends to the pair, and others that hardly do."""
    highest = np.array([[False, True], [False, False]])
    values = {name: weight, f"{name}_mean": mean, f"{name}_beyond_position": beyond}
    return {column: np.where(highest, value, 0.01) for column, value in values.items()}


def token_run(columns: Mapping[str, ArrayLike], task: str = "qqp") -> dict[str, Any]:
    return {"task": task, "measured": [("training", "token_to_token", columns)]}


def test_figure_7_is_what_cls_attends_to_in_the_last_layer(tmp_path: Path) -> None:
    uncertain = {"cls_to_sep": np.array([[0.1, 0.1], [0.05, 0.05]]), "cls_to_nouns": np.array([[0.9, 0.9], [0.2, 0.4]])}
    chapter = chapter_of(token_to_token, tmp_path, token_run(CLS), token_run(uncertain, task="rte"))
    assert chapter.claims[0].here == "[SEP] gets the most, by two standard errors: in 1 of 2 (not for rte)."
    assert chapter.section.tables[1].rows[0] == [
        "qqp",
        "[SEP] 0.300, nouns 0.100",
        # As in the authors' notebook.
        "[SEP] 0.250, verbs 0.101, nouns 0.064, subjects 0.040, objects 0.037, negation 0.031, pronouns 0.028, [CLS] 0.002",
    ]
    [block] = chapter.section.figures
    assert block.name == "paper_figure7"
    panels = [axes for axes in block.figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["qqp", "rte"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["[SEP]", "nouns"]
    drawn = panels[0].collections[0].get_array()
    assert drawn is not None
    assert np.allclose(np.asarray(drawn).reshape(2, 2), [[0.4, 0.2], [0.05, 0.15]])


def test_what_is_left_without_position_is_part_of_the_same_mean(tmp_path: Path) -> None:
    # 0.2 is less than half of the largest attention and more than half of the mean, of which it is a part.
    syntactic = {**pair("verb_to_subject", 0.9, 0.3, 0.2), **pair("subject_to_verb", 0.9, 0.3, 0.2)}
    chapter = chapter_of(token_to_token, tmp_path / "a", token_run({**CLS, **syntactic}))
    assert (chapter.claims[1].holds, "For 0 of 2 such kinds" in chapter.claims[1].here) == (False, True)
    theirs = "layer 2 · head 0: 0.606; layer 2 · head 9: 0.606; layer 5 · head 9: 0.528"
    row = ["qqp", "subject → verb", "layer 0 · head 1: 0.900", "0.300", "+0.200", theirs]
    assert row in chapter.section.tables[2].rows
    # Objects are not what the paper speaks of.
    others = {**pair("object_to_verb", 0.9, 0.3, 0.2), **pair("coreferent", 0.9, 0.3, 0.2)}
    nouns = token_run({**CLS, **others, **pair("noun_to_pronoun", 0.4, 0.3, 0.1)})
    claim = chapter_of(token_to_token, tmp_path / "b", nouns).claims[1]
    assert (claim.holds, "For 1 of 1 such kinds" in claim.here) == (True, True)


@pytest.mark.parametrize(
    ("columns", "claims", "figures"),
    [
        ({"cls_to_nouns": CLS["cls_to_nouns"], **pair("verb_to_subject", 0.9, 0.3, 0.2)}, 1, 1),
        (pair("verb_to_subject", 0.9, 0.3, 0.2), 1, 0),
        (CLS, 1, 1),
        ({"cls_to_nouns": CLS["cls_to_nouns"]}, 0, 1),
    ],
)
def test_token_to_token_without_some_of_its_columns(
    tmp_path: Path, columns: Mapping[str, ArrayLike], claims: int, figures: int
) -> None:
    chapter = chapter_of(token_to_token, tmp_path, token_run({**columns, "uniform": np.full((2, 2), 0.05)}))
    assert (len(chapter.claims), len(chapter.section.figures)) == (claims, figures)
    said = " ".join(chapter.section.paragraphs)
    assert ("from [CLS] to [SEP]: the paper's statement" in said) == ("cls_to_sep" not in columns)
    assert ("nouns and pronouns: the paper's statement" in said) == ("verb_to_subject" not in columns)


def test_what_cannot_be_told_is_neither_agreement_nor_disagreement(tmp_path: Path) -> None:
    """Within rounding, without significance, and for a task that was not learned."""
    moved = by_layer(0.99, 0.8, 0.6, 0.5)
    cases: list[tuple[dict[str, Any], list[bool | None]]] = [
        ({"cosine_LH": moved}, [True, True]),
        ({"cosine_LH": by_layer(*[1.0] * 4)}, [None, None]),
        ({"cosine_LH": by_layer(1.0, 1 - 2e-7, 1 - 3e-7, 1 - 4e-7)}, [None, None]),
        # Errors of 0.1 over examples: layers that differ by 0.1 are not told apart.
        ({"cosine_LH": moved, "stderr": 0.1}, [None, None]),
        ({"cosine_LH": moved, "p_constant": 0.4}, [None, None]),
        ({"cosine_LH": moved, "p_constant": 0.001}, [True, True]),
    ]
    for place, (settings, expected) in enumerate(cases):
        chapter = chapter_of(drift, tmp_path / str(place), {"task": "rte", **settings})
        assert [claim.holds for claim in chapter.claims] == expected, settings
        assert any("Nothing was learned" in text for text in chapter.section.paragraphs) == (
            settings.get("p_constant") == 0.4
        )
    feature = feature_run(["cls", "sep", "nouns"])
    noisy = chapter_of(features, tmp_path / "noisy", {**feature, "stderr": 0.3})
    assert [claim.holds for claim in noisy.claims[:2]] == [None, None]
    unlearned = chapter_of(features, tmp_path / "unlearned", {**feature, "p_constant": 0.5})
    assert unlearned.claims[-1].holds is None
    near = token_run({"cls_to_sep": np.full((2, 2), 0.31), "cls_to_nouns": np.full((2, 2), 0.3)})
    assert chapter_of(token_to_token, tmp_path / "near", near).claims[0].holds is None


def test_the_best_of_many_noisy_heads_proves_no_gain(tmp_path: Path) -> None:
    delta_LH = np.array([[0.02, -0.01], [0.0, 0.01]])
    [some, _] = chapter_of(disabled_heads, tmp_path / "noise", {"delta_LH": delta_LH}).claims
    assert some.holds is None
    assert "exists: cannot be told for mrpc." in some.here
    gain = {"delta_LH": delta_LH, "significant_LH": delta_LH > 0.015}
    assert chapter_of(disabled_heads, tmp_path / "gain", gain).claims[0].holds is True
    unlearned = chapter_of(disabled_heads, tmp_path / "unlearned", {**gain, "p_constant": 0.7})
    assert unlearned.claims[0].holds is None


def test_a_task_that_was_not_learned_is_left_out_of_the_verdict(tmp_path: Path) -> None:
    moved, upside_down = by_layer(0.99, 0.8, 0.6, 0.5), by_layer(0.5, 0.6, 0.8, 0.99)
    learned = {"task": "mrpc", "cosine_LH": moved, "p_constant": 0.001}
    unlearned = {"task": "rte", "cosine_LH": upside_down, "p_constant": 0.4}
    chapter = chapter_of(drift, tmp_path / "drift", learned, unlearned)
    panels = [axes.get_title() for axes in chapter.section.figures[0].figure.axes]
    assert panels[:2] == ["mrpc", "rte (not learned)"]
    last_two, _ = chapter.claims
    assert last_two.holds is True
    assert last_two.here.endswith("for mrpc; not judged for rte.")
    most = token_run({"cls_to_sep": np.full((2, 2), 0.4), "cls_to_nouns": np.full((2, 2), 0.1)}, "mrpc")
    least = token_run({"cls_to_sep": np.full((2, 2), 0.1), "cls_to_nouns": np.full((2, 2), 0.4)}, "rte")
    tokens = chapter_of(token_to_token, tmp_path / "tokens", most, {**least, "p_constant": 0.4})
    assert tokens.claims[0].holds is True
    places = [{**feature_run(["cls"], task), "p_constant": p} for task, p in (("mrpc", 0.001), ("rte", 0.4))]
    [first, *_] = chapter_of(features, tmp_path / "features", *places).claims
    assert "not judged for rte" in first.here


@pytest.mark.parametrize(
    ("random", "count", "better"),
    [(0.1, 1000, True), (0.82, 1000, None), (0.82, 20_000, True), (0.9, 20_000, False), (1.0, 1000, False)],
)
def test_correlations_of_one_seed_are_compared_over_examples(
    tmp_path: Path, random: float, count: int, better: bool | None
) -> None:
    """Fisher's test of two independent correlations, done by hand: z = (atanh 0.84 − atanh r) / sqrt(2 / (n − 3))."""
    for init, pearson in (("pretrained", 0.84), ("random_normal", random)):
        folder = make_run(tmp_path / init, task="stsb", init=init)
        scores = json.loads((folder / "scores.json").read_text())
        scores["sets"]["val"] |= {"count": count, "model": {"pearson": pearson}, "constant": {"pearson": None}}
        (folder / "scores.json").write_text(json.dumps(scores))
    chapter = initialisation(PaperRuns(*find_conditions(find_runs([str(tmp_path)])[0])))
    assert chapter is not None
    assert chapter.claims[0].holds is better
    # tanh(atanh 0.84 ± 1.96 / sqrt(997)) = 0.8207, 0.8573
    assert count != 1000 or chapter.section.tables[0].rows[0][2] == "84.0 (82.1 to 85.7)"


def test_initialisations_are_compared_by_tests(tmp_path: Path) -> None:
    def runs(pretrained: float, random: float, **settings: Any) -> list[dict[str, Any]]:
        both = (("pretrained", pretrained), ("random_normal", random))
        return [{"task": "rte", "init": init, "accuracy": a, "constant": 0.53, **settings} for init, a in both]

    cases: list[tuple[list[dict[str, Any]], list[bool | None]]] = [
        (runs(0.8, 0.53), [True, True]),
        # 408 examples: a point of difference is noise, and so is a point above the constant answer.
        (runs(0.54, 0.53), [None, True]),
        (runs(0.8, 0.54), [True, None]),
        (runs(0.8, 0.7), [True, False]),
        (runs(0.53, 0.8), [False, False]),
    ]
    for place, (pair, expected) in enumerate(cases):
        chapter = chapter_of(initialisation, tmp_path / str(place), *pair)
        assert [claim.holds for claim in chapter.claims] == expected, pair


@pytest.mark.parametrize(
    ("answers", "everywhere", "mostly", "anywhere", "words"),
    [
        ({}, None, None, None, ""),
        ({"a": True}, True, True, True, "for a"),
        ({"a": True, "b": None}, None, None, True, "for a; cannot be told for b"),
        ({"a": True, "b": True, "c": None}, None, True, True, "for a, b; cannot be told for c"),
        ({"a": False, "b": None}, False, False, None, "not for a; cannot be told for b"),
        ({"a": None}, None, None, None, "cannot be told for a"),
    ],
)
def test_answers_are_summed_up_without_taking_the_unknown_for_a_no(
    answers: dict[str, bool | None],
    everywhere: bool | None,
    mostly: bool | None,
    anywhere: bool | None,
    words: str,
) -> None:
    told = Answers(answers)
    assert (told.everywhere, told.mostly, told.anywhere, str(told)) == (everywhere, mostly, anywhere, words)
