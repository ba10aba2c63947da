"""Rows that the project generates itself."""

from bertsecrets.data.demo import generate
from bertsecrets.data.example import Example
from bertsecrets.data.task import Task


class DemoSource:
    """The demo corpus; deterministic, with gold annotation."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def examples(self, split: str) -> list[Example]:
        return generate(self.task.name, split)
