"""``--help``, and the setting that a wrong one is answered with."""

import inspect
import json
import re
import subprocess
import sys
from itertools import chain, count
from pathlib import Path

import pytest
import yaml
from cli.runs import parsed

from bertsecrets.cli.arguments import check_model_name, check_words, parse, with_new_keys
from bertsecrets.cli.composition import check
from bertsecrets.cli.help import first_sentence, help_text
from bertsecrets.cli.targets import trainer_arguments
from bertsecrets.errors import UserError
from bertsecrets.settings import CONF


def answer(command: str, *arguments: str) -> str:
    """The sentence with which a command line is refused."""

    def refused() -> None:
        check_words(parsed(arguments, command), arguments)
        check(with_new_keys(parsed(arguments, command)))

    with pytest.raises(UserError) as caught:
        refused()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        (["--seed=3"], "settings have no dashes: write seed=3"),
        (["--batch-size", "5"], "settings have no dashes: write batch_size=5"),
        (["--task", "mrpc"], "write task=mrpc"),
        (["mrpc"], "'mrpc' is a choice of task; write task=mrpc"),
        (["max_steps=5"], "write trainer.max_steps=5"),
        (["trainer.max_step=5"], "trainer.max_steps"),
        (["+trainer.max_epochs=5"], "write trainer.max_epochs=5"),
        (["margin=2"], "write ablation.margin=2"),
        (["data.path=reviews.csv"], "which does not read it; for a CSV file write data=csv"),
        (["data.root=glue"], "for a folder of GLUE tasks write task=mrpc data=tsv data.root=<folder>"),
        (["task=mrpc", "data.root=glue"], "is read by data=hub, which does not read it"),
    ],
)
def test_the_right_setting_is_named(arguments: list[str], right: str) -> None:
    assert right in answer("train", *arguments)


def test_a_shipped_model_keeps_its_name() -> None:
    for wrong in (["model.name=bert-base-uncased"], ["model=bert_base", "model.name=mine"]):
        with pytest.raises(UserError, match="only renames the model; choose a model with model=bert_base"):
            check_model_name(parsed(wrong))
    check_model_name(parsed(["model=folder", "model.path=x", "model.name=mine"]))


@pytest.mark.parametrize("argument", ["trainer.max_steps=5", "+trainer.max_steps=5", "++trainer.max_steps=5"])
def test_arguments_of_the_trainer_need_no_plus(argument: str) -> None:
    invocation = with_new_keys(parsed([argument]))
    with invocation.hydra():
        assert invocation.compose(invocation.overrides).trainer.max_steps == 5


def test_settings_and_options_of_hydra_pass() -> None:
    words = ["-m", "seed=1,2", "--cfg", "job", "--config-dir", str(CONF), "~callbacks.disable", "name=a b"]
    check_words(parsed(words), words)


@pytest.mark.parametrize(("command", "listed"), [("train", "callbacks"), ("analyze", "analysis")])
def test_help_names_every_group_and_has_ten_examples(command: str, listed: str) -> None:
    text = help_text(command)
    defaults = [yaml.safe_load((CONF / f"{name}.yaml").read_text())["defaults"] for name in (command, "command")]
    groups = [next(iter(choice)) for choice in chain(*defaults) if isinstance(choice, dict)]
    assert {"task", "measure", "launcher"} < {*groups}
    for group in groups:
        # A line of its own, with what its comment in the configuration says.
        assert re.search(rf"^  {group} +\w.{{8,}}$", text, re.MULTILINE), group
    assert len(re.findall(rf"^  python .*{command}", text, re.MULTILINE)) == 10
    for path in (CONF / listed).glob("*.yaml"):
        assert re.search(rf"^  {path.stem} +{re.escape(first_sentence(path)[:20])}", text, re.MULTILINE), path.stem
        assert len(first_sentence(path)) > 10, path.stem
    assert max(map(len, text.splitlines())) <= 120
    for mode, words in (
        ("uniform", "the mean of its values"),
        ("zero", "zero"),
        ("identity", "each token's own value"),
    ):
        assert re.search(rf"^  {mode} +{words}", text, re.MULTILINE), mode


