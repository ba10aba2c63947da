"""What the benchmark of the papers' pages stores, and what the documentation shows of it."""

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import papers


def test_every_stored_score_is_of_a_run_that_is_made() -> None:
    stored = json.loads(papers.RESULTS.read_text("utf-8"))
    folder = Path()
    made = chain(
        papers.jobs(folder, folder, folder),
        papers.dark_secrets(folder, folder, "32-true"),
        papers.questions(folder, folder, folder, "32-true"),
    )
    assert {*stored["scores"], *stored["minutes"]} <= {name for name, _ in made}


def test_agreement_of_tasks_is_that_of_mean_effects() -> None:
    draw = np.random.default_rng(0)
    effects = {"rte": draw.normal(size=(3, 72)), "stsb": draw.normal(size=(2, 72))}
    expected = stats.spearmanr(effects["rte"].mean(0), effects["stsb"].mean(0)).statistic
    assert papers.shared_heads(effects, 6)["rte, stsb"][0] == pytest.approx(expected)


def test_agreement_with_figure_8_is_that_of_its_grid(tmp_path: Path) -> None:
    theirs_LH = np.arange(144.0).reshape(12, 12)
    (tmp_path / "fig8.json").write_text(json.dumps({"MRPC": theirs_LH.tolist(), "QNLI": theirs_LH.tolist()}))
    agreement = papers.figure_8({"mrpc": -np.arange(144.0)[None], "rte": np.zeros((1, 144))}, tmp_path)
    assert set(agreement) == {"mrpc"}
    assert agreement["mrpc"]["seeds"] == 1
    assert agreement["mrpc"]["heads"][0] == pytest.approx(-1)
    assert agreement["mrpc"]["layers"][0] == pytest.approx(-1)


def test_a_page_made_alone_leaves_the_others_as_they_are_stored() -> None:
    stored = json.loads(papers.RESULTS.read_text("utf-8"))
    nothing = {"tables": [], "scores": {}, "minutes": {}, "blocking": {}, "figure_8": {}, "shared_heads": {}}
    assert papers.merged(stored, nothing) == stored
    table = {"page": "michel2019", "section": "s", "caption": "c", "header": ["a"], "rows": [["1"]]}
    merged = papers.merged(stored, {**nothing, "tables": [table], "scores": {"sst2-1": {"count": 1}}})
    assert [row for row in merged["tables"] if row["page"] == "michel2019"] == [table]
    others = [row for row in stored["tables"] if row["page"] != "michel2019"]
    assert [row for row in merged["tables"] if row["page"] != "michel2019"] == others
    assert merged["scores"] == {**stored["scores"], "sst2-1": {"count": 1}}


def test_telephone_speech_is_told_from_writing_by_its_form(tmp_path: Path) -> None:
    rows = ["i guess so uh", "He left.", "yes. it is", "Texas is big", "\N{LINE SEPARATOR}um"]
    (tmp_path / "train.tsv").write_text("of all genres", "utf-8")
    lines = [
        "index\tsentence1\tsentence2\tgold_label",
        *(f"{i}\t{text}\tIt is.\tneutral" for i, text in enumerate(rows)),
    ]
    (tmp_path / "dev_matched.tsv").write_text("\n".join([*lines, ""]), "utf-8")
    papers.split_genres(tmp_path, tmp_path / "split")
    written = (tmp_path / "split" / "written.tsv").read_text("utf-8")
    telephone = (tmp_path / "split" / "telephone.tsv").read_text("utf-8")
    assert written == "\n".join([lines[0], *lines[2:5], ""])
    assert telephone == "\n".join([lines[0], lines[1], lines[5], ""])
    assert (tmp_path / "split" / "train.tsv").read_text("utf-8") == "of all genres"
