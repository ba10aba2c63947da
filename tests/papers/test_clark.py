"""The page that follows Clark et al. 2019, against numbers put into the runs by hand."""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from papers.chapters import chapter_of, verdicts
from reporting.finished_runs import make_run

from bertsecrets.importance.sinks.kinds import Limits
from bertsecrets.measures.dependency.record import DependencyRecord, RelationScore
from bertsecrets.papers.chapter import Chapter, PaperRuns
from bertsecrets.papers.clark2019.attention import entropy, gradients, positions, special_tokens
from bertsecrets.papers.clark2019.maps import heads_of_relations, typical_heads
from bertsecrets.papers.clark2019.models import models
from bertsecrets.papers.clark2019.page import PAPER
from bertsecrets.papers.clark2019.sinks_and_roles import roles, sinks
from bertsecrets.papers.clark2019.syntax import coreference, dependency, probes
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.captures import CapturedExample, step_name, write_examples, write_maps
from bertsecrets.results.figures.gallery import MapPanel
from bertsecrets.results.run import Run

BERT = {"name": "bert_base", "path": "model"}


def by_layer(*means: float) -> ArrayLike:
    return np.repeat(np.array(means)[:, None], 2, axis=1)


def measured(folder: Path, measure: str, columns: Mapping[str, ArrayLike], stage: str = "initial") -> Path:
    return make_run(folder / "run", model=BERT, measured=[(stage, measure, columns), ("checkpoint", measure, columns)])


def with_extras(folder: Path, name: str, extras: Mapping[str, Any]) -> None:
    columns = {"all": np.full((2, 2), 0.3)}
    run = Run.open(make_run(folder / "run", model=BERT, measured=[("initial", name, columns)]))
    run.write_json(run.extras_path(name), {"initial": extras})


@pytest.mark.parametrize(
    ("previous", "same", "holds"),
    [(0.9, 0.01, [True, False, True]), (0.51, 0.1, [None, False, None]), (0.2, 0.3, [False, False, False])],
)
def test_a_head_is_above_one_half_only_with_certainty(
    tmp_path: Path, previous: float, same: float, holds: list[bool | None]
) -> None:
    heads = np.full((2, 2), 0.1)
    columns = {"previous": np.array([[previous, 0.1], [0.1, 0.1]]), "same": np.full((2, 2), same), "next": heads}
    measured(tmp_path, "offsets", columns)
    chapter = chapter_of(positions, tmp_path)
    assert verdicts(chapter) == holds
    [table] = chapter.section.tables[1:]
    assert table.rows[0][-1] == "layer 1 · head 4; layer 3 · head 5; layer 6 · head 11; layer 7 · head 4"


def test_the_paper_s_curves_of_special_tokens_hold_and_their_reverse_does_not(tmp_path: Path) -> None:
    curves = {
        "cls": (0.3, 0.2, 0.02, 0.01),
        "sep_total": (0.05, 0.6, 0.6, 0.2),
        "sep_to_sep": (0.1, 0.95, 0.94, 0.3),
        "other_to_sep": (0.05, 0.6, 0.6, 0.2),
        "punctuation": (0.1, 0.05, 0.1, 0.5),
    }
    for folder, order, holds in (
        ("paper", 1, [True, True, True, True]),
        ("reversed", -1, [True, True, False, False]),
    ):
        columns = {name: by_layer(*curve[::order]) for name, curve in curves.items()}
        measured(tmp_path / folder, "surface", columns)
        chapter = chapter_of(special_tokens, tmp_path / folder)
        assert verdicts(chapter) == holds
    flat = {name: by_layer(0.2, 0.2, 0.2, 0.2) for name in curves}
    measured(tmp_path / "flat", "surface", flat)
    assert verdicts(chapter_of(special_tokens, tmp_path / "flat")) == [False, None, None, None]


@pytest.mark.parametrize(
    ("relative", "last", "holds"),
    [((0.95, 0.5), 5.0, [True, True]), ((0.5, 0.95), 3.0, [False, False]), ((0.9, 0.5), 4.0, [None, None])],
)
def test_broad_heads_are_looked_for_below_and_the_last_layer_above(
    tmp_path: Path, relative: tuple[float, float], last: float, holds: list[bool | None]
) -> None:
    columns = {name: by_layer(4.0, last) for name in ("bits", "cls_bits", "uniform")}
    measured(tmp_path, "entropy", {**columns, "relative": by_layer(*relative)})
    assert verdicts(chapter_of(entropy, tmp_path)) == holds


