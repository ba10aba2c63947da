"""The name of a W&B run: an analysis is called by what was asked for."""

from pathlib import Path

import pytest
from cli.runs import composed

import bertsecrets.cli.run_settings  # noqa: F401 - registers the resolver of names
from bertsecrets.cli.loggers import wandb_logger
from bertsecrets.results.run import Run


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
