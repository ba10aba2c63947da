"""The tasks of conf/task, for tests."""

from pathlib import Path

from omegaconf import OmegaConf

from bertsecrets.data.task import Task, task_from_config

FOLDER = Path(__file__).resolve().parents[2] / "conf" / "task"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "file")


def task(name: str) -> Task:
    """The task of a YAML file."""
    content = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    assert isinstance(content, dict)
    return task_from_config({str(key): value for key, value in content.items()})
