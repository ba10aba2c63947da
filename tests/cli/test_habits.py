"""Habits of other tools, answered with the setting to write; and ``--help``."""

import re
from pathlib import Path

import pytest
import yaml
from cli.test_command_line import checked

from bertsecrets.cli.command_line import check_words
from bertsecrets.cli.habits import with_trainer_arguments
from bertsecrets.cli.help import first_sentence, help_text
from bertsecrets.errors import UserError
from bertsecrets.settings import CONF
from bertsecrets.sweeps.hydra_arguments import parse_arguments


def answer(command: str, *arguments: str) -> str:
    """The sentence with which a command line is refused."""

    def refused() -> None:
        check_words(list(arguments), command)
        checked(with_trainer_arguments(arguments), command)

    with pytest.raises(UserError) as caught:
        refused()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        (["--max_steps", "5"], "trainer.max_steps=5"),
        (["--max-steps=5"], "trainer.max_steps=5"),
        (["max_steps=5"], "trainer.max_steps=5"),
        (["trainer.max_step=5"], "trainer.max_steps"),
        (["+trainer.max_epochs=5"], "write trainer.max_epochs=5"),
        (["+max_steps=5"], "max_steps"),
        (["lr=1e-4"], "write optimizer.learning_rate=1e-4"),
        (["trainer.lr=1e-4"], "write optimizer.learning_rate=1e-4"),
        (["batch_size=4"], "write task.training.batch_size=4"),
        (["epochs=3"], "write trainer.max_epochs=3"),
        (["limit_train_batches=3"], "write trainer.limit_train_batches=3"),
        (["fp16=true"], "write trainer.precision=16-mixed"),
        (["model_name=bert-base-uncased"], "write model=folder model.path=bert-base-uncased"),
        (["--task", "mrpc"], "write task=mrpc"),
        (["mrpc"], "write task=mrpc"),
        (["margin=2"], "write ablation.margin=2"),
        (["analysis=disable"], "checkpoint=<run folder> analysis=disable, or write callbacks=disable"),
        (["analysis=importance"], "checkpoint=<run folder> analysis=importance."),
    ],
)
def test_the_right_setting_is_named(arguments: list[str], right: str) -> None:
    assert right in answer("train", *arguments)


def test_analyze_names_its_own_settings() -> None:
    assert "write checkpoint=outputs/x" in answer("analyze", "run=outputs/x")
    assert "analyze.py has analysis=disable for that" in answer("analyze", "checkpoint=x", "callbacks=disable")


@pytest.mark.parametrize("argument", ["trainer.max_steps=5", "+trainer.max_steps=5", "++trainer.max_steps=5"])
def test_arguments_of_the_trainer_need_no_plus(argument: str) -> None:
    (written,) = with_trainer_arguments([argument])
    invocation = parse_arguments([written], CONF, "train")
    assert invocation is not None
    with invocation.hydra():
        assert invocation.compose(invocation.overrides).trainer.max_steps == 5


def test_settings_and_options_of_hydra_pass() -> None:
    check_words(["-m", "seed=1,2", "--cfg", "job", "--config-dir", "x", "~callbacks.disable", "view=a b"], "train")


@pytest.mark.parametrize(("command", "listed"), [("train", "callbacks"), ("analyze", "analysis")])
def test_help_names_every_group_and_has_ten_examples(command: str, listed: str) -> None:
    text = help_text(command)
    groups = [next(iter(each)) for each in yaml.safe_load((CONF / f"{command}.yaml").read_text())["defaults"][1:]]
    for group in groups:
        # A line of its own, with what its comment in the configuration says.
        assert re.search(rf"^  {group} +\w.{{8,}}$", text, re.MULTILINE), group
    assert len(re.findall(rf"^  python .*{command}", text, re.MULTILINE)) == 10
    for path in (CONF / listed).glob("*.yaml"):
        assert re.search(rf"^  {path.stem} +{re.escape(first_sentence(path)[:20])}", text, re.MULTILINE), path.stem
        assert len(first_sentence(path)) > 10, path.stem
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.slow
def test_every_example_of_the_help_is_a_valid_command_line() -> None:
    for command in ("train", "analyze"):
        for line in re.findall(rf"^  python {command}.py ?(.*)$", help_text(command), re.MULTILINE):
            words = [word.strip("'") for word in re.findall(r"(?:'[^']*'|<[^>]*>|[^\s<']|(?<==)'[^']*')+", line)]
            if any(word.startswith("resume=") for word in words):
                continue
            check_words(words, command)
            checked(with_trainer_arguments(_quoted(words)), command)


def _quoted(words: list[str]) -> list[str]:
    return [
        re.sub(r"<[^>]*>", "folder", word) if not word.startswith("view=") else "view='The cat sat.'" for word in words
    ]


def test_a_choice_is_described_by_its_first_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("# @package _global_\n# Two lines of e.g.\n# one sentence. Another.\nkey: 1  # not this\n")
    assert first_sentence(path) == "Two lines of e.g. one sentence"
    path.write_text("key: 1\n# Late.\n")
    assert first_sentence(path) == ""
