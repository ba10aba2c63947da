"""Files of a user's own: which rows are judged, and what a run knows of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from faults.cases import CLAIMED, LATE, Case, Outcome, analyze, parametrized
from faults.places import Arrange, both, warm_process, write
from faults.runner import Warm
from transformers import AutoModelForSequenceClassification

NEW = {"model": None, "model__path": None, "task": None, "checkpoint": "my_model"}
CSV = {"data": "csv", "data__root": None, "data__path": "held_out.csv", "data__text": "text", "data__label": "label"}
OUT = "{folder}/out"


def rows(count: int, start: int = 0) -> str:
    """Lines of a CSV file with both labels in turn."""
    return "".join(
        f"film number {row} is {('bad', 'good')[row % 2]},{row % 2}\n" for row in range(start, start + count)
    )


def held_out(count: int = 39, name: str = "held_out.csv") -> Arrange:
    return write(name, f"text,label\n{rows(count)}")


def classifier(folder: Path) -> None:
    """A model of somebody else's in ``my_model``, with the tokenizer of the tiny one."""
    shutil.copytree(warm_process[-1].model, folder / "my_model")
    names = {0: "0", 1: "1"}
    model = AutoModelForSequenceClassification.from_pretrained(folder / "my_model", id2label=names, num_labels=2)
    model.save_pretrained(folder / "my_model")


def judged(count: int, *absent: str) -> Callable[[Path, Outcome], None]:
    """So many rows were judged, and the page says nothing of the model that nobody knows."""

    def check(folder: Path, outcome: Outcome) -> None:
        scores = json.loads((folder / "out" / "scores.json").read_text("utf-8"))
        assert [entry["count"] for entry in scores["sets"].values()] == [count]
        page = (folder / "out" / "report.html").read_text("utf-8")
        for text in absent:
            assert text not in page, text

    return check


def foreign(name: str, count: int, **settings: object) -> Case:
    """An analysis of somebody else's model."""
    words = analyze(**{**NEW, **CSV, "analysis": "disable_heads", "hydra__run__dir": OUT, **settings})
    check = judged(count, "initialisation", "optimiser steps")
    return Case(f"foreign-{name}", words, r"Report: {folder}/out", 0, both(classifier, held_out()), check=check)


FOREIGN = [
    foreign("all-rows", 39),
    foreign("eval-path-alone", 39, data__path=None, data__eval_path="held_out.csv"),
    foreign("held-out-on-request", 8, data__eval_fraction=0.2),
    Case(
        "foreign-pruned-on-the-rows-that-test",
        analyze(**{**NEW, **CSV, "analysis": "prune"}),
        r"Choosing heads to remove needs rows apart from those that test it, but all rows are evaluated; give data.eval_fraction=0.5",
        arrange=both(classifier, held_out()),
        leaves=LATE,
    ),
    Case(
        "foreign-drift-from-nothing-known",
        analyze(**{**NEW, **CSV, "analysis": "drift", "measure": "[drift]"}),
        r"It is not known what 'my_model' was fine-tuned from, with which drift compares; name it with model=<name>, or another",
        arrange=both(classifier, held_out()),
        leaves=CLAIMED,
    ),
]


@parametrized(FOREIGN)
def test_own_files(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm_process.append(warm)
    warm.check(case, tmp_path)
