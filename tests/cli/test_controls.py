"""Controls chosen by name, and the names of runs: an analysis is called by what was asked for."""

from pathlib import Path

import pytest
from cli.runs import composed

import bertsecrets.cli.run_settings  # noqa: F401  registers the resolver of the configuration
from bertsecrets.cli.loggers import wandb_logger
from bertsecrets.cli.settings import read_train
from bertsecrets.results.run import Run, controls


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("none", ["1.0", "None", "None", "False"]),
        ("permuted_labels", ["1.0", "None", "None", "True"]),
        ("second_sentence", ["1.0", "None", "second", "False"]),
        ("inverted_rates", ["1.25", "None", "None", "False"]),
        ("no_attention_dropout", ["1.0", "0.0", "None", "False"]),
    ],
)
def test_a_control_sets_one_thing_and_takes_no_further_analyses(name: str, values: list[str]) -> None:
    config = composed(["experiment=questions_quick", "task=demo_nli", f"control={name}"])
    read_train(config)
    assert list(controls(config).values()) == values
    assert ("disable" in config["callbacks"]) == (name == "none")
    assert "gradient_flow" in config["callbacks"]
    assert (name in config["name"]) == (name != "none")


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        ("analyze", ["checkpoint=x", "analysis=disable"], "disable · mrpc-1"),
        ("analyze", ["checkpoint=x", "analysis=redundancy"], "redundancy · mrpc-1"),
        ("analyze", ["checkpoint=x", "analysis=drift"], "drift · mrpc-1"),
        # A training is called by its own name, though it has a section "checkpoint".
        ("train", ["callbacks=disable"], "mrpc-1"),
    ],
)
def test_a_run_is_called_by_what_was_asked_for(
    tmp_path: Path, command: str, arguments: list[str], expected: str
) -> None:
    config = composed(arguments, command)
    run = Run(tmp_path, "mrpc-1", "minilm", "mrpc", "pretrained")
    logger = wandb_logger(run, config, project="p", entity=None, mode="disabled", job_type=command)
    assert logger._wandb_init["name"] == expected
