"""Probes from a folder of CoNLL-U files to the report, in process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.tasks import task
from data.toy import wordpiece
from families import HEADS, LAYERS, tiny_model
from probes.treebanks import random_sentences
from trainings import quiet_trainer

from bertsecrets.callbacks.run_analysis import RunAnalysis
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.present.probes import PRESENTER
from bertsecrets.probes.analysis import Probes, TrainProbes
from bertsecrets.probes.rows import LABELS, Difference, HiddenState, Probed, ProbeScore, Structural
from bertsecrets.results.rows import FINDINGS
from bertsecrets.results.run import Run
from bertsecrets.results.views import MeasureView

ALL = tuple(name for name in LABELS if name != "right_branching")


def treebank(folder: Path, name: str, count: int, seed: int) -> None:
    """Write random trees as CoNLL-U."""
    lines = []
    for example in random_sentences(count, seed):
        for number, word in enumerate(example.annotations[0].words, start=1):
            lines.append(f"{number}\t{word.form}\t_\tX\t_\t_\t{word.head + 1}\t{word.relation}\t_\t_")
        lines.append("")
    folder.mkdir(exist_ok=True)
    (folder / f"toy-ud-{name}.conllu").write_text("\n".join([*lines, ""]), encoding="utf-8")


def probed(folder: Path, root: Path, **settings: Any) -> tuple[Run, MeasureView]:
    """Train probes on a tiny random model and a treebank; return the run and what it found."""
    words = task("treebank")
    run = Run(folder, "run", "tiny", words.name, "pretrained")
    data = TaskData(words, SourceConfig(root=str(root)), wordpiece(), max_length=32)
    model = tiny_model("bert")
    module = SequenceClassifier(model, words, OptimizerConfig(learning_rate=0.1), ("validation",), {}, seed=0)
    callback = RunAnalysis(TrainProbes(**{"epochs": 1, "replicates": 20, **settings}), run)
    quiet_trainer(folder, [callback], 1).validate(module, datamodule=data, verbose=False)
    return run, MeasureView(run, Probes().declaration())


def test_all_probes_of_a_treebank_end_in_a_table(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    treebank(root, "train", 30, seed=0)
    treebank(root, "dev", 20, seed=1)
    glove = tmp_path / "glove.txt"
    glove.write_text("the 1 2\ncat 2 1\nman 0 1\n", encoding="utf-8")
    # A run that was killed left its attention here.
    (tmp_path / "run" / ".probes-x").mkdir(parents=True)
    (tmp_path / "run" / ".probes-x" / "train").write_bytes(b"0")
    run, view = probed(tmp_path / "run", root, glove=str(glove))
    found, scores, states = view.fact(Probed), view.found(ProbeScore), view.found(HiddenState)
    assert (found.trained_on, found.sentences, found.halves) == (30, 20, False)
    assert [score.probe for score in scores] == list(LABELS)
    assert found.vectors == "glove.txt (2 numbers each)"
    assert 0 < found.without_vector < found.words
    for score in scores:
        assert score.las.value <= score.uas.value
        assert score.uas.low <= score.uas.value <= score.uas.high
        assert (score.control is None) == (score.probe == "right_branching")
        if score.control is not None and score.selectivity is not None:
            assert score.selectivity.value == pytest.approx(score.uas.value - score.control.value)
    assert [score.weights for score in scores[2:]] == [26, 26 + 96, 26, 26 + 96]
    structural = view.fact(Structural)
    assert (structural.chosen_on, [row.state for row in states]) == (3, list(range(LAYERS + 1)))
    [chosen] = [row.uuas.value for row in states if row.chosen]
    assert structural.gain.value == pytest.approx(chosen - states[0].uuas.value)
    # No file of attention or hidden states is left.
    assert {path.name for path in run.folder.iterdir()} == {"experiments.json", "heads.parquet", FINDINGS}
    assert view.value("weight").shape == (LAYERS, HEADS)
    assert np.abs(view.value("weight")).max() > 0
    section = PRESENTER.section(MeasureView(run, run.declarations()[0]))
    assert [len(table.rows) for table in section.tables] == [6, 6, LAYERS + 3]


def test_a_single_file_is_halved_and_a_run_repeats_itself(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    treebank(root, "train", 31, seed=0)
    seen = []
    for name in ("first", "second"):
        _, view = probed(tmp_path / name, root, probes=["attention"], control=False)
        seen.append(
            (
                replace(view.fact(Probed), read_seconds=0.0),
                [replace(row, seconds=0.0) for row in view.found(ProbeScore)],
                view.found(Difference),
            )
        )
    # As text, in which an undefined number equals itself.
    assert repr(seen[0]) == repr(seen[1])
    found, scores, differences = seen[0]
    assert (found.halves, found.trained_on, found.sentences) == (True, 16, 15)
    assert [score.probe for score in scores] == ["right_branching", "attention"]
    assert [(row.first, row.second) for row in differences] == [("attention", "right_branching")]


def test_sentences_that_cannot_be_probed_are_reported(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    treebank(root, "dev", 1, seed=0)
    with pytest.raises(UserError, match=r"too few annotated sentences of at most 32 tokens to train and score"):
        probed(tmp_path / "run", root)
    assert not (tmp_path / "run" / FINDINGS).exists()


def test_a_word_of_a_vector_file_may_hold_spaces(tmp_path: Path) -> None:
    treebank(tmp_path / "toy", "test", 20, seed=0)
    glove = tmp_path / "glove.txt"
    glove.write_text("the 1 2\n. . . 2 1\ncat 0 1\n", encoding="utf-8")
    _, view = probed(tmp_path / "run", tmp_path / "toy", glove=str(glove), probes=["distances_words"], control=False)
    assert view.fact(Probed).vectors == "glove.txt (2 numbers each)"