@pytest.mark.parametrize(("difference", "holds"), [(-0.3, True), (0.3, False), (0.001, None)])
def test_gradients_are_of_the_fine_tuned_model_too(tmp_path: Path, difference: float, holds: bool | None) -> None:
    classes = {f"gradient_{name}": by_layer(0.1, 0.2, 0.3) for name in ("sep_total", "other", "all")}
    columns = {**classes, "sep_total_minus_other": by_layer(0.9, difference, difference)}
    make_run(tmp_path / "run", model=BERT, measured=[("checkpoint", "gradient_importance", columns)])
    assert verdicts(chapter_of(gradients, tmp_path)) == [holds]


def relation(name: str, accuracy: float, gain: float, *, from_head: bool = False) -> RelationScore:
    around = (accuracy - 0.02, accuracy + 0.02, 1, accuracy - gain, gain, gain - 0.02, gain + 0.02)
    return RelationScore(name, 200, 7, 10, from_head, accuracy, *around, accuracy, accuracy - gain)


RELATIONS = [
    relation("all", 0.35, 0.1),
    *(relation(name, 0.9, 0.3) for name in ("det", "obj", "case", "aux", "mark", "cc")),
]


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, [True, True, True, True]),
        ({0: {"high": 0.9, "low": 0.6}}, [False, True, True, True]),
        ({2: {"low": 0.7}}, [True, True, None, True]),
        ({2: {"low": 0.5, "high": 0.7}, 3: {"from_head": True}}, [True, True, False, None]),
        ({place: {"gain_low": -0.1} for place in range(1, 4)}, [True, None, True, True]),
        ({place: {"gain_low": -0.3, "gain_high": -0.1} for place in range(1, 5)}, [True, False, True, True]),
    ],
)
def test_table_1_is_judged_by_its_intervals(
    tmp_path: Path, change: Mapping[int, Mapping[str, Any]], holds: list[bool | None]
) -> None:
    scores = [replace(score, **change.get(place, {})) for place, score in enumerate(RELATIONS)]
    record = DependencyRecord("treebank", 100, 0, 0, 50, {}, scores)
    with_extras(tmp_path, "dependency", asdict(record))
    chapter = chapter_of(dependency, tmp_path)
    assert verdicts(chapter) == holds
    rows = {row[0]: row for row in chapter.section.tables[1].rows}
    assert rows["obj"][-2:] == ["86.8, 40.0", "layer 7 · head 9"]
    assert rows["cc"][-2:] == ["–", "–"]


@pytest.mark.parametrize(("gain", "holds"), [(0.2, [True, True]), (-0.2, [False, False]), (0.0, [None, True])])
def test_tables_2_and_3_are_judged_by_their_differences(tmp_path: Path, gain: float, holds: list[bool | None]) -> None:
    share = {"value": gain, "low": gain - 0.05, "high": gain + 0.05}
    around = {"accuracy": 0.5, "low": 0.45, "high": 0.55}
    gains = {"gain": gain, "gain_low": gain - 0.05, "gain_high": gain + 0.05}
    baselines = [{"name": name, **around, **gains} for name in ("nearest", "rule_based")]
    kind = {"kind": "all", "count": 9, "layer": 4, "head": 3, **around, "baselines": baselines}
    with_extras(tmp_path / "coreference", "coreference", {"kinds": [kind]})
    chapter = chapter_of(coreference, tmp_path / "coreference")
    assert verdicts(chapter) == holds
    assert [row[-1] for row in chapter.section.tables[1].rows] == ["65", "27", "69"]
    difference = {"first": "attention", "second": "right_branching", "uas": share}
    score = {"name": "attention", "uas": share, "las": share, "selectivity": None}
    with_extras(tmp_path / "probes", "probes", {"scores": [score], "differences": [difference]})
    chapter = chapter_of(probes, tmp_path / "probes")
    assert verdicts(chapter) == holds[:1]
    assert chapter.section.tables[1].rows[0][-1] == "61"


def test_the_page_has_every_section_and_tells_how_to_get_what_is_missing(tmp_path: Path) -> None:
    columns = {"previous": by_layer(0.9, 0.2), "same": by_layer(0.01, 0.01), "next": by_layer(0.1, 0.1)}
    make_run(tmp_path / "run", measured=[("initial", "offsets", columns)])
    page = PAPER.write(find_runs([str(tmp_path)])[0], tmp_path / "page")
    assert page.name == PAPER.file
    text = unescape(page.read_text())
    assert text.count("No run measured this.") == len(PAPER.chapters) - 1
    assert "Of 3 statements of the paper, these runs agree with 2 and disagree with 1." in text
    assert "numbers for heads and layers are left out" in text
    assert len(re.findall(r"<td[^>]*>\s*agrees\s*</td>", text)) == 2
    assert [*(tmp_path / "page" / "figures").glob("paper_positions.*")]


