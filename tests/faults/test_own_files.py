"""Files of a user's own: which rows are judged, and what a run knows of them."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml
from faults.cases import CLAIMED, LATE, Case, Outcome, analyze, parametrized, train
from faults.places import Arrange, both, remove, warm_process, write
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


def next_command_runs(folder: Path, outcome: Outcome) -> None:
    """The checkpoint of the first command that the terminal proposes is accepted as it stands."""
    # A model that learned nothing is only viewed.
    pattern = r"^ *python -m bertsecrets (?:analyze|view) (checkpoint=.*)$"
    (command,) = re.findall(pattern, outcome.stdout, re.MULTILINE)[:1]
    words = (
        "analyze.py",
        shlex.split(command)[0],
        "analysis=disable_heads",
        "ablation.plan_only=true",
        "logger=none",
    )
    again = warm_process[-1].run((*words, "trainer.accelerator=cpu", "progress=false"), folder, seconds=120.0)
    assert again.status == 0, again.stdout + again.stderr


def foreign(name: str, count: int, **settings: object) -> Case:
    """An analysis of somebody else's model."""
    words = analyze(**{**NEW, **CSV, "analysis": "disable_heads", "hydra__run__dir": OUT, **settings})
    check = judged(count, "initialisation", "optimiser steps")
    return Case(f"foreign-{name}", words, r"Report: {folder}/out", 0, both(classifier, held_out()), check=check)


FOREIGN = [
    foreign("all-rows", 39),
    foreign("eval-path-alone", 39, data__path=None, data__eval_path="held_out.csv"),
    foreign("held-out-on-request", 10, data__eval_fraction=0.2),
    Case(
        "foreign-drift-from-nothing-known",
        analyze(**{**NEW, **CSV, "analysis": "drift", "measure": "[drift]"}),
        r"The pretrained model of 'my_model' is unknown, but needed by drift; name it with model=<name>, or another",
        arrange=both(classifier, held_out()),
        leaves=CLAIMED,
    ),
]


RUN = "{folder}/run"
TRAINED = train(**{**CSV, "model": "folder", "task": None, "data__path": "own.csv", "hydra__run__dir": RUN})
OF_RUN = {"checkpoint": "run", "hydra__run__dir": OUT}
SWEEP = ("-m", *TRAINED[1:-1], "sweep.compare=false", "hydra.sweep.dir={folder}/sweep")
OF_FOLDER = tuple({"data=csv": "data=hub", "data.path=own.csv": "data.path=set"}.get(word, word) for word in SWEEP)


def ran(*words: str, place: str = ".") -> Arrange:
    """Run a command to its end, from a folder below the working directory."""

    def arrange(folder: Path) -> None:
        words_in = [warm_process[-1].filled(word, folder) for word in words]
        outcome = warm_process[-1].run(tuple(words_in), folder / place, seconds=300.0)
        assert outcome.status == 0, outcome.stdout + outcome.stderr

    return arrange


TRAINED_RUN = both(held_out(60, "own.csv"), ran(*TRAINED))


def flipped(folder: Path) -> None:
    lines = (folder / "own.csv").read_text("utf-8").splitlines()
    ends = {"0": "1", "1": "0", "l": "l"}
    (folder / "own.csv").write_text("".join(f"{line[:-1]}{ends[line[-1]]}\n" for line in lines), "utf-8")


def read_at(place: str) -> Callable[[Path, Outcome], None]:
    """The analysis and its run have read the same rows, from there."""

    def check(folder: Path, outcome: Outcome) -> None:
        read = [json.loads((folder / name / "rows.json").read_text("utf-8"))["train"] for name in ("run", "out")]
        assert read[0] == read[1]
        assert read[0]["place"] == str(folder / place)

    return check


def noted(*parts: str) -> Callable[[Path, Outcome], None]:
    """The page has notes with these parts."""

    def check(folder: Path, outcome: Outcome) -> None:
        notes = json.loads((folder / "out" / "scores.json").read_text("utf-8"))["notes"]
        assert all(any(part in note for note in notes) for part in parts), notes

    return check


