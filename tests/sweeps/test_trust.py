"""A folder's configuration is data: which classes it may name, what a sweep's folder may bring along, and where they
write.
"""

import json
from pathlib import Path

import pytest
from cli.runs import parsed
from omegaconf import OmegaConf

from bertsecrets.cli.arguments import with_resume
from bertsecrets.errors import UserError
from bertsecrets.results.run import SWEEP_FILE, plain
from bertsecrets.sweeps.sweep import resume_arguments
from bertsecrets.sweeps.trust import (
    check_code,
    check_links,
    check_sweep_arguments,
    project_targets,
    settings_to_repeat,
    with_settings_given_again,
)

FOLDER = Path("stranger")
OWN = "bertsecrets.measures.drift.Drift"


def test_the_projects_classes_are_those_of_its_configurations() -> None:
    assert OWN in project_targets()
    assert "pytorch_lightning.Trainer" in project_targets()
    # A path through the project's modules ends at anything that they import.
    assert "bertsecrets.models.checkpoint.torch.load" not in project_targets()


def test_classes_of_the_project_and_of_the_command_line_pass() -> None:
    theirs = {"callbacks": {"mine": {"_target_": "my.Callback", "parts": [{"_target_": OWN}]}}}
    check_code(theirs, {"callbacks": {"mine": {"_target_": "my.Callback"}}}, FOLDER)
    assert settings_to_repeat(theirs) == {"callbacks.mine._target_": "my.Callback"}
    scored = {"prune": {"scores": ["exact", "my.scores:f", "my.scores:g"]}}
    check_code(scored, scored, FOLDER)
    assert settings_to_repeat(scored) == {"prune.scores": ["exact", "my.scores:f", "my.scores:g"]}


@pytest.mark.parametrize(
    "config",
    [
        {"trainer": {"_target_": "torch.load"}},
        {"measure": {"x": {"_target_": OWN, "_args_": [{"_target_": "os.system"}]}}},
        {"measure": {"x": {"_target_": OWN, "deep": {"er": [[{"_target_": "os.system", "_partial_": True}]]}}}},
        {"measure": {"x": {"_target_": "bertsecrets.models.checkpoint.torch.load"}}},
        {"measure": {"x": {"_target_": [OWN]}}},
        {"measure": {"x": {"_target_": None}}},
        {"prune": {"scores": ["exact", "stranger.evil:score"]}},
        {"prune": {"scores": ["-stranger.evil:score"]}},
        {"callbacks": {"x": {"_target_": OWN, "score": "stranger.evil:score"}}},
    ],
)
def test_any_other_class_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(UserError, match="which is not part of bertsecrets; if you trust it, repeat it"):
        check_code(config, {"callbacks": {"mine": {"_target_": "my.Callback"}}}, FOLDER)


