"""The demo corpus: four small tasks written by a grammar, with gold annotation of every word."""

from bertsecrets.data.demo.tasks import RECIPES, SPLITS, examples
from bertsecrets.data.example import Example
from bertsecrets.errors import choices

DEMO_TASKS: tuple[str, ...] = tuple(RECIPES)


def generate(task: str, split: str, seed: int = 0) -> list[Example]:
    """The examples of one split ("train", "validation" or "test") of a demo task.

    The same arguments give the same examples on every machine. "train" has 2,000 of them, the others 400, and no
    sentence occurs twice in a task. Labels are class indices (0 or 1; 0 to 2 for NLI), scores from 0.0 to 5.0, and
    None throughout "test".

    Raises:
        ValueError: ``task`` is not in ``DEMO_TASKS``, or there is no such split.
    """
    if task not in RECIPES:
        raise ValueError(f"Unknown demo task {task!r}: {choices(task, RECIPES)}.")
    if split not in SPLITS:
        raise ValueError(f"Unknown split {split!r} of {task}: {choices(split, SPLITS)}.")
    return examples(task, split, seed)
