"""Probes from a folder of CoNLL-U files to the report, in process."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
from data.tasks import task
from data.toy import wordpiece
from families import HEADS, LAYERS, tiny_model
from probes.treebanks import random_sentences
from pytorch_lightning.callbacks import Callback, RichProgressBar

from bertsecrets.callbacks.probes import TrainProbes
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.settings import OptimizerConfig
from bertsecrets.probes.experiment import Probes
from bertsecrets.probes.record import LABELS, ProbesRecord
from bertsecrets.results.run import Run
from bertsecrets.results.views import Comparison, MeasureView, Replicates

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


def probed(folder: Path, root: Path, bar: Callback | None = None, **settings: Any) -> tuple[Run, ProbesRecord]:
    """Train probes on a tiny random model and a treebank; return the run and its record."""
    words = task("treebank")
    run = Run(folder, "run", "tiny", words.name, "pretrained")
    data = TaskData(words, SourceConfig(root=str(root)), wordpiece(), max_length=32)
    model = tiny_model("bert")
    module = SequenceClassifier(model, words, OptimizerConfig(learning_rate=0.1), ("validation",), {}, seed=0)
    callback = TrainProbes(run, **{"epochs": 1, "replicates": 20, **settings})
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[callback] if bar is None else [callback, bar],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=bar is not None,
        use_distributed_sampler=False,
        default_root_dir=str(folder),
    )
    trainer.validate(module, datamodule=data, verbose=False)
    record = ProbesRecord.read(MeasureView(run, Probes().declaration()).extras)
    assert record is not None
    return run, record


def test_all_probes_of_a_treebank_end_in_a_table(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    treebank(root, "train", 30, seed=0)
    treebank(root, "dev", 20, seed=1)
    glove = tmp_path / "glove.txt"
    glove.write_text("the 1 2\ncat 2 1\nman 0 1\n", encoding="utf-8")
    # A run that was killed left its attention here.
    (tmp_path / "run" / ".probes-x").mkdir(parents=True)
    (tmp_path / "run" / ".probes-x" / "train").write_bytes(b"0")
    run, record = probed(tmp_path / "run", root, glove=str(glove))
    assert (record.trained_on, record.sentences, record.halves) == (30, 20, False)
    assert [score.name for score in record.scores] == list(LABELS)
    assert record.vectors == "glove.txt (2 numbers each)"
    assert 0 < record.without_vector < record.words
    for score in record.scores:
        assert score.las.value <= score.uas.value
        assert score.uas.low <= score.uas.value <= score.uas.high
        assert (score.control is None) == (score.name == "right_branching")
        if score.control is not None and score.selectivity is not None:
            assert score.selectivity.value == pytest.approx(score.uas.value - score.control.value)
    assert [score.weights for score in record.scores[2:]] == [26, 26 + 96, 26, 26 + 96]
    structural = record.structural
    assert structural is not None
    assert (structural.chosen_on, len(structural.uuas)) == (3, LAYERS + 1)
    # No file of attention or hidden states is left.
    left = {path.name for path in run.folder.iterdir()}
    assert left == {"experiments.json", "heads.parquet", "probes.json"}

    view = MeasureView(run, run.declarations()[0])
    assert view.value("weight").shape == (LAYERS, HEADS)
    assert np.abs(view.value("weight")).max() > 0
    section = Probes.describe(view)
    assert section is not None
    assert [row[0] for row in section.tables[0].rows] == list(LABELS.values())
    attention = record.score("attention")
    assert attention is not None
    uas = attention.uas
    assert section.tables[0].rows[4][1] == f"{100 * uas.value:.1f} [{100 * uas.low:.1f}, {100 * uas.high:.1f}]"
    assert len(section.tables[1].rows) == 6
    labels = ["neighbouring words", "the embeddings", *(f"layer {layer}" for layer in range(LAYERS))]
    labels[1 + structural.state] += ", chosen"
    assert [row[0] for row in section.tables[2].rows] == [*labels, "chosen less the embeddings"]
    assert f"finds {100 * structural.chosen.value:.1f} % of the trees' edges" in section.findings[2]
    assert [block.name for block in section.figures] == ["probes", "probes_weights"]
    assert f"finds the syntactic heads of {100 * uas.value:.1f} % of the words of treebank" in section.findings[0]
    scalars = Probes.scalars(view)
    assert scalars["attention/uas"] == uas.value
    assert scalars["structural/uuas"] == structural.chosen.value
    assert "right_branching/selectivity" not in scalars
    compared = Probes.compare(Comparison({"a": Replicates([view]), "b": Replicates([view, view])}))
    assert compared is not None
    assert compared.paragraphs[0].endswith("; mean over 1 to 2 seeds.")
    assert list(compared.tables[0].rows[4]) == ["attention", f"{100 * uas.value:.1f}", f"{100 * uas.value:.1f}"]


def test_a_single_file_is_halved_and_a_run_repeats_itself(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    treebank(root, "train", 31, seed=0)
    records = []
    for name in ("first", "second"):
        run, record = probed(tmp_path / name, root, probes=["attention"], control=False)
        assert json.loads((run.folder / "probes.json").read_text("utf-8"))["model"]["halves"]
        records.append(replace(record, read_seconds={}, scores=[replace(one, seconds=0.0) for one in record.scores]))
    assert records[0] == records[1]
    assert (records[0].trained_on, records[0].sentences) == (16, 15)
    assert [score.name for score in records[0].scores] == ["right_branching", "attention"]
    assert [(one.first, one.second) for one in records[0].differences] == [("attention", "right_branching")]


def test_sentences_that_cannot_be_probed_are_reported(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    treebank(root, "dev", 1, seed=0)
    with pytest.raises(UserError, match=r"too few annotated sentences of at most 32 tokens to train and score"):
        probed(tmp_path / "run", root)
    treebank(root, "dev", 8, seed=0)
    glove = tmp_path / "glove.txt"
    glove.write_text("the 1 2\ncat 2\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"glove.txt:2: 1 numbers after the word 'cat', but 2 on the lines before"):
        probed(tmp_path / "run", root, glove=str(glove))
    assert not (tmp_path / "run" / "probes.json").exists()


def test_the_training_leaves_the_live_display_around_it_alone(tmp_path: Path) -> None:
    treebank(tmp_path / "toy", "test", 20, seed=0)
    _, record = probed(
        tmp_path / "run", tmp_path / "toy", RichProgressBar(), probes=["attention"], control=False, replicates=5
    )
    assert record.halves


def test_a_word_of_a_vector_file_may_hold_spaces(tmp_path: Path) -> None:
    treebank(tmp_path / "toy", "test", 20, seed=0)
    glove = tmp_path / "glove.txt"
    glove.write_text("the 1 2\n. . . 2 1\ncat 0 1\n", encoding="utf-8")
    _, record = probed(tmp_path / "run", tmp_path / "toy", glove=str(glove), probes=["distances_words"], control=False)
    assert record.vectors == "glove.txt (2 numbers each)"
    glove.write_text("the 1 2\nman 3 2 1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"glove\.txt:2: 3 numbers after the word 'man', but 2"):
        probed(tmp_path / "other", tmp_path / "toy", glove=str(glove), probes=["distances_words"], control=False)
