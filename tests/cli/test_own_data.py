"""``data=csv`` and ``data=hub`` without a task: the command line is completed, and the run knows its data."""

import json
from pathlib import Path

import pytest
from cli.runs import composed, parsed, ran, small
from omegaconf import OmegaConf

from bertsecrets.cli.arguments import own_data
from bertsecrets.cli.settings import read_settings
from bertsecrets.errors import UserError

TRICKY = ["it's [good], {not: bad}", "a\\", "true", "null", "5"]


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """A file whose classes Hydra's grammar and YAML would read as something else."""
    lines = [f'text {i},"{TRICKY[i % 5]}"' for i in range(60)]
    path = tmp_path / "my reviews.csv"
    path.write_text("\n".join(["review,verdict", *lines]), "utf-8")
    return path


def own(reviews: Path) -> list[str]:
    return ["data=csv", f"data.path='{reviews}'", "data.text=review", "data.label=verdict"]


def completed(*arguments: str, command: str = "train") -> list[str]:
    return own_data(parsed(arguments, command))


def test_the_completed_command_line_holds_the_task(reviews: Path) -> None:
    given = [*own(reviews), "task.metrics=[matthews]"]
    added = completed(*given)
    task = read_settings(composed([*given, *added])).task
    assert task.labels == tuple(sorted(TRICKY, key=lambda name: (5.0 if name == "5" else 0.0, name)))
    assert (task.name, task.metrics, task.evaluation) == ("my_reviews", ("matthews",), {"val": "held_out"})
    # A job of a sweep gets the completed command line.
    assert completed(*given, *added) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data=csv"], "data=csv needs data.path=<file>"),
        (["task=own"], "task=own needs your own data: give data=csv data.path=<file>"),
        (["task=mrpc", "data=hub", "data.text=x"], "data.text is for data without a task, but task=mrpc is given"),
        (
            ["experiment=questions", "data=hub", "data.dataset=foo/bar", "data.text=review"],
            "'data.text=review' is for data without a task, but experiment=questions sets its own tasks; remove one "
            "of them",
        ),
        (["experiment=questions", "data=csv", "data.path=a.csv"], "'data=csv' is for data without a task"),
        (["-m", "data=csv", "data.path=a.csv,b.csv"], "'data.path=a.csv,b.csv' lists several data sets"),
        (
            ["data=csv", "data.path=a.csv", "data.label=[a,b]"],
            "data.label is ['a', 'b']; expected the name of one column, as each row has one label",
        ),
        (["data=csv", "data.path=a.csv", "data.txt=a"], "Unknown key 'data.txt'; did you mean 'text'?"),
    ],
)
def test_mistakes_are_reported_before_anything_is_read(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        completed(*arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["experiment=questions"],
        ["experiment=questions", "data=hub", "data.path=a"],
        [],
        ["task=mrpc", "data=hub"],
        ["data=hub"],
        ["-m", "task=mrpc,rte"],
        ["data=demo", "seed=1"],
    ],
)
def test_other_command_lines_are_left_alone(arguments: list[str]) -> None:
    assert completed(*arguments) == []


def test_an_experiment_is_run_on_own_data_if_the_task_is_named(reviews: Path) -> None:
    assert "task.name=my_reviews" in completed("experiment=questions_quick", "task=own", *own(reviews))


def test_the_shown_configuration_is_that_of_the_run(reviews: Path) -> None:
    shown = ran("train", *own(reviews), "--cfg", "job").stdout
    assert OmegaConf.create(shown).task.name == "my_reviews"


def test_a_run_on_a_csv_file_is_analysed_without_naming_it(reviews: Path, tiny_bert: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick = small(tiny_bert, run, callbacks="none", measure="[]", trainer__max_epochs=1)
    ran("train", *own(reviews), *(setting for setting in quick if not setting.startswith("task=")))
    settings = ["analysis=scores", "measure=[]", "trainer.accelerator=cpu", "logger=none", "progress=false"]
    ran("analyze", f"checkpoint={run}", *settings, f"hydra.run.dir={tmp_path / 'analysis'}")
    scores = [json.loads((folder / "scores.json").read_text("utf-8")) for folder in (run, tmp_path / "analysis")]
    assert scores[0]["sets"]["val"]["model"] == scores[1]["sets"]["val"]["model"]
    held = scores[1]["sets"]["val"]["count"]
    assert (
        f"{held} of the 60 training rows are held out, the same in every run, chosen by a hash" in scores[1]["notes"][0]
    )
