"""The name of a W&B run: an analysis is called by what was asked for."""

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import bertsecrets.cli.run_settings  # noqa: F401 - registers the resolver of names
from bertsecrets.cli.loggers import wandb_logger
from bertsecrets.results.config_copy import plain
from bertsecrets.results.run import Run
from bertsecrets.settings import CONF
from bertsecrets.sweeps.hydra_arguments import parse_arguments


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
    invocation = parse_arguments(arguments, CONF, command)
    assert invocation is not None
    with invocation.hydra():
        composed = invocation.compose(invocation.overrides)
    config = plain(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]))
    run = Run(tmp_path, "mrpc-1", "minilm", "mrpc", "pretrained")
    logger = wandb_logger(run, config, project="p", entity=None, mode="disabled", job_type=command)
    assert logger._wandb_init["name"] == expected


_STARTS_A_RUN = """
import sys
import subprocess
import sys
from pathlib import Path
from bertsecrets.cli.loggers import wandb_logger
from bertsecrets.results.run import Run

run = Run(Path(sys.argv[1]), "mrpc-1", "minilm", "mrpc", "pretrained")
logger = wandb_logger(run, {"group": None, "tags": []}, project="p", entity=None, mode="offline", job_type="train")
logger.experiment.log({"loss": 1.0})
logger.experiment.finish()
print([name for name in sys.modules if name.startswith("wandb.sdk.launch")])
"""


def test_starting_a_run_does_not_import_the_agent_of_wandb_launch(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _STARTS_A_RUN, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
