"""Every command: its settings, its help, and what it refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.runs import ROOT, environment, parsed
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from reporting.finished_runs import make_run

from bertsecrets.__main__ import COMMANDS as LISTED
from bertsecrets.cli.composition import check
from bertsecrets.cli.help import help_text
from bertsecrets.errors import UserError
from bertsecrets.keys import COMMANDS, command_of, meanings, top_level
from bertsecrets.settings import CONF
from bertsecrets.sweeps.hydra_arguments import BASE


def test_every_command_is_listed_and_has_exactly_its_settings_in_its_configuration() -> None:
    assert {*LISTED} == {*COMMANDS, "resume"}
    for command, keys in COMMANDS.items():
        with initialize_config_dir(str(CONF), **BASE):
            config = compose(command)
        present = {str(key) for key in OmegaConf.to_container(config, resolve=False)}
        # A group without a choice leaves no key, and only an analysis that was run records what it analysed.
        assert present <= {*keys.model_fields}, command
        absent = {*keys.model_fields} - present
        assert absent <= {"measure", "analysis", "callbacks", "logger", "trained"}, command
        assert command_of(present and dict.fromkeys(present)) == command


def test_the_help_of_a_command_lists_its_settings_alone() -> None:
    text = help_text("compare")
    for name in ("runs", "heads", "paper", "resume", "progress"):
        assert f"\n  {name} " in text
    for other in ("optimizer", "checkpoint", "ablation", "trainer"):
        assert f"\n  {other} " not in text
    for command, keys in COMMANDS.items():
        if command not in ("train", "analyze"):
            described = [
                line.split()[0] for line in help_text(command).splitlines() if line.startswith("  ") and line.split()
            ]
            assert {*keys.model_fields} <= {*described}, command


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("compare", ["run=[a,b]"], "Unknown config key 'run'|compare has no 'run', which is a setting of report"),
        ("compare", [], "runs is null; expected a folder, or a list of folders"),
        ("compare", ["runs=[]"], r"runs is \[\]; expected a folder, or a list of folders"),
        ("compare", ["runs=a,b"], r"'runs=a,b' lists several values; write runs=\[a,b\]\.$"),
        ("plan", ["runs=a,b"], r"'runs=a,b' lists several values; write runs=\[a,b\]\.$"),
        ("compare", ["runs=choice(a,b)"], r"lists several values; write runs=\[<value>,<value>\]\.$"),
        ("report", ["run=a,b"], r"'run=a,b' lists several values; give run one folder\.$"),
        ("plan", [], "'runs' has no value; give it on the command line as runs=<run folder>"),
        ("compare", ["runs=a", "heads=3"], "heads is 3; expected true or false"),
        ("compare", ["runs=a", "statements=[x]"], "add paper=statements"),
        ("report", ["run=a", "heads=0"], "heads is 0; expected a whole number from 1 to 1000"),
        ("view", ["txt=a"], "Unknown config key 'txt'; did you mean 'text'"),
        ("view", ["text=a", "init=random"], "Unknown init 'random'"),
        ("export", ["checkpoint=x"], "Config key 'folder' has no value"),
        ("workspace", ["project=a"], "project is 'a'; expected <entity>/<project>"),
        (
            "analyze",
            ["checkpoint=x", "paper=questions"],
            "Unknown config key 'paper'; write sweep.paper=questions",
        ),
    ],
)
def test_a_setting_that_a_command_does_not_have_is_refused_by_name(
    command: str, arguments: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check(parsed(arguments, command))


def test_a_key_without_a_default_can_be_swept() -> None:
    assert check(parsed(["-m", "run=a,b", "heads=2"], "report")).run == "a"
    for job, message in (["run=a,b", "heads=0"], r"In the job run=a heads=0"), ([], "'run' has no value"):
        with pytest.raises(UserError, match=message):
            check(parsed(["-m", *job], "report"))


def test_the_meaning_of_settings() -> None:
    no_numbers = top_level(lambda meaning: not meaning.numbers)
    assert {"progress", "logger", "save", "report", "tags"} <= no_numbers
    assert not {"seed", "task", "data", "ablation", "measure", "runs"} & no_numbers
    assert top_level(lambda meaning: meaning.with_resume) == {"resume", "debug", "progress", "fail_if"}
    # A name means the same in every command that has it.
    every = [(name, meaning) for keys in COMMANDS.values() for name, meaning in meanings(keys).items()]
    for name in {name for name, _ in every}:
        assert (
            len({(meaning.numbers, meaning.outside, meaning.with_resume) for other, meaning in every if other == name})
            == 1
        ), name


@pytest.mark.slow
def test_commands_run_as_modules_and_are_resumed(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(tmp_path / f"run{seed}", seed=seed, optimizer={"learning_rate": 1e-4})
    page = tmp_path / "page"
    words = ["compare", f"runs=[{tmp_path / 'run1'},{tmp_path / 'run2'}]", f"hydra.run.dir={page}"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bertsecrets", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)

    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert (page / "comparison.html").is_file()
    assert "is already finished" in run(*words).stdout
    assert "is already finished" in run("resume", f"folder={page}").stdout
    (page / "comparison.html").unlink()
    (page / "finished.json").unlink()
    again = run("resume", f"folder={page}")
    assert again.returncode == 0, again.stderr
    assert (page / "comparison.html").is_file()
    lost = run("resume", f"folder={tmp_path / 'nowhere'}")
    assert (lost.returncode, lost.stderr.count("\n")) == (1, 1)
    assert "holds no run and no sweep" in lost.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("bertsecrets ", list(LISTED)),
        ("bertsecrets an", ["analyze"]),
        ("bertsecrets analyze analysis=disable_l", ["analysis=disable_layers"]),
        ("bertsecrets compare ru", ["runs="]),
        ("bertsecrets nonsense ru", []),
    ],
)
def test_a_shell_completes_commands_and_their_settings(typed: str, offered: list[str]) -> None:
    program = "import sys; sys.argv[0] = 'bertsecrets'; from bertsecrets.__main__ import main; main()"
    completed = subprocess.run(
        [sys.executable, "-c", program, "-sc", "query=bash"],
        env={**os.environ, "COMP_LINE": typed, "COMP_POINT": str(len(typed))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.split() == offered
