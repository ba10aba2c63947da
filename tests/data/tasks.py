"""The tasks of conf/task, for tests."""

from pathlib import Path

from omegaconf import OmegaConf

from bertsecrets.data.inferred import inferred_task
from bertsecrets.data.sources import SourceConfig
from bertsecrets.data.sources.base import HELD_OUT
from bertsecrets.data.task import Task, task_from_config

TRAINING = {"learning_rate": 5e-5, "batch_size": 32, "max_epochs": 3, "max_length": 128}
FOLDER = Path(__file__).resolve().parents[2] / "conf" / "task"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "file")


def task(name: str) -> Task:
    """The task of a YAML file."""
    content = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    return task_from_config({str(key): value for key, value in content.items()})


def task_of(config: SourceConfig, otherwise: str = HELD_OUT, kind: str | None = None) -> Task:
    """The task that data of the user's own tell."""
    return task_from_config({**inferred_task(config, otherwise, kind=kind), "training": TRAINING})