def test_a_usual_sweep_brings_data() -> None:
    check_sweep_arguments(
        [
            "-m",
            "task=mrpc,rte",
            "seed=range(1,3)",
            "measure=[drift,patterns]",
            "data.root=../glue",
            "name=${task.name}-${seed}",
            "hydra.sweep.subdir=${task.name}/a_${name}",
            "task=glob(*)",
            "launcher=slurm",
            "hydra/launcher=joblib",
            "hydra.launcher.n_jobs=-1",
            "hydra.launcher.ray.init.address=auto",
            "hydra.launcher.ray.remote.num_gpus=1",
            "hydra.launcher.mem_gb=null",
            "hydra.launcher.partition='gpu,long-jobs'",
            "hydra.mode=MULTIRUN",
            "prune.scores=[exact,-drift/cosine]",
            "logger.wandb.mode=offline",
            "logger.wandb.project=heads",
            "save=null",
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
        "hydra.launcher.ray.init.address='203.0.113.5:6379'",
        "hydra.sweeper._target_=os.system",
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
        "hydra.launcher.partition='a\ntouch X #'",
        "hydra.launcher.partition=a b",
        "hydra.launcher.partition='$(touch X)'",
        "hydra.launcher.partition=choice('a','b;c')",
        "hydra.launcher.mem_gb=4G",
        "hydra.launcher.timeout_min=[1]",
        "hydra.launcher.n_jobs=${seed}",
        "hydra.mode=RUN",
        "hydra.sweep.subdir=${group}",
        "hydra.sweep.subdir=.${name}",
        "hydra/job_logging=none",
        "+analysis@hydra.callbacks=full",
        "name='a\x1b[2J'",
        "name=..",
        "name=a,'b/../../c'",
        "model.name=./x",
        # Two parts, each a valid name, make a path out of the folder.
        "name=${job_type}${group}",
        # Hydra removes the backslashes.
        "name=$\\{oc.env\\:HOME\\}",
        "tags=[a,'${oc.env:HOME}']",
        # The name of a resolver can itself be an interpolation.
        "name='${${group}:HOME}'",
        "prune.scores=[exact,stranger.evil:score]",
        "prune={scores:[stranger.evil:score]}",
        "+callbacks.x.score='-stranger.evil:score'",
        "logger={wandb:{mode:online}}",
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
    assert str(folder) in arguments[-2]
    check_sweep_arguments(arguments, folder)
    with pytest.raises(UserError, match="can run code or access arbitrary files"):
        check_sweep_arguments(arguments, tmp_path)


@pytest.mark.parametrize(
    "argument",
    [
        "save=models/${name}",
        "folder=x",
        "project=stranger/project",
        "run=/elsewhere/run",
        "annotation.cache_dir=/x",
        "data.cache_dir=/x,/y",
        "logger.wandb.mode=online",
        "logger.wandb.mode=offline,online",
        "logger.wandb.entity=stranger",
        "+logger.wandb.dir=/x",
        "+logger.wandb.settings.base_url=https://stranger",
    ],
)
def test_a_sweep_that_acts_outside_of_its_folder_asks_for_it_again(argument: str) -> None:
    key, _, value = argument.lstrip("+").partition("=")
    with pytest.raises(UserError, match="asks to write or send something outside") as error:
        check_sweep_arguments(["-m", "seed=1,2", argument], FOLDER)
    assert key in str(error.value)
    assert value in str(error.value)


def test_a_folder_whose_name_reaches_a_batch_script_has_no_line_breaks() -> None:
    with pytest.raises(UserError, match="control characters"):
        check_sweep_arguments(["-m"], Path("a\ntouch X #"))


RECORDED = OmegaConf.create(
    {
        "name": "their-run",
        "save": "/elsewhere/x",
        "report": {"heads": 6},
        "logger": {
            "wandb": {
                "_target_": "bertsecrets.cli.loggers.wandb_logger",
                "project": "p",
                "mode": "online",
                "entity": "stranger",
                "init_timeout": 9,
            }
        },
    }
)
PRESENT = OmegaConf.create(
    {"name": "", "save": None, "logger": {"wandb": {"project": "q", "mode": "offline", "entity": None}}}
)


def test_a_run_that_acts_outside_of_its_folder_asks_for_it_again() -> None:
    with pytest.raises(UserError) as error:
        with_settings_given_again(RECORDED, PRESENT, ["debug=true"], FOLDER)
    assert "(save=/elsewhere/x logger.wandb.mode=online logger.wandb.entity=stranger)" in str(error.value)
    assert "(save=null logger.wandb.mode=offline logger.wandb.entity=null)" in str(error.value)


def test_the_command_line_decides_what_a_resumed_run_writes_and_sends_outside() -> None:
    given = ["save=models/${name}", "++logger.wandb.mode=disabled", "logger.wandb.entity=null"]
    merged = with_settings_given_again(RECORDED, PRESENT, given, FOLDER)
    assert plain(merged)["save"] == "models/their-run"
    assert plain(merged)["logger"]["wandb"] == {**RECORDED.logger.wandb, "mode": "disabled", "entity": None}
    assert settings_to_repeat(plain(merged)) == {"save": "models/their-run"}
    assert RECORDED.save == "/elsewhere/x"


def test_the_present_environment_allows_what_it_asks_for_itself() -> None:
    present = OmegaConf.merge(PRESENT, {"logger": {"wandb": {"mode": "online", "entity": "stranger"}}})
    merged = with_settings_given_again(RECORDED, present, ["save=null"], FOLDER)
    assert merged.logger.wandb.mode == "online"


def test_a_logger_that_the_run_does_not_have_is_refused() -> None:
    without = OmegaConf.create({"name": "x", "logger": {}})
    with pytest.raises(UserError, match=r"'logger.wandb.mode=online' does not fit .* has no logger.wandb"):
        with_settings_given_again(without, PRESENT, ["logger.wandb.mode=online"], FOLDER)


def test_links_out_of_a_folder_are_refused(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (folder / "figures").mkdir(parents=True)
    # W&B makes these itself: to its newest run, and from there to its log.
    logs = folder / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (folder / "wandb" / "latest-run").symlink_to("offline-run-1")
    (logs / "debug-core.log").symlink_to(elsewhere / "core.log")
    # What submitit leaves in the folder of a sweep that was copied from a cluster.
    (folder / ".submitit").mkdir()
    (folder / ".submitit" / ".submission_file_3f2a.sh").symlink_to(elsewhere / "3_submission.sh")
    check_links(folder)
    for name in ("figures/head.svg", "train.log", "checkpoints", "wandb/other-run-2", "job/wandb"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(elsewhere)
        with pytest.raises(UserError, match=f"{name}' is a symbolic link to '{elsewhere}'"):
            check_links(folder)
        (folder / name).unlink()
    (folder / "loop").symlink_to("loop")
    check_links(folder)


def test_what_a_sweep_asks_for_again_replaces_what_it_recorded(tmp_path: Path) -> None:
    content = {
        "arguments": ["-m", "seed=1,2", "save=a", "+callbacks.x._target_=os.system"],
        "command": "",
        "fixed": {},
        "swept": {},
    }
    (tmp_path / SWEEP_FILE).write_text(json.dumps(content))
    again = ["save='b/${name}'", "++callbacks.x._target_=my.Callback"]
    resumed = with_resume(parsed(["--config-name=train", f"resume={tmp_path}", *again]))
    assert resumed.options == ("-m", "--config-name=train")
    assert resumed.overrides == ["seed=1,2", f"hydra.sweep.dir='{tmp_path}'", "resume=true", *again]
