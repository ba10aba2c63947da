"""Shapley values, relevance and direct effects through the door: two processes give the numbers of one."""

from pathlib import Path

import numpy as np
import pytest
from cli.runs import door, small

from bertsecrets.results.run import CHECKPOINT
from bertsecrets.results.table import HeadTable

pytestmark = pytest.mark.slow

COLUMNS = (
    *(("shapley", column) for column in ("loss", "accuracy")),
    *(("relevance", column) for column in ("relevance", "signed")),
    *(("direct_effect", column) for column in ("direct", "total", "undone")),
)
ANALYSES = (
    "analysis=shapley",
    "analysis.shapley.permutations=3",
    "analysis.shapley.max_examples=null",
    "+analysis.relevance._target_=bertsecrets.importance.relevance.RelevanceOfHeads",
    "+analysis.direct_effect._target_=bertsecrets.ablation.direct.EffectsOfHeads",
    "ablation.mode=resample",
    "ablation.reference_examples=40",
)


def test_two_processes_give_the_numbers_of_one(tiny_bert: Path, tmp_path: Path) -> None:
    tables = {}
    for name, extra in (("one", []), ("two", ["trainer=ddp_cpu", "trainer.devices=2"])):
        settings = [text for text in small(tiny_bert, tmp_path / name) if not text.startswith("trainer.max_epochs")]
        result = door("analyze", "checkpoint=initial", *ANALYSES, *settings, *extra)
        assert result.returncode == 0, result.stderr
        tables[name] = HeadTable.read(tmp_path / name / "heads.parquet")
    for measure, column in COLUMNS:
        one, two = (table.grid(measure, column, CHECKPOINT, 0) for table in (tables["one"], tables["two"]))
        assert np.isfinite(one[0]).all()
        np.testing.assert_allclose(two[0], one[0], atol=1e-6, err_msg=f"{measure}/{column}")
        # The standard errors of sums of squares lose digits.
        np.testing.assert_allclose(two[1], one[1], atol=1e-5, err_msg=f"{measure}/{column}")
        assert (two[2] == one[2]).all()
    assert (tables["one"].grid("relevance", "relevance", CHECKPOINT, 0)[2] == 37).all()
