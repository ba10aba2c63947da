"""A run's folder: its identity, its experiments and its extras go to disk and back."""

import math
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from bertsecrets.errors import UserError
from bertsecrets.grid import Column
from bertsecrets.results.run import Declaration, Run, plain, read_config, write_config
from bertsecrets.results.scores import RunScores, SetScores, beats_constant

FIRST = Declaration(
    "first",
    "First of all",
    "package.module:First",
    (Column("a", "a – b", "unit", (0.0, math.log(2))), Column("p", "p", role="p_value"), Column("c", "c")),
)
SECOND = Declaration("second", "Second", "package.module:Second")


def a_run(folder: Path, writes: bool = True) -> Run:
    return Run(folder, "r", "m", "t", "pretrained", writes)


def test_declarations_come_back_in_their_order(tmp_path: Path) -> None:
    run = a_run(tmp_path / "new")
    assert run.declarations() == []
    run.declare(FIRST)
    run.declare(SECOND)
    assert a_run(tmp_path / "new").declarations() == [FIRST, SECOND]
    renamed = Declaration("first", "Another title", "package.module:First", (Column("a", "a"),))
    run.declare(renamed, SECOND)
    assert run.declarations() == [renamed, SECOND]


def test_a_process_that_does_not_write_declares_nothing(tmp_path: Path) -> None:
    a_run(tmp_path / "new", writes=False).declare(FIRST)
    assert not (tmp_path / "new").exists()


DAMAGED = {
    "text": "nothing",
    "cut": '[{"name": "first", "title": "First", "ex',
    "no title": '[{"name": "first", "experiment": "m:F", "columns": [{"name": "a", "label": "a"}]}]',
    "columns": '[{"name": "first", "title": "First", "experiment": "m:F", "columns": [7]}]',
}


def test_a_folder_of_an_earlier_format_says_which_version_wrote_it(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.experiments_path.write_text(
        '[{"name": "first", "title": "First", "experiment": "m:F", "columns": [{"name": "a", "label": "a"}]}]'
    )
    (tmp_path / "finished.json").write_text('{"code": "0.1.0+503bc076"}')
    with pytest.raises(
        UserError, match=rf"^'{tmp_path}' was written in another format by version 0\.1\.0\+503bc076; run it again\.$"
    ):
        run.declarations()


@pytest.mark.parametrize("change", DAMAGED)
def test_a_damaged_record_of_experiments_is_an_error(tmp_path: Path, change: str) -> None:
    run = a_run(tmp_path)
    run.experiments_path.write_text(DAMAGED[change])
    with pytest.raises(UserError, match=r"experiments\.json' cannot be read \(.*\); run the analysis again"):
        run.declarations()


def test_a_folder_knows_which_run_it_is(tmp_path: Path) -> None:
    config = {"name": "own", "model": {"name": "bert"}, "task": {"name": "rte"}, "init": "random_normal"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    run = Run.open(tmp_path)
    assert (run.name, run.model, run.task, run.init) == ("own", "bert", "rte", "random_normal")
    # An analysis is of the run that was trained.
    trained = {"name": "trained", "init": "pretrained", "seed": 3}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, "trained": trained}))
    assert (Run.open(tmp_path).name, Run.open(tmp_path).init) == ("trained", "pretrained")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"config\.yaml' cannot be read"),
        ("a: [", r"config\.yaml' cannot be read"),
        ("", "has no configuration"),
        ("- a", "has no configuration"),
        ("a: ${", r"config\.yaml' (cannot be read|has no configuration)"),
        ("name: x", "give a run's folder|give a run folder"),
        ("{name: x, model: bert, task: rte, init: y}", "is not the configuration of a run"),
        ("{trained: 7, model: {name: a}, task: {name: b}}", "is not the configuration of a run"),
    ],
)
def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=message):
        Run.open(tmp_path)


def test_scores_go_to_disk_and_back(tmp_path: Path) -> None:
    sets = {"val": SetScores(100, {"accuracy": 0.8, "pearson": math.nan}, {"accuracy": 0.5, "pearson": math.nan})}
    scores = RunScores(sets, "x", 9, 3.5)
    run = a_run(tmp_path)
    run.write_json(run.scores_path, scores.as_dict())
    assert "NaN" not in run.scores_path.read_text()
    again = RunScores.read(run.scores_path)
    assert (again.step, again.seconds, again.constant_answer) == (9, 3.5, "x")
    accuracy, pearson = again.lines()
    assert (accuracy.name, accuracy.value, accuracy.baseline) == ("val/accuracy", 0.8, 0.5)
    # The standard error of a share p of n: sqrt(p (1 - p) / n).
    assert accuracy.stderr == pytest.approx(0.04)
    assert math.isnan(pearson.value)
    assert math.isnan(pearson.stderr)
    for content in ("{", "[]", '{"sets": {}}', '{"sets": 3}'):
        run.scores_path.write_text(content)
        with pytest.raises(UserError, match="cannot be read as the scores of a run"):
            RunScores.read(run.scores_path)


@pytest.mark.parametrize(
    ("predictions", "labels", "constant", "correlated", "p"),
    [
        # Right where the constant answer is wrong in 3 examples, wrong where it is right in none: 1 / 2^3.
        ([1, 1, 1, 0, 0], [1, 1, 1, 0, 0], 0, False, 1 / 8),
        # Two for, one against: P(at least 2 of 3) = 1 / 2.
        ([1, 1, 0, 1], [1, 1, 0, 0], 0, False, 1 / 2),
        ([0, 0, 0], [1, 0, 1], 0, False, 1.0),
        ([], [], 0, False, math.nan),
        ([1, 2], [3, 3], 3, True, math.nan),
        ([1, 0, 1], [1, 1, 1], 1, False, math.nan),
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0], 2, True, 1.0),
    ],
)
def test_a_constant_answer_is_beaten_only_by_evidence(
    predictions: list[float], labels: list[float], constant: float, correlated: bool, p: float
) -> None:
    assert beats_constant(predictions, labels, constant, correlated=correlated) == pytest.approx(p, nan_ok=True)


@pytest.mark.parametrize("name", ["begun", "experiments", "finished", "scores", "wandb", "a/b", "..", ".hidden", ""])
def test_names_of_the_folders_own_files_are_refused(tmp_path: Path, name: str) -> None:
    run = a_run(tmp_path / "new")
    with pytest.raises(UserError, match=r"is called .*; give its class another name"):
        run.declare(Declaration(name, "Title", "package.module:Mine"))
    assert not (tmp_path / "new").exists()


def test_the_copy_is_resolved_and_read_back(tmp_path: Path) -> None:
    write_config(OmegaConf.create({"seed": 3, "name": "run-${seed}"}), tmp_path)
    assert plain(read_config(tmp_path)) == {"seed": 3, "name": "run-3"}


def test_an_analysis_records_how_far_the_analysed_run_lies(tmp_path: Path) -> None:
    config = OmegaConf.create({"trained": {"name": "run", "folder": str(tmp_path / "run"), "from_here": "elsewhere"}})
    (tmp_path / "sweep" / "analysis").mkdir(parents=True)
    write_config(config, tmp_path / "sweep" / "analysis")
    assert read_config(tmp_path / "sweep" / "analysis").trained.from_here == str(Path("..", "..", "run"))
    assert config.trained.from_here == "elsewhere"