KNOWN = [
    Case(
        "rows-appended",
        analyze(**OF_RUN),
        r"The rows of '{folder}/own.csv' differ from those of the run in 'run' \(split 'train': 60 rows then, 66 "
        r"now\), so some may be training rows; restore them, or evaluate on another file with data.eval_path=<file>",
        arrange=both(TRAINED_RUN, held_out(66, "own.csv")),
        leaves=CLAIMED,
    ),
    Case(
        "rows-with-flipped-labels-again",
        TRAINED,
        r"Folder '{folder}/run' already contains a finished run with other rows \('{folder}/own.csv' has changed "
        r"since\); choose another",
        arrange=both(TRAINED_RUN, flipped),
    ),
    Case(
        "rows-with-flipped-labels-resumed",
        ("train.py", "resume=run"),
        r"The rows of '{folder}/own.csv' have changed since the run in 'run' began \(split 'train': other texts or "
        r"labels in its 60 "
        r"rows\); restore them, or start a new run in another folder",
        arrange=both(TRAINED_RUN, lambda folder: (folder / "run/finished.json").unlink(), flipped),
        leaves=LATE,
    ),
    Case(
        "rows-trained-on-under-another-name",
        analyze(**OF_RUN, data__path="moved.csv", data__eval_fraction=0.5),
        r"data.eval_fraction=0.5 contradicts the run, which held out rows with data.eval_fraction=0.2",
        arrange=both(TRAINED_RUN, lambda folder: (folder / "own.csv").rename(folder / "moved.csv")),
    ),
    Case(
        "rows-of-the-other-folder",
        analyze(**OF_RUN),
        r"Report: {folder}/out",
        0,
        arrange=both(held_out(60, "sub/own.csv"), ran(*TRAINED, place="sub"), held_out(99, "own.csv")),
        check=read_at("sub/own.csv"),
    ),
    Case(
        "rows-of-another-file",
        analyze(**OF_RUN, data__path="new.csv"),
        r"Report: {folder}/out",
        0,
        arrange=both(TRAINED_RUN, write("new.csv", f"text,label\n{rows(31, start=100)}")),
        check=judged(31),
    ),
    Case(
        "rows-trained-on-among-new-ones",
        analyze(**OF_RUN, data__eval_path="more.csv"),
        r"Report: {folder}/out",
        0,
        arrange=both(TRAINED_RUN, remove("own.csv"), write("more.csv", f"text,label\n{rows(31, start=50)}")),
        check=noted(
            "10 of the 31 distinct texts of ",
            "the training or held-out rows of the run in 'run', so scores on them say little about new texts",
        ),
    ),
    Case(
        "rows-that-an-old-run-does-not-know",
        analyze(**OF_RUN),
        r"Report: {folder}/out",
        0,
        arrange=both(TRAINED_RUN, lambda folder: (folder / "run/rows.json").unlink()),
        check=noted("The run in 'run' has no record of its rows; the present rows may differ from its training rows."),
    ),
    Case(
        "rows-sweep-resumed",
        ("train.py", "resume=sweep"),
        r"0 finished, 2 skipped",
        0,
        arrange=both(held_out(60, "own.csv"), ran("train.py", *SWEEP, "seed=1,2")),
        seconds=300.0,
    ),
    Case(
        "rows-sweep-of-a-folder-grown",
        ("train.py", *OF_FOLDER, "seed=1,2", "resume=true"),
        r"1 finished, 1 skipped",
        0,
        arrange=both(held_out(60, "set/train.csv"), ran("train.py", *OF_FOLDER, "seed=1")),
        seconds=300.0,
    ),
]


SPLITS = {"train": "text,label\nnull,1\nNA,0\n" + rows(8), "validation": "text,label\n" + rows(8)}
HUB = {**CSV, "model": "folder", "task": None, "data": "hub", "data__path": "set", "hydra__run__dir": OUT}
NAMED = "run (a=1, ü)"


def folder_of_files(**contents: str) -> Arrange:
    return both(*(write(f"set/{name.replace('_', '-')}.csv", content) for name, content in contents.items()))


REFUSED = [
    Case(
        "labels-a-few-missing",
        train(task="sst2", data="hub", data__root=None, data__path="set"),
        r"2 of the 8 rows of split 'validation' of task 'sst2' have no label \(empty, or -1 in a hub data set\); add "
        r"labels",
        arrange=folder_of_files(
            train=SPLITS["train"].replace("text", "sentence"),
            validation="sentence,label\na,-1\nb,-1\n" + rows(6),
        ),
        leaves=LATE,
    ),
    Case(
        "path-too-long",
        train(**{**HUB, "data": "csv", "data__path": "x" * 300}),
        r"data.path is 'x+…, which cannot be read \(file name too long\); give a readable path",
    ),
    Case(
        "path-of-nobody",
        train(**{**HUB, "data": "csv", "data__path": "~nouser/x.csv"}),
        r"data.path is '~nouser/x.csv', which cannot be read \(Could not determine home directory\.\); give a "
        r"readable path",
    ),
    Case(
        "columns-differ",
        train(**HUB),
        r"could not be loaded \(All the data files must have the same columns, but .*'label'.*train-2.csv",
        arrange=folder_of_files(train=SPLITS["train"], train_2="text\na\nb\n"),
    ),
]


def absolute_path(name: str) -> Callable[[Path, Outcome], None]:
    """The run's configuration and its record of the rows name the same absolute path."""

    def check(folder: Path, outcome: Outcome) -> None:
        (path,) = folder.glob("outputs/*/*/config.yaml")
        assert yaml.safe_load(path.read_text("utf-8"))["data"]["path"] == str(folder / name)
        assert json.loads(path.with_name("rows.json").read_text("utf-8"))["train"]["place"] == str(folder / name)

    return check


READ = [
    Case(
        "names-that-hydra-does-not-read",
        train(**{**CSV, "model": "folder", "task": None, "data__path": "own (1), ü.csv", "data__label": "评论"}),
        r"Report: {folder}/outputs",
        0,
        write("own (1), ü.csv", f"text,评论\n{rows(60)}"),
        check=absolute_path("own (1), ü.csv"),
    ),
    Case(
        "names-in-the-next-command",
        train(**{**HUB, "data": "csv", "data__path": "own.csv", "hydra__run__dir": f"{{folder}}/{NAMED}"}),
        r"Report: {folder}/run",
        0,
        held_out(60, "own.csv"),
        check=next_command_runs,
        seconds=180.0,
    ),
    Case(
        "special-tokens-in-texts",
        train(**{**HUB, "data": "csv", "data__path": "own.csv", "data__eval_path": "new.csv"}),
        r"Report: {folder}/out",
        0,
        both(held_out(60, "own.csv"), write("new.csv", f"text,label\na [SEP] title,0\n[PAD] b,1\n{rows(8, 90)}")),
        check=noted(
            "2 of the 10 examples of split 'validation' contain a special token, such as [SEP], in their texts"
        ),
    ),
]


@parametrized([*FOREIGN, *KNOWN, *REFUSED, *READ])
def test_own_files(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(case, tmp_path)
