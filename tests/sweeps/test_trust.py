"""A folder's configuration is data: which classes it may name, and what a sweep's folder may bring along."""

import json
from pathlib import Path

import pytest

from bertsecrets.errors import UserError
from bertsecrets.sweeps.sweep import SWEEP_FILE, resume_arguments
from bertsecrets.sweeps.trust import check_sweep_arguments, check_targets, foreign_targets, project_targets

FOLDER = Path("stranger")
OWN = "bertsecrets.measures.drift.Drift"


def test_the_projects_classes_are_those_of_its_configurations() -> None:
    assert OWN in project_targets()
    assert "pytorch_lightning.Trainer" in project_targets()
    # A path through the project's modules ends at anything that they import.
    assert "bertsecrets.models.checkpoint.torch.load" not in project_targets()


def test_classes_of_the_project_and_of_the_command_line_pass() -> None:
    theirs = {"callbacks": {"mine": {"_target_": "my.Callback", "parts": [{"_target_": OWN}]}}}
    check_targets(theirs, {"callbacks": {"mine": {"_target_": "my.Callback"}}}, FOLDER)
    assert foreign_targets(theirs) == {"callbacks.mine._target_": "my.Callback"}


@pytest.mark.parametrize(
    "config",
    [
        {"trainer": {"_target_": "torch.load"}},
        {"measure": {"x": {"_target_": OWN, "_args_": [{"_target_": "os.system"}]}}},
        {"measure": {"x": {"_target_": OWN, "deep": {"er": [[{"_target_": "os.system", "_partial_": True}]]}}}},
        {"measure": {"x": {"_target_": "bertsecrets.models.checkpoint.torch.load"}}},
        {"measure": {"x": {"_target_": [OWN]}}},
        {"measure": {"x": {"_target_": None}}},
    ],
)
def test_any_other_class_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(UserError, match="which is not part of bertsecrets; if you trust it, name it"):
        check_targets(config, {"callbacks": {"mine": {"_target_": "my.Callback"}}}, FOLDER)


def test_a_usual_sweep_brings_data() -> None:
    check_sweep_arguments(
        [
            "-m",
            "task=mrpc,rte",
            "seed=range(1,3)",
            "measure=[drift,patterns]",
            "data.root=../glue",
            "name=${task.name}-x",
            "launcher=joblib",
            "hydra/launcher=joblib",
            "hydra.launcher.n_jobs=2",
            "hydra.sweeper.n_trials=3",
            "optimizer.learning_rate=tag(log, interval(1e-5, 1e-3))",
            "~callbacks.capture",
        ],
        FOLDER,
    )


@pytest.mark.parametrize(
    "argument",
    [
        "+callbacks.x._target_=os.system",
        "+callbacks.x={_target_: os.system}",
        "hydra.launcher.setup=[rm]",
        "hydra.sweeper.custom_search_space=os.system",
        "hydra.job.env_set.PATH=x",
        "hydra.run.dir=x",
        "+hydra.callbacks.x.y=1",
        "hydra={run:{dir:x}}",
        "hydra.sweep.subdir=../x",
        "hydra.sweep.subdir=/x",
        "name=${oc.env:HOME}",
        "measure=../../x",
        "measure=[drift,/x]",
        "hydra/launcher=../x",
        "--config-dir",
        "--experimental-rerun=x",
    ],
)
def test_a_sweep_that_could_run_code_is_refused(argument: str) -> None:
    with pytest.raises(UserError, match="repeat the sweep's own command with resume=true"):
        check_sweep_arguments(["-m", "seed=1,2", argument], FOLDER)


def test_the_folder_itself_is_no_foreign_path(tmp_path: Path) -> None:
    folder = tmp_path / "a sweep"
    folder.mkdir()
    content = {"arguments": ["-m", "seed=1,2", "hydra.sweep.dir=/elsewhere"], "command": "", "fixed": {}, "swept": {}}
    (folder / SWEEP_FILE).write_text(json.dumps(content))
    arguments = resume_arguments(folder)
    assert arguments is not None
    assert str(folder) in arguments[-2]
    check_sweep_arguments(arguments, folder)
    with pytest.raises(UserError, match="can run code or read files"):
        check_sweep_arguments(arguments, tmp_path)
