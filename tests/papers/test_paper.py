"""The page that follows the paper, against numbers put into the runs by hand."""

import json
import re
from collections import Counter
from dataclasses import asdict
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from reporting.finished_runs import make_run

from bertsecrets.grid import HeadGrid
from bertsecrets.measures.frame_relations.record import HeadMap, RelationExample, RelationRecord
from bertsecrets.papers.chapter import Chapter, Claim, PaperRuns, claims_tables, held
from bertsecrets.papers.kovaleva2019.page import PAPER
from bertsecrets.papers.kovaleva2019.patterns import patterns
from bertsecrets.papers.kovaleva2019.relations import relations
from bertsecrets.papers.kovaleva2019.token_to_token import token_to_token
from bertsecrets.patterns.measure import Patterns
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.captures import step_name, write_maps
from bertsecrets.results.run import INITIAL, Run
from bertsecrets.results.table import HeadTable

PATTERN_COLUMNS = [column.name for column in Patterns.columns]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two tasks, two initialisations, two seeds; on RTE the change is largest at the bottom."""
    for task, drift_L in (("mrpc", [0.9, 0.5, 0.4]), ("rte", [0.3, 0.9, 0.8])):
        for init, accuracy in (("pretrained", 0.8), ("random_normal", 0.68)):
            for seed in (1, 2):
                make_run(
                    tmp_path / f"{task}-{init}-{seed}",
                    task=task,
                    init=init,
                    seed=seed,
                    accuracy=accuracy + 0.01 * seed,
                    model={"name": "bert_base", "path": "model"},
                    cosine_LH=np.repeat(np.array(drift_L)[:, None], 2, axis=1),
                    delta_LH=np.array([[0.02, -0.01], [-0.03, 0.0], [-0.02, -0.01]]) - (0.05 if task == "rte" else 0),
                )
    return tmp_path


def test_claims_and_published_numbers_stand_beside_what_was_put_in(sweep: Path) -> None:
    runs, _ = find_runs([str(sweep)])
    text = unescape(PAPER.write(runs, sweep / "page").read_text())
    verdicts = Counter(re.findall(r"<td[^>]*>\s*(agrees|does not agree|cannot be told)\s*</td>", text))
    assert (verdicts["agrees"], verdicts["does not agree"]) == (1, 3)
    assert (
        f"Of {verdicts.total()} statements of the paper, these runs agree with 1, disagree with 3 and leave 2 open."
        in text
    )
    # Table 1 of the paper: 82.3 pre-trained, 68.3 random for MRPC's accuracy.
    assert "82.3 / 68.3 / 31.6" in text
    # Means of 0.81 and 0.82 with t(1) at 97.5 %: 12.71 * 0.00707 / sqrt(2) = 0.0635
    assert "81.5 (75.1 to 87.9)" in text
    assert "The mean score is higher, significantly: in all 2." in text
    assert "The two layers with the lowest mean are the last two, significantly: in 1 of 2 (not for rte)." in text
    assert (
        "Layer 0 changes least, significantly: in 1 of 2 (not for rte); its mean is 0.93 or more: not for mrpc, rte."
        in text
    )
    # In the figure MRPC's first layer has 0.97 and its last 0.41.
    assert ".97 .93 .89 .78 .79 .87 .84 .76 .64 .67 .37 .41" in text
    assert ".90 .50 .40" in text
    # Some head is above 0 in any sample, and none is significant here.
    assert "a gain that is significant in most seeds exists: cannot be told for mrpc, rte." in text
    assert "0.883: 0.876 to 0.894" in text
    assert "0.770 to 0.820" in text
    assert (sweep / "page" / "figures" / "paper_figure8.png").is_file()


def test_another_model_is_not_held_to_published_numbers(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path / str(seed), seed=seed, cosine_LH=np.ones((2, 2)))
    text = PAPER.write(find_runs([str(tmp_path)])[0], tmp_path / "page").read_text()
    assert "published numbers are left out" in text
    assert "82.3 / 68.3" not in text
    assert ".97 .93" not in text


def test_how_often_a_claim_holds_is_said_with_its_exceptions() -> None:
    assert held(["a", "b"], ["a", "b"]) == "in all 2"
    assert held(["a"], ["a"]) == "for a"
    assert held(["a"], ["a", "b", "c"]) == "in 1 of 3 (not for b, c)"
    [table] = claims_tables([Claim("x", "y", True), Claim("x", "y", False), Claim("x", "y", None)])
    assert [row[2] for row in table.rows] == ["agrees", "does not agree", "cannot be told"]
    assert claims_tables([]) == []


def filled(folder: Path, task: str, measures: dict[str, dict[str, np.ndarray]]) -> None:
    """A run's folder with ``[layers, heads]`` numbers of any measures, those of relations before fine-tuning."""
    make_run(folder, task=task)
    tables = []
    for measure, columns in measures.items():
        value_LHC = torch.tensor(np.stack(list(columns.values()), -1))
        count_LHC = torch.where(value_LHC.isnan(), 0, 50)
        grid = HeadGrid(measure, tuple(columns), value_LHC, torch.full_like(value_LHC, 0.01), count_LHC)
        stage = "initial" if measure == "frame_relations" else "training"
        identity = {"run": folder.name, "model": "minilm", "task": task, "init": "pretrained"}
        tables.append(HeadTable.from_grid(grid, **identity, stage=stage, step=0))
    HeadTable.concat(tables).write(folder / "heads.parquet")