def sink_run(folder: Path, redirect_LH: ArrayLike) -> Chapter:
    """The chapter on sinks of a run in which layer 1 rests on [SEP]."""
    attention = np.array([[0.1, 0.2], [0.7, 0.8]])
    columns = {f"sep_{name}": np.full((2, 2), 0.2) for name in ("value_ratio", "norm_share", "output_change")}
    columns |= {"sep_attention": attention, "sep_cut": np.full((2, 2), 0.001), "sep_redirect": np.asarray(redirect_LH)}
    columns |= {f"sep_redirect_{name}": np.full((2, 2), 0.05) for name in ("loss", "flips")}
    path = make_run(folder, model=BERT, measured=[("checkpoint", "sinks", columns)], stderr=0.001)
    run = Run.open(path)
    run.write_json(run.extras_path("sinks"), {"model": {"limits": asdict(Limits())}})
    return chapter_of(sinks, folder.parent)


@pytest.mark.parametrize(
    ("redirect", "holds"), [([0.002, 0.002], True), ([0.002, 0.05], False), ([0.002, 0.0095], None)]
)
def test_the_no_op_is_judged_on_the_heads_that_rest_on_the_separator(
    tmp_path: Path, redirect: list[float], holds: bool | None
) -> None:
    chapter = sink_run(tmp_path / "run", [[0.9, 0.9], redirect])
    assert verdicts(chapter) == [True, holds]
    [row] = chapter.section.tables[1].rows
    assert row[:3] == ["[SEP]", "2", "2"]


def test_without_sinks_the_no_op_cannot_be_told(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make_run(path, measured=[("checkpoint", "sinks", {"sep_attention": np.full((2, 2), 0.1)})])
    run = Run.open(path)
    run.write_json(run.extras_path("sinks"), {"model": {"limits": asdict(Limits())}})
    assert verdicts(chapter_of(sinks, tmp_path)) == [None, None]


@pytest.mark.parametrize(("score", "holds"), [(4.0, True), (1.0, None)])
def test_a_role_that_no_head_is_shown_to_have_is_not_denied(tmp_path: Path, score: float, holds: bool | None) -> None:
    columns = {"local": by_layer(score, 1.0), "delimiter": by_layer(4.0, 1.0)}
    run = Run.open(make_run(tmp_path / "run", measured=[("initial", "roles", columns)]))
    run.write_json(run.extras_path("roles"), {"initial": {"thresholds": {"local": 3.0, "delimiter": 3.0}}})
    chapter = chapter_of(roles, tmp_path)
    assert verdicts(chapter) == [True, holds]
    counts = {row[0]: row[2] for row in chapter.section.tables[1].rows}
    assert counts == {"local": "2" if score > 3 else "0", "delimiter": "2"}


def test_figures_1_and_5_take_the_kept_maps_of_the_chosen_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = np.array([[0.1, 0.2], [0.9, 0.3]])
    columns = {
        "surface": {"sep_total": heads, "punctuation": heads.T},
        "offsets": {"next": heads},
        "entropy": {"relative": 1 - heads},
    }
    run = Run.open(
        make_run(tmp_path / "run", model=BERT, measured=[("initial", name, of) for name, of in columns.items()])
    )
    maps = torch.rand(2, 2, 4, 4)
    pairs = [(1, 2, "det")]
    write_examples(run.captures, [CapturedExample(3, ["[CLS]", "a", "cat", "[SEP]"], ["a cat"], "none", pairs)])
    write_maps(run.captures, step_name(0), {3: maps})
    drawn: list[MapPanel] = []
    monkeypatch.setattr("bertsecrets.papers.clark2019.maps.gallery", lambda panels, title: drawn.extend(panels))
    [block] = chapter_of(typical_heads, tmp_path).section.figures
    assert [
        np.argwhere((maps == torch.tensor(panel.attention_QK)).all(-1).all(-1).numpy()).tolist() for panel in drawn
    ] == [[[0, 0]], [[1, 0]], [[1, 0]], [[0, 1]]]
    assert "next token, layer 1 · head 0: 90 % of its attention" in block.caption
    drawn.clear()
    paper_runs = PaperRuns(*find_conditions(find_runs([str(tmp_path)])[0]))
    [model] = models(paper_runs, "offsets")
    scores = [replace(relation(name, 0.9, 0.3, from_head=True), layer=1, head=1) for name in ("all", "det", "obj")]
    assert len(heads_of_relations([(model, scores)])) == 1
    assert [(panel.column, panel.marked) for panel in drawn] == [("det\nlayer 1 · head 1", [(2, 1)])]