def test_help_lists_what_a_folder_of_configurations_brings(tmp_path: Path) -> None:
    for group, name in (("analysis", "anew"), ("task", "letters")):
        (tmp_path / group).mkdir()
        (tmp_path / group / f"{name}.yaml").write_text(f"# What {name} is for.\n_target_: theirs.Analysis\n", "utf-8")
    text = help_text("analyze", tmp_path)
    assert re.search(r"^  anew +What anew is for$", text, re.MULTILINE)
    assert re.search(r"^ .*\bletters, ", text, re.MULTILINE)
    assert re.search(r"^  disable_heads +\w", text, re.MULTILINE)
    assert "anew" not in help_text("analyze")
    with pytest.raises(UserError, match="which is not a folder"):
        parse(["--help", "--config-dir", str(tmp_path / "absent")], "train")
    asked = parse(["--config-dir", str(tmp_path), "--help"], "train")
    assert (asked.help, asked.search) == (True, tmp_path.resolve())


@pytest.mark.slow
def test_every_example_of_the_help_is_a_valid_command_line() -> None:
    for command in ("train", "analyze"):
        lines = re.findall(rf"^  python -m bertsecrets {command} ?(.*)$", help_text(command), re.MULTILINE)
        assert len(lines) == 10
        for line in lines:
            words = [word.strip("'") for word in re.findall(r"(?:'[^']*'|<[^>]*>|[^\s<']|(?<==)'[^']*')+", line)]
            # Of a model and a file test_own_model.py tells.
            if any(word.startswith("resume=") for word in words) or "=" not in line:
                continue
            check_words(parsed(words, command), words)
            check(with_new_keys(parsed(_quoted(words), command)))


def _quoted(words: list[str]) -> list[str]:
    """The words with a folder of its own for each placeholder: a sweep takes no value twice."""
    number = count()
    return [re.sub(r"<[^>]*>", lambda _: f"folder{next(number)}", word) for word in words]


def test_a_choice_is_described_by_its_first_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("# @package _global_\n# Two lines of e.g.\n# one sentence. Another.\nkey: 1  # not this\n")
    assert first_sentence(path) == "Two lines of e.g. one sentence"
    path.write_text("key: 1\n# Late.\n")
    assert first_sentence(path) == ""


_REPORT_IMPORTS = """
import atexit, json, os, sys
from bertsecrets.cli.command_line import run_command
heavy = "torch pytorch_lightning transformers torchmetrics wandb matplotlib scipy.stats scipy.special sklearn pandas"
heavy = {*heavy.split(), "datasets", "spacy"}
for number, words in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if child == 0:
        for stream in (1, 2):
            os.dup2(os.open(f"{number}.{stream}", os.O_WRONLY | os.O_CREAT), stream)
        atexit.register(lambda: print("loaded:", *sorted(heavy & sys.modules.keys())))
        sys.argv = [f"{words[0]}.py", *words[1:]]
        sys.exit(run_command(words[0]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
_LIGHT = [
    "train --help",
    "analyze --help",
    "train mrpc",
    "train --epochs 3",
    "train lr=1e-4",
    "train task=mrcp",
    "train trainer.max_epochs=0",
    "train trainer.max_epoch=3",
    "train seed=-1",
    "train optimizer.learning_rate=2",
    "train ablation.sweep=fast",
    "train data.limit_train=0",
    "train measure.drift.every_n_validations=0",
    "analyze checkpont=run",
    "analyze checkpoint=run prune.max_loss=-1",
]


def test_help_and_mistakes_load_no_large_library(tmp_path: Path) -> None:
    lines = json.dumps([line.split() for line in _LIGHT])
    done = subprocess.run(
        [sys.executable, "-c", _REPORT_IMPORTS, lines], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    for number, (line, status) in enumerate(zip(_LIGHT, done.stdout.split(), strict=True)):
        printed, errors = ((tmp_path / f"{number}.{stream}").read_text("utf-8") for stream in (1, 2))
        if "--help" in line:
            assert (status, errors) == ("0", ""), line
        else:
            assert status == "1", line
            assert errors.startswith("error: "), line
        assert printed.splitlines()[-1].strip() == "loaded:", line


def test_arguments_of_the_trainer_are_lightnings() -> None:
    import pytorch_lightning

    assert list(trainer_arguments()) == list(inspect.signature(pytorch_lightning.Trainer).parameters)
