"""Relation-specific heads from the command line to the report, on FrameNet's sentences and on those of a task."""

from pathlib import Path

import numpy as np
import pytest
from cli.runs import door
from data.framenet_folder import REMAINING, write_framenet

from bertsecrets.measures.frame_relations.measure import FrameRelations
from bertsecrets.measures.frame_relations.rows import Filter, LinkedPair, Links, Offset, Token, Weight
from bertsecrets.results.run import Run
from bertsecrets.results.table import HeadTable
from bertsecrets.results.views import MeasureView


def arguments(model: Path, folder: Path, **settings: object) -> list[str]:
    given = {
        "checkpoint": "initial",
        "measure": "[frame_relations]",
        "compare_with": "[initial,random]",
        "model": "folder",
        "model.path": model,
        "data.limit_train": 40,
        "data.limit_eval": 24,
        "trainer.accelerator": "cpu",
        "logger": "csv",
        "progress": "false",
        "hydra.run.dir": folder,
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    return [f"{key}={value}" for key, value in given.items()]


def test_framenet_from_the_command_line_to_the_report(tiny_bert: Path, tmp_path: Path) -> None:
    corpus = write_framenet(tmp_path / "fn")
    result = door("analyze", *arguments(tiny_bert, tmp_path / "run", framenet__root=corpus, report__figures="null"))
    assert result.returncode == 0, result.stderr
    assert f"has a linked element: {REMAINING['offsets'][-1]}" in result.stdout + result.stderr
    table = HeadTable.read(tmp_path / "run" / "heads.parquet")
    value_LH, stderr_LH, count_LH = table.grid("frame_relations", "weight", "checkpoint", 0)
    assert value_LH.shape == (3, 4)
    assert (count_LH == REMAINING["offsets"][-1]).all()
    assert ((value_LH > 0) & (value_LH < 1) & np.isfinite(stderr_LH)).all()
    for test in ("position", "received"):
        p_LH, _, _ = table.grid("frame_relations", f"p_{test}", "checkpoint", 0)
        corrected_LH, _, _ = table.grid("frame_relations", f"p_{test}_corrected", "checkpoint", 0)
        assert ((p_LH > 0) & (p_LH <= corrected_LH) & (corrected_LH <= 1)).all()
    # The model before fine-tuning is the model itself: nothing differs; from random weights there are differences.
    assert not table.grid("frame_relations", "weight", "checkpoint-initial", 0)[0].any()
    assert table.grid("frame_relations", "weight", "checkpoint-random", 0)[0].any()
    for column in ("p_position_corrected", "p_received_corrected"):
        own_LH, initial_LH = (table.grid("frame_relations", column, stage, 0)[0] for stage in ("checkpoint", "initial"))
        assert np.array_equal(own_LH, initial_LH)
        assert np.isfinite(table.grid("frame_relations", column, "random", 0)[0]).all()
        assert not table.steps("frame_relations", column, "checkpoint-initial")
    [logged] = (tmp_path / "run" / "csv").glob("*/metrics.csv")
    header = logged.read_text().splitlines()[0].split(",")
    assert "frame_relations/weight/mean" in header
    assert not [name for name in header if "/p_" in name]
    view = MeasureView(Run.open(tmp_path / "run"), FrameRelations(3, 4).declaration())
    links = view.fact(Links)
    assert (links.source, links.links) == ("FrameNet 1.5", 4)
    assert [row.sentences for row in view.found(Filter)] == REMAINING["offsets"]
    assert [row.token for row in view.found(Token)][:3] == ["[CLS]", "he", "slowly"]
    assert view.found(LinkedPair) == [LinkedPair(1, 5)]
    # Rows of three maps sum to 1.
    assert sum(row.weight for row in view.found(Weight)) == pytest.approx(3 * len(view.found(Token)), rel=1e-4)
    # What was measured is the model before its fine-tuning itself.
    before = view.at("initial")
    for kind in (Links, Filter, Offset, Token, LinkedPair, Weight):
        assert before.found(kind) == view.found(kind)


@pytest.mark.slow
def test_a_task_that_is_annotated_needs_no_framenet(tiny_bert: Path, tmp_path: Path) -> None:
    given = arguments(tiny_bert, tmp_path / "run", experiment="frame_relations_kovaleva", compare_with="[]")
    result = door("analyze", *[each for each in given if not each.startswith("measure=")])
    assert result.returncode == 0, result.stderr
    links = MeasureView(Run.open(tmp_path / "run"), FrameRelations(3, 4).declaration()).fact(Links)
    assert links.source == "the annotation of task demo_paraphrase"
    assert (links.pairs, links.matching) == ("zip", "kovaleva")
    assert links.links >= 24


@pytest.mark.slow
def test_two_processes_give_the_other_models_the_tests_of_one(tiny_bert: Path, tmp_path: Path) -> None:
    tables = []
    for devices in (1, 2):
        given = arguments(tiny_bert, tmp_path / str(devices), trainer="ddp_cpu", **{"trainer.devices": devices})
        result = door("analyze", *given)
        assert result.returncode == 0, result.stderr[-2000:]
        tables.append(HeadTable.read(tmp_path / str(devices) / "heads.parquet"))
    one, two = tables
    for stage in ("checkpoint", "initial", "random", "checkpoint-random"):
        columns = set(one.select(measure="frame_relations", stage=stage).table["column"].to_pylist())
        assert ("p_position_corrected" in columns) == (stage != "checkpoint-random")
        for column in columns:
            for a, b in zip(*(each.grid("frame_relations", column, stage, 0) for each in (one, two)), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)
