"""What counts as a replicate, and what as a condition."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reporting.finished_runs import make_run

from bertsecrets.errors import UserError
from bertsecrets.reporting.conditions import contrasts, find_conditions
from bertsecrets.reporting.runs import find_runs
from bertsecrets.results.run import controls, controls_in_words

RATES = [{"optimizer": {"learning_rate": rate}, "schedule": {"peak": rate}} for rate in (1e-5, 2e-5)]
SEEDS = [{"seed": seed, "patterns": {"fit": {"seed": seed}}, "ablation": {"seed": 0}} for seed in (1, 2, 3)]
EVERY = [
    {"task": task, "trainer": {"devices": devices}, "seed": seed}
    for task, devices, seed in itertools.product(("mrpc", "rte"), (1, 2), (1, 2, 3))
]
SWEEPS = [{"seed": seed, "ablation": {"sweep": sweep, "mode": "uniform"}} for seed, sweep in ((1, "exact"), (2, None))]

DISABLE = {"disable": {"_target_": "bertsecrets.ablation.sweep.DisableAnalysis"}}
CAPTURE = {"capture": {"_target_": "bertsecrets.measures.capture.CaptureAnalysis", "examples": 4}}
EXAMPLES = ["callbacks.capture.examples"]
GATES = {"gates": {"_target_": "bertsecrets.callbacks.gates.TrainGates", "penalty": 0.01}}
STOPPING = {"stopping": {"_target_": "pytorch_lightning.callbacks.EarlyStopping"}}


@pytest.mark.parametrize(
    ("runs", "factors"),
    [
        (EVERY, ["task", "trainer.devices"]),
        ([{"task": task, **rate} for task, rate in zip(("mrpc", "rte"), RATES, strict=True)], ["task"]),
        (RATES, ["optimizer.learning_rate"]),
        # Its effect must not be mistaken for that of the initialisation.
        (
            [{"init": init, **rate} for init, rate in zip(("pretrained", "random_normal"), RATES, strict=True)],
            ["init", "optimizer.learning_rate"],
        ),
        (SEEDS, []),
        ([*SEEDS, {"seed": 1, "patterns": {"fit": {"seed": 1}}, "ablation": {"seed": 7}}], ["ablation.seed"]),
        # How something is computed distinguishes only runs that are otherwise equal.
        (SWEEPS, []),
        ([*SWEEPS, {"ablation": {"sweep": "screened", "mode": "uniform"}}], ["ablation.sweep"]),
        # Callbacks that only measure are no condition, unless their settings differ; those that change the model are.
        ([{"seed": seed, "callbacks": named} for seed, named in enumerate(({}, DISABLE, DISABLE | CAPTURE))], []),
        ([{"callbacks": CAPTURE}, {"callbacks": {"capture": {**CAPTURE["capture"], "examples": 8}}}], EXAMPLES),
        ([{"callbacks": GATES}, {"callbacks": DISABLE}], ["callbacks.gates"]),
        ([{"callbacks": STOPPING}, {"callbacks": DISABLE}], ["callbacks.stopping"]),
        ([{"analysis": DISABLE}, {"analysis": CAPTURE, "seed": 2}], []),
        # What changes no number is no condition.
        ([{"seed": seed, "save": save, "overwrite": save is None} for seed, save in enumerate((None, "model"))], []),
        (
            # What follows from the kind of task head does not name the difference.
            [
                {"task_settings": settings, "data": {"limit_eval": limit}}
                for limit, settings in ((9, {"kind": "masked", "metrics": ["masked_accuracy"]}), (8, {}))
            ],
            ["task.kind"],
        ),
    ],
)
def test_which_settings_distinguish_conditions(runs: list[dict[str, Any]], factors: list[str], tmp_path: Path) -> None:
    for place, settings in enumerate(runs):
        make_run(tmp_path / str(place), **settings)
    found, unfinished = find_runs([str(tmp_path)])
    conditions, varying = find_conditions(found)
    assert (varying, unfinished) == (factors, [])
    if not factors:
        assert [len(condition.runs) for condition in conditions] == [len(runs)]
    if runs is EVERY:
        assert [len(condition.runs) for condition in conditions] == [3] * 4
        assert conditions[0].label(varying) == "mrpc · trainer.devices=1"
    elif len(factors) > 1:
        assert contrasts(conditions, varying) == []


def test_a_class_of_ours_is_named_without_its_module(tmp_path: Path) -> None:
    for name, callbacks in (("gates", GATES), ("stopping", STOPPING), ("none", {})):
        make_run(tmp_path / name, callbacks=callbacks)
    conditions, varying = find_conditions(find_runs([str(tmp_path)])[0])
    assert sorted(condition.label(varying) for condition in conditions) == [
        "callbacks.gates=TrainGates · callbacks.stopping=unset",
        "callbacks.gates=unset · callbacks.stopping=pytorch_lightning.callbacks.EarlyStopping",
        "callbacks.gates=unset · callbacks.stopping=unset",
    ]


def test_contrasts_differ_in_one_factor_and_tasks_come_last(tmp_path: Path) -> None:
    for task in ("mrpc", "rte"):
        for init in ("pretrained", "random_normal"):
            make_run(tmp_path / f"{task}-{init}", task=task, init=init)
    conditions, varying = find_conditions(find_runs([str(tmp_path)])[0])
    found = [(contrast.name, contrast.first, contrast.second) for contrast in contrasts(conditions, varying)]
    assert found == [
        ("mrpc: pretrained − random normal", "mrpc · pretrained", "mrpc · random normal"),
        ("rte: pretrained − random normal", "rte · pretrained", "rte · random normal"),
        ("pretrained: mrpc − rte", "mrpc · pretrained", "rte · pretrained"),
        ("random normal: mrpc − rte", "mrpc · random normal", "rte · random normal"),
    ]
    labels = {condition.label(varying) for condition in conditions}
    assert {label for _, first, second in found for label in (first, second)} == labels


def test_a_measure_that_only_some_runs_have_makes_no_conditions(tmp_path: Path) -> None:
    settings = {"measure": {"features": {"max_examples": 1000}}, "annotation": {"pipeline": "words"}}
    for seed in (1, 2):
        make_run(tmp_path / f"pretrained-{seed}", seed=seed, **settings)
    make_run(tmp_path / "further", seed=3, measure={}, annotation={"pipeline": None})
    make_run(tmp_path / "random", init="random_normal", measure={}, annotation={"pipeline": None})
    conditions, varying = find_conditions(find_runs([str(tmp_path)])[0])
    assert varying == ["init"]
    assert [len(condition.runs) for condition in conditions] == [3, 1]
    make_run(tmp_path / "equal", seed=1, measure={}, annotation={"pipeline": None})
    _, varying = find_conditions(find_runs([str(tmp_path)])[0])
    assert varying == ["init", "annotation.pipeline"]
    (tmp_path / "equal" / "finished.json").unlink()
    make_run(tmp_path / "fewer", seed=1, **settings | {"measure": {"features": {"max_examples": None}}})
    make_run(tmp_path / "words", seed=1, **settings | {"annotation": {"pipeline": "other words"}})
    _, varying = find_conditions(find_runs([str(tmp_path)])[0])
    assert varying == ["init", "annotation.pipeline", "measure.features.max_examples"]


def test_one_run_twice_is_no_replicate(tmp_path: Path) -> None:
    for name in ("first", "second"):
        make_run(tmp_path / name, seed=7)
    with pytest.raises(UserError, match=r"first' and '.*second' have the same settings and the same seed \(7\)"):
        find_conditions(find_runs([str(tmp_path)])[0])


def test_analyses_differ_by_the_run_that_they_analysed(tmp_path: Path) -> None:
    for init in ("pretrained", "random_normal"):
        for seed in (3, 4):
            trained = {"name": "x", "init": init, "seed": seed}
            make_run(tmp_path / f"{init}{seed}", seed=42, checkpoint=f"runs/{init}{seed}", trained=trained)
    conditions, varying = find_conditions(find_runs([str(tmp_path)])[0])
    assert varying == ["init"]
    assert [sorted(run.seed for run in each.runs) for each in conditions] == [[3, 4], [3, 4]]
    trained = {"name": "x", "init": "pretrained", "seed": 3}
    make_run(tmp_path / "other", seed=42, checkpoint="runs/other", trained=trained)
    conditions, varying = find_conditions(find_runs([str(tmp_path)])[0])
    assert varying == ["init", "checkpoint"]
    assert len(conditions) == 5


def test_a_run_and_its_analysis_may_be_moved_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    training = make_run(tmp_path / "there" / "run")
    trained = {"name": "run", "init": "pretrained", "seed": 1, "folder": str(training), "from_here": "../run"}
    make_run(tmp_path / "there" / "analysis", checkpoint=str(training), trained=trained, reference=None)
    (tmp_path / "there").rename(tmp_path / "here")
    runs, _ = find_runs([str(tmp_path / "here")])
    assert {run.weights[0] for run in runs} == {tmp_path / "here" / "run"}
    assert not caplog.records
    # Another run in its place is not taken for it.
    (tmp_path / "here" / "run").rename(tmp_path / "run")
    make_run(tmp_path / "here" / "run", seed=2)
    runs, _ = find_runs([str(tmp_path / "here")])
    assert {run.weights[0] for run in runs} == {tmp_path / "here" / "run", training}
    assert f"'{tmp_path}/here/analysis' analysed the run in '{training}', which was not found" in caplog.text


def test_a_run_and_its_analyses_are_one_replicate(tmp_path: Path) -> None:
    change_LH = np.array([[0.9, 0.5]])
    effect_LH = np.array([[-0.1, 0.2]])
    uniform: dict[str, Any] = {"ablation": {"mode": "uniform"}}
    training_only: dict[str, Any] = {"optimizer": {"learning_rate": 1e-4}, "callbacks": {}, **uniform}
    training_only["trainer"] = {"devices": 1, "max_epochs": 1}
    for seed in (1, 2):
        training = make_run(tmp_path / f"run{seed}", seed=seed, cosine_LH=change_LH, **training_only)
        trained = {"name": "x", "init": "pretrained", "seed": seed, "folder": str(training)}
        analysed = {"checkpoint": str(training), "trained": trained, "reference": None, "claims": [], **uniform}
        analysed["trainer"] = {"devices": 1, "max_epochs": 3}
        make_run(tmp_path / f"analysis{seed}", delta_LH=effect_LH, cosine_LH=change_LH, **analysed)
        make_run(tmp_path / f"again{seed}", delta_LH=effect_LH, overwrite=True, **analysed)
    runs, _ = find_runs([str(tmp_path)])
    assert len(runs) == 6
    (condition,), varying = find_conditions(runs)
    assert varying == []
    assert sorted(run.name for run in condition.runs) == ["run1", "run2"]
    for measure in ("drift", "ablation"):
        replicates = condition.replicates(measure)
        assert replicates is not None, measure
        assert len(replicates.views) == 2, measure
    # What an analysis sets otherwise makes another condition, and its training's settings are its own.
    other = {"name": "x", "init": "pretrained", "seed": 1, "folder": str(tmp_path / "run1")}
    make_run(tmp_path / "other", checkpoint="x", trained=other, reference=None, ablation={"mode": "zero"})
    make_run(tmp_path / "rate", **training_only | {"optimizer": {"learning_rate": 2e-4}})
    conditions, varying = find_conditions(find_runs([str(tmp_path)])[0])
    assert varying == ["ablation.mode", "optimizer.learning_rate"]
    assert {condition.factors["optimizer.learning_rate"] for condition in conditions} == {"0.0001", "0.0002"}


def test_controls_are_conditions_of_trainings_and_of_analyses(tmp_path: Path) -> None:
    data = {"only": None, "permute_labels": False}
    make_run(tmp_path / "plain", data=data, optimizer={"layer_decay": 1.0})
    make_run(tmp_path / "earlier", seed=2, data={"source": "hub"}, optimizer={"layer_decay": 1.0})
    make_run(tmp_path / "shuffled", data=data | {"permute_labels": True}, optimizer={"layer_decay": 1.0})
    make_run(tmp_path / "alone", data=data | {"only": "second"}, optimizer={"layer_decay": 1.0})
    make_run(tmp_path / "inverted", data=data, optimizer={"layer_decay": 1.25})
    model = {"name": "minilm", "path": "model", "attention_dropout": 0.0}
    make_run(tmp_path / "undropped", data=data, optimizer={"layer_decay": 1.0}, model=model)
    runs = [run for run in find_runs([str(tmp_path)])[0] if run.name != "earlier"]
    conditions, varying = find_conditions(runs)
    assert varying == ["data.only", "data.permute_labels", "model.attention_dropout", "optimizer.layer_decay"]
    assert len(conditions) == 5
    labels = {condition.label(["data.permute_labels"]) for condition in conditions}
    assert labels == {"training labels shuffled", "no control"}
    earlier = find_runs([str(tmp_path / "earlier")])[0][0].config
    assert controls(earlier) == controls(next(run.config for run in runs if run.name == "plain"))
    assert controls_in_words(earlier) == []
    trained = {"name": "x", "init": "pretrained", "seed": 1}
    for name, decay in (("uniform", {}), ("upside_down", {"layer_decay": 1.25})):
        make_run(tmp_path / "analyses" / name, checkpoint=name, data=data, trained=trained | decay)
    conditions, varying = find_conditions(find_runs([str(tmp_path / "analyses")])[0])
    assert varying == ["optimizer.layer_decay"]
    config = {
        "trained": {"layer_decay": 0.9, "attention_dropout": 0.2},
        "data": {"only": "first", "permute_labels": True},
    }
    assert controls_in_words(config) == [
        "learning rate × 0.9 per layer downwards",
        "attention dropout 0.2",
        "first sentence only",
        "training labels shuffled",
    ]


def test_the_runs_of_a_sweep_may_lie_deeper(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path / "task" / f"seed={seed}", seed=seed)
    with pytest.raises(UserError, match="no finished run"):
        find_runs([str(tmp_path)])
    (tmp_path / "sweep.json").write_text("{}")
    make_run(tmp_path / ".set_aside" / "seed=1.0", seed=1)
    assert [run.folder.name for run in find_runs([str(tmp_path)])[0]] == ["seed=1", "seed=2"]


def test_what_cannot_be_compared_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a directory"):
        find_runs([str(tmp_path / "none")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no finished run"):
        find_runs([str(tmp_path / "empty")])
    whole = make_run(tmp_path / "sweep" / "whole", cosine_LH=np.ones((2, 3)))
    (tmp_path / "sweep" / "begun").mkdir()
    (tmp_path / "sweep" / "begun" / "config.yaml").write_text("{}")
    runs, unfinished = find_runs([str(tmp_path / "sweep")])
    assert [run.name for run in runs] == ["whole"]
    assert unfinished == ["begun"]
    content = (whole / "heads.parquet").read_bytes()
    (whole / "heads.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"whole/heads.parquet"):
        find_runs([str(whole)])
    (whole / "heads.parquet").write_bytes(content)
    (whole / "scores.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read as the scores of a run"):
        find_runs([str(whole)])