def paper_runs(folder: Path) -> PaperRuns:
    return PaperRuns(*find_conditions(find_runs([str(folder)])[0]))


def figures(chapter: Chapter | None) -> dict[str, Figure]:
    """The figures of a chapter that must exist."""
    assert chapter is not None
    return {block.name: block.figure for block in chapter.section.figures}


def test_a_map_of_each_pattern_is_the_one_that_was_drawn_so(tmp_path: Path) -> None:
    length, ahead = 16, torch.diag(torch.ones(15), 1)
    ahead[-1, -1] = 1
    first = torch.zeros(length, length)
    first[:, 0] = 1
    even = torch.full((length, length), 1 / length)
    blocks = torch.zeros(length, length)
    blocks[:8, :8] = blocks[8:, 8:] = 1 / 8
    noise = torch.rand(length, length, generator=torch.Generator().manual_seed(0)) ** 6
    drawn = {
        "vertical": (0, 2, 0.8 * first + 0.2 * even),
        "diagonal": (1, 0, 0.9 * ahead + 0.1 * even),
        "vertical + diagonal": (1, 1, 0.49 * first + 0.49 * ahead + 0.02 * even),
        "block": (0, 0, blocks),
        "heterogeneous": (1, 2, noise / noise.sum(-1, keepdim=True)),
    }
    # A vertical map with something of a diagonal beside: the classifier is less certain of it.
    map_LHQK = (0.5 * first + 0.12 * ahead + 0.38 * even).expand(2, 3, length, length).clone()
    for layer, head, map_QK in drawn.values():
        map_LHQK[layer, head] = map_QK
    shares = {"patterns": {name: np.full((2, 3), 0.2) for name in PATTERN_COLUMNS}}
    filled(tmp_path / "a", "mrpc", shares)
    write_maps(tmp_path / "a" / "captures", step_name(0), {3: even.expand(2, 3, length, length)})
    write_maps(tmp_path / "a" / "captures", step_name(9), {3: map_LHQK})
    # No maps were kept of this one.
    filled(tmp_path / "b", "rte", shares)
    sheet = figures(patterns(paper_runs(tmp_path)))["paper_figure1"]
    titles = [axes.get_title().split("\n") for axes in sheet.axes]
    assert {title[0].split(" (")[0]: title[1] for title in titles} == {
        name: f"mrpc, layer {layer} · head {head}" for name, (layer, head, _) in drawn.items()
    }


def test_without_kept_maps_the_first_figure_is_left_out(tmp_path: Path) -> None:
    filled(tmp_path / "a", "mrpc", {"patterns": {name: np.full((2, 3), 0.2) for name in PATTERN_COLUMNS}})
    assert set(figures(patterns(paper_runs(tmp_path)))) == {"paper_figure2"}


def test_the_same_sentences_before_fine_tuning_make_one_panel(tmp_path: Path) -> None:
    weight_LH = np.array([[0.1, 0.3], [0.2, 0.1]])
    for task, source, more in (("mrpc", "FrameNet 1.5", 0.0), ("rte", "FrameNet 1.5", 0.0), ("qqp", "its own", 0.1)):
        filled(
            tmp_path / task,
            task,
            {"frame_relations": {"weight": weight_LH + more, "over_position": weight_LH - 0.25}},
        )
        example = RelationExample("he left .", ["he", "left", "."], [(0, 1)], [HeadMap(0, 1, np.eye(3).tolist())])
        record = RelationRecord(source, {}, {}, 1, 0, {1: 1}, example)
        Run.open(tmp_path / task).extras_path("frame_relations").write_text(json.dumps({INITIAL: asdict(record)}))
    chapter = relations(paper_runs(tmp_path))
    assert chapter is not None
    section = chapter.section
    assert [row[0] for row in section.tables[1].rows] == ["FrameNet 1.5", "its own"]
    assert section.tables[1].rows[0][2].startswith("layer 0 · head 1: 0.300")
    assert set(figures(chapter)) == {"paper_figure3", "paper_figure3_maps"}
    assert "he → left" in section.figures[1].caption


def test_what_the_first_token_attends_to_is_the_last_layer_by_task(tmp_path: Path) -> None:
    columns = {f"cls_to_{name}": np.full((2, 3), 0.1) for name in ("nouns", "cls", "sep", "sep_total")}
    columns["cls_to_sep"] = np.array([[0.9, 0.9, 0.9], [0.2, 0.4, 0.6]])
    columns["cls_to_negation"] = np.full((2, 3), np.nan)
    filled(tmp_path / "a", "mrpc", {"token_to_token": columns})
    filled(tmp_path / "b", "rte", {"token_to_token": {**columns, "cls_to_negation": np.full((2, 3), 0.3)}})
    figure = figures(token_to_token(paper_runs(tmp_path)))["paper_figure7"]
    left, right = figure.axes[:2]
    assert [label.get_text() for label in left.get_yticklabels()] == ["[SEP]", "[CLS]", "nouns", "negation"]
    shown = left.collections[0].get_array()
    assert shown is not None
    np.testing.assert_allclose(shown.filled(-1), [[0.2, 0.4, 0.6], [0.1] * 3, [0.1] * 3, [-1] * 3])
    assert not np.ma.getmaskarray(right.collections[0].get_array()).any()
