"""``sweeper=optuna``: what it searches, what it asks for, how it resumes, and what it refuses."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from hydra.core.utils import JobReturn, JobStatus
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from bertsecrets.cli.composition import check
from bertsecrets.errors import UserError
from bertsecrets.settings import CONF
from bertsecrets.sweeps.hydra_arguments import parse_arguments, parse_overrides
from bertsecrets.sweeps.search import BEST, STUDIES, Search, searched

Job = tuple[str, ...]
RATE = "rate=tag(log, interval(1e-5, 1e-1))"
"""Searched where the best value is 1e-3."""


def score(job: Job) -> float:
    """Highest, 0, for a rate of 1e-3 and size 4."""
    values = dict(line.split("=") for line in job)
    return -((math.log10(float(values.get("rate", "1e-3"))) + 3) ** 2) - abs(int(values.get("size", "4")) - 4)


class Launcher:
    """Runs jobs in place and keeps what it was given."""

    def __init__(self, objective: Callable[[Job], float | None]) -> None:
        self.objective = objective
        self.batches: list[list[Job]] = []

    @property
    def jobs(self) -> list[Job]:
        return [job for batch in self.batches for job in batch]

    def launch(self, jobs: Sequence[Job], initial_job_idx: int) -> list[JobReturn]:
        assert initial_job_idx >= len(self.jobs)
        self.batches.append([tuple(job) for job in jobs])
        returns = []
        for job in jobs:
            returned = JobReturn(status=JobStatus.COMPLETED)
            returned.return_value = self.objective(tuple(job))
            returns.append(returned)
        return returns


def search(
    folder: Path, *arguments: str, objective: Callable[[Job], float | None] = score, **settings: Any
) -> Launcher:
    given = {"direction": "maximize", "n_trials": 6, "n_jobs": 1, "sampler": "tpe", "seed": 1, "params": {}}
    folder.mkdir(exist_ok=True)
    sweeper = Search(**{**given, **settings})
    launcher = Launcher(objective)
    sweeper.launcher = launcher  # type: ignore[assignment]
    sweeper.folder = folder
    sweeper.sweep(list(arguments))
    return launcher


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("rate=interval(0.1, 0.5)", FloatDistribution(0.1, 0.5)),
        (RATE, FloatDistribution(1e-5, 1e-1, log=True)),
        ("size=int(interval(1, 8))", IntDistribution(1, 8)),
        # A range of Hydra ends before its stop.
        ("size=range(1, 8, 3)", IntDistribution(1, 7, step=3)),
        ("size=range(8, 1, -3)", IntDistribution(2, 8, step=3)),
        ("rate=range(0.25, 1, 0.25)", CategoricalDistribution(["0.25", "0.5", "0.75"])),
        ("task=mrpc,rte", CategoricalDistribution(["mrpc", "rte"])),
        ("measure=[drift],[drift,entropy]", CategoricalDistribution(["[drift]", "[drift,entropy]"])),
    ],
)
def test_what_a_setting_is_searched_over(line: str, values: object) -> None:
    assert searched(parse_overrides([line])[0]) == values


def test_the_best_of_all_combinations_is_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = search(tmp_path, "rate=0.0001,0.001,0.01", "size=range(2,5)", "task=rte", n_trials=40, sampler="random")
    combinations = set(itertools.product(["0.0001", "0.001", "0.01"], "234"))
    assert {(job[1][5:], job[2][5:]) for job in launcher.jobs} == combinations
    assert {job[0] for job in launcher.jobs} == {"task=rte"}
    best = yaml.safe_load((tmp_path / BEST).read_text())
    assert best == {"name": "optuna", "best_params": {"rate": "0.001", "size": 4}, "best_value": 0.0}
    assert capsys.readouterr().out == "Best of 40: rate=0.001 size=4 (0)\n"


def test_the_lowest_objective_wins_where_it_is_minimized(tmp_path: Path) -> None:
    launcher = search(tmp_path, "size=range(1,9)", direction="minimize", objective=lambda job: -score(job), n_trials=20)
    assert yaml.safe_load((tmp_path / BEST).read_text())["best_value"] == min(-score(job) for job in launcher.jobs)


def test_a_resumed_search_asks_for_the_same_jobs_as_one_without_interruption(tmp_path: Path) -> None:
    whole = search(tmp_path / "whole", RATE, "size=1,4,9", n_trials=13)
    calls = 0

    def interrupted(job: Job) -> float | None:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise KeyboardInterrupt
        # A job that failed for a reason of the moment.
        return None if calls == 3 else score(job)

    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "broken", RATE, "size=1,4,9", n_trials=13, objective=interrupted)
    resumed = search(tmp_path / "broken", RATE, "size=1,4,9", n_trials=13)
    # What was asked after the failure was asked without its objective; the trials are run again as they were.
    assert resumed.jobs[:4] == whole.jobs[:4]
    once_more = search(tmp_path / "broken", RATE, "size=1,4,9", n_trials=13)
    assert once_more.jobs == resumed.jobs
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "killed", RATE, n_trials=13, objective=interrupted_at(12))
    assert search(tmp_path / "killed", RATE, n_trials=13).jobs == search(tmp_path / "other", RATE, n_trials=13).jobs


def interrupted_at(number: int) -> Callable[[Job], float]:
    calls = itertools.count(1)

    def objective(job: Job) -> float:
        if next(calls) == number:
            raise KeyboardInterrupt
        return score(job)

    return objective


def test_a_search_grows_from_the_jobs_that_it_has(tmp_path: Path) -> None:
    few = search(tmp_path / "a", RATE, n_trials=12)
    more = search(tmp_path / "a", RATE, n_trials=15)
    assert more.jobs[:12] == few.jobs
    assert more.jobs == search(tmp_path / "b", RATE, n_trials=15).jobs
    studies = optuna.get_all_study_names(f"sqlite:///{tmp_path / 'a' / STUDIES}")
    assert studies == ["command 1", "command 2"]


def test_jobs_start_together_and_those_of_the_same_settings_once(tmp_path: Path) -> None:
    launcher = search(tmp_path, "size=3,4", n_trials=7, n_jobs=3, sampler="random")
    assert [len(batch) == len(set(batch)) for batch in launcher.batches] == [True] * 3
    assert {len(batch) for batch in launcher.batches} == {1, 2}
    study = optuna.load_study(study_name="command 1", storage=f"sqlite:///{tmp_path / STUDIES}")
    assert [trial.value for trial in study.trials] == [
        score((f"size={trial.params['size']}",)) for trial in study.trials
    ]
    assert len(study.trials) == 7


def test_a_job_without_an_objective_has_failed_and_the_search_goes_on(tmp_path: Path) -> None:
    scores = iter([None, math.nan, 0.5])
    search(tmp_path, "size=range(1,9)", n_trials=3, objective=lambda job: next(scores))
    study = optuna.load_study(study_name="command 1", storage=f"sqlite:///{tmp_path / STUDIES}")
    assert [trial.state.name for trial in study.trials] == ["FAIL", "FAIL", "COMPLETE"]
    assert yaml.safe_load((tmp_path / BEST).read_text())["best_value"] == 0.5
    search(tmp_path / "none", "size=range(1,9)", n_trials=2, objective=lambda job: None)
    assert not (tmp_path / "none" / BEST).exists()


def test_values_of_a_foreign_database_do_not_reach_a_job(tmp_path: Path) -> None:
    study = optuna.create_study(storage=f"sqlite:///{tmp_path / STUDIES}")
    for name, value in {"task": "x._target_=os.system", "+callbacks.x._target_": "os.system", "size": "1]"}.items():
        trial = study.ask({name: CategoricalDistribution([value])})
        study.tell(trial, 0.0)
    jobs = search(tmp_path, "task=mrpc,rte", "size=int(interval(1, 8))", n_trials=3, objective=lambda job: 0.0).jobs
    assert len(jobs) == 3
    for job in jobs:
        values = dict(line.split("=") for line in job)
        assert values["task"] in ("mrpc", "rte")
        assert values["size"].isdigit()
        assert len(values) == 2


def test_a_narrower_space_is_kept_to(tmp_path: Path) -> None:
    search(tmp_path, "rate=interval(0.1, 0.9)", "size=range(1, 9)", n_trials=8)
    narrow = search(tmp_path, "rate=interval(0.4, 0.6)", "size=range(1, 9, 3)", n_trials=8).jobs
    values = [dict(line.split("=") for line in job) for job in narrow]
    assert all(0.4 <= float(value["rate"]) <= 0.6 and value["size"] in "147" for value in values)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["seed=1"], "has an empty search space"),
        (["seed=interval(3, 3)"], "'seed=interval\\(3, 3\\)' is not an interval"),
        (["optimizer.learning_rate=tag(log, interval(0, 1))"], "above 0 with tag\\(log\\)"),
        (["optimizer.learning_rate=tag(log, choice(1e-4, 1e-3))"], "has the tag 'log'; expected"),
        (["seed=1,2", "hydra.sweeper.n_trials=0"], "hydra.sweeper.n_trials is 0; expected a whole number from 1"),
        (
            ["seed=1,2", "hydra.sweeper.sampler=grid"],
            "Unknown hydra.sweeper.sampler 'grid'; valid names: gp, random, tpe",
        ),
        (
            ["seed=1,2", "hydra.sweeper.direction=up"],
            "Unknown hydra.sweeper.direction 'up'; valid names: maximize, minimize",
        ),
        (["seed=1,2", "hydra.sweeper.trials=3"], "Unknown config key 'hydra.sweeper.trials'"),
    ],
)
def test_what_is_refused_before_the_first_job(settings: list[str], sentence: str) -> None:
    invocation = parse_arguments(["-m", "sweeper=optuna", *settings], CONF, "train")
    assert invocation is not None
    with pytest.raises(UserError, match=sentence):
        check(invocation)
