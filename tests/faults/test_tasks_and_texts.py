"""Data that cannot be read, texts that nobody should send, and scores that are undefined."""

import os
from collections.abc import Sequence
from pathlib import Path

from faults.cases import LATE, Case, analyze, bounded, pages_say, parametrized, train
from faults.places import Arrange, both, directory, forbid, write
from faults.runner import Warm

HEADER = "sentence\tlabel"
DATA = {"data__root": "{folder}/data"}
FRESH = {"checkpoint": "initial", "model": "folder", "model__path": "{model}", "task": "sst2", "data": "tsv", **DATA}


def sentences(count: int, label: int | None = None) -> list[str]:
    """Rows with both labels in turn, or with one."""
    labels = [number % 2 if label is None else label for number in range(count)]
    return [f"film number {number} is {('bad', 'good')[value]}\t{value}" for number, value in enumerate(labels)]


def tsv(
    train_rows: Sequence[str] | bytes,
    dev_rows: Sequence[str] | bytes | None = None,
    folder: str = "SST-2",
    header: str = HEADER,
) -> Arrange:
    def arrange(root: Path) -> None:
        place = root / "data" / folder
        place.mkdir(parents=True)
        for name, rows in (("train", train_rows), ("dev", train_rows if dev_rows is None else dev_rows)):
            content = rows if isinstance(rows, bytes) else ("\n".join([header, *rows]) + "\n").encode()
            (place / f"{name}.tsv").write_bytes(content)

    return arrange


def similarity(score: str, count: int = 12) -> Arrange:
    names = ["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score"]
    rows = [f"{number}\tg\tf\ty\to\ts\ts\tfilm {number}\tmovie {number}\t{score}" for number in range(count)]
    return tsv(rows, folder="STS-B", header="\t".join(names))


def acceptability(label: str = "1", count: int = 12) -> Arrange:
    rows = "\n".join(f"gj04\t{label}\t\tfilm {number} is good" for number in range(count))
    return tsv(rows.encode(), folder="CoLA")


def data(name: str, sentence: str, arrange: Arrange | None = None, **settings: object) -> Case:
    """A refusal of the data."""
    return Case(
        name, train(**{**DATA, **settings}), sentence, arrange=arrange, leaves=LATE, check=bounded, seconds=20.0
    )


def undefined(
    name: str, arrange: Arrange, *said: str, task: str = "sst2", analysis: str | None = None, **more: object
) -> Case:
    """A run on data whose scores are undefined, which ends in a report."""
    words = (
        train(**DATA, task=task, **more)
        if analysis is None
        else analyze(**{**FRESH, "task": task, "analysis": analysis, **more})
    )
    return Case(
        f"undefined-{name}", words, r"Report: {folder}/outputs", status=0, arrange=arrange, check=pages_say(*said)
    )


FILES = [
    data("folder-is-file", r"data.root '{folder}/data' is not a directory", write("data", "x")),
    data(
        "file-is-folder",
        r"train.tsv' cannot be read \(is a directory\)",
        directory("data/SST-2/train.tsv"),
    ),
    data(
        "file-forbidden",
        r"dev.tsv' cannot be read \(permission denied\)",
        both(tsv(sentences(4)), forbid("data/SST-2/dev.tsv")),
    ),
    data(
        "file-loop", r"train.tsv' cannot be read", both(tsv(sentences(4)), lambda f: _loop(f / "data/SST-2/train.tsv"))
    ),
    data("column-hostile", r"has no column 'sentence'", tsv(["a\t1"], header="\x1b[31mred\u202e\tlabel")),
    data("label-escape", r"train.tsv:3: label '\\x1b\[31mred\\u202e'", tsv(["a\t1", "b\t\x1b[31mred\u202e"])),
    data(
        "text-huge",
        r"train.tsv:3: the row is longer than 1,000,000 characters",
        tsv(["a\t1", "b " * 50_000_000 + "\t1"]),
    ),
    data("score-escape", r"score '\\x1b\[0m' of task", similarity("\x1b[0m"), task="stsb"),
]


def _loop(path: Path) -> None:
    path.unlink()
    os.symlink(path.name, path)


RUN = [
    Case(f"text-{name}", train(**DATA), r"Report: {folder}/outputs", status=0, arrange=tsv(rows), check=pages_say())
    for name, rows in (
        ("hostile", ["a\x1b[31m\u202e <script>alert(1)</script>\t1", "b\u2066\x07\t0"] * 4),
        ("nul", ["fi\0lm\t1", "b\t0"] * 4),
        ("emoji", ["👩‍👩‍👧‍👦 👍🏽\t1", "𝔣𝔦𝔩𝔪 ﷽\t0"] * 4),
        ("long", ["film " * 20_000 + "\t1", "b\t0"] * 2),
    )
]

UNDEFINED = [
    undefined("constant-labels", tsv(sentences(8), sentences(8, 1))),
    undefined("constant-everywhere", tsv(sentences(8, 1))),
    undefined("one-evaluated", tsv(sentences(8), sentences(1)), "On 1 development example the model's"),
    undefined("one-trained", tsv(sentences(1), sentences(8))),
    undefined("constant-scores", similarity("3.0"), "val/pearson is undefined", task="stsb"),
    undefined("constant-matthews", acceptability(), task="cola"),
    *(
        undefined(f"{analysis}-{name}", arrange, analysis=analysis)
        for analysis in ("drift", "patterns", "features", "scores", "full")
        for name, arrange in (
            ("one", tsv(sentences(8), sentences(1))),
            ("constant", tsv(sentences(8), sentences(8, 1))),
        )
    ),
    undefined(
        "measures-one",
        tsv(sentences(8), sentences(1)),
        analysis="scores",
        measure="[entropy,offsets]",
        compare_with="[initial,random]",
    ),
    undefined("disabling-constant", tsv(sentences(8), sentences(8, 1)), analysis="disable_heads"),
    undefined("disabling-matthews", acceptability(), analysis="disable_layers", task="cola"),
]


@parametrized([*FILES, *RUN, *UNDEFINED])
def test_tasks_and_texts(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(case, tmp_path)
