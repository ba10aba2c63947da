"""Settings for smaller models: what to remove, how much, and which tests to pass."""

from typing import Annotated, Literal

from pydantic import Field

from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.settings import Settings

SPEEDUPS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
"""Speed-ups that a search for smaller models tries, in this order, if none is given."""

_COUNT = "a whole number from 1"

_SpeedUp = Annotated[float, Field(gt=1, allow_inf_nan=False)]


class _SmallerSettings(Settings):
    """Common settings of all searches for smaller models.

    Args:
        max_loss: The margin: the largest acceptable loss of score, in points (hundredths of the score).
        max_class_loss: The largest acceptable loss of accuracy within a class, in points; None to report the class with
            the largest loss without a test.
        confidence: Joint confidence of all searches on the same examples at which such losses must be excluded, and
            level of intervals.
        examples: Number of training examples for selection.
        evaluation: Evaluation set of the test; None for the task's first.
        seed: Seed of all random numbers.
    """

    max_loss: float = Field(
        gt=0, allow_inf_nan=False, description="a positive number of points (hundredths of the score)"
    )
    max_class_loss: float | None = Field(gt=0, le=100, description="a number of points above 0 and up to 100, or null")
    confidence: float = Field(gt=0.5, lt=1, description="a number between 0.5 and 1")
    examples: int = Field(ge=2, description="a whole number from 2")
    evaluation: str | None = Field(description="the name of an evaluation set, or null for the first")
    seed: int = Field(ge=0, lt=2**32, description=f"a whole number from 0 to {2**32 - 1}")


class PruneSettings(_SmallerSettings):
    """The ``prune`` section of the configuration.

    Args:
        scores: Scores that choose the heads to remove (the first one for ``keep``): names in
            :data:`bertsecrets.pruning.scores.SCORES` or :func:`bertsecrets.pruning.scores.measured_scores`, columns
            of head tables, or functions. The controls are always added.
        tables: Folders of other analyses of the checkpoint, whose columns can serve as scores.
        iterative: Whether scores are recomputed after each step; otherwise once (Michel et al. 2019).
        step: Share of all heads removed in each step.
        keep: Save the model with this many heads; None for the smallest that passes its test.
        seeds: Number of random orders.
        latency_rounds: Timed passes of each smaller model of the chosen order; 0 for none.
        save: Whether to write the pruned model.
        export: Programs to write with it.
    """

    conf = ("prune/default",)

    scores: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1, description="a list of pruning scores")
    tables: list[Annotated[str, Field(min_length=1)]] = Field(description="a list of folders of analyses")
    iterative: bool = Field(description="true or false")
    step: float = Field(gt=0, lt=1, description="a number between 0 and 1")
    keep: int | None = Field(ge=1, description=f"{_COUNT}, or null")
    seeds: int = Field(ge=1, description=_COUNT)
    latency_rounds: int = Field(ge=0, le=10_000, description="a whole number from 0")
    save: bool = Field(description="true or false")
    export: list[Literal["program", "onnx"]] = Field(description="a list of program, onnx, or both")


class ShrinkSettings(_SmallerSettings):
    """The ``shrink`` section of the configuration.

    Args:
        speedup: Requested speed-ups, tested in this order up to the first failure; None for :data:`SPEEDUPS`.
        epochs: Passes of distillation for each model; 0 for none.
        learning_rate: Peak learning rate of the distillation, which then decays linearly to 0.
        distilled_on: Number of training examples per pass.
        batch_size, length: Examples per timed batch, and tokens per example; None for the mean length of the evaluation
            set.
        latency_rounds: Timed passes of each shape.
        export: Programs to write with the smaller model.
    """

    conf = ("shrink/default",)

    speedup: _SpeedUp | list[_SpeedUp] | None = Field(
        description="a number above 1, a list of them, ascending, or null"
    )
    epochs: int = Field(ge=0, description="a whole number from 0")
    learning_rate: float = Field(gt=0, le=1, description="a number above 0 and up to 1")
    distilled_on: int = Field(ge=2, description="a whole number from 2")
    batch_size: int = Field(ge=1, description=_COUNT)
    length: int | None = Field(ge=2, description="a whole number from 2, or null")
    latency_rounds: int = Field(ge=1, le=10_000, description=_COUNT)
    export: list[Literal["program", "onnx", "int8"]] = Field(description="a list of program, onnx and int8")


def check_class_loss(section: str, max_class_loss: float | None, task: Task) -> None:
    """Raise UserError if a loss within classes is to be tested but the task has no classes."""
    if max_class_loss is not None and not task.head.classifies:
        raise UserError(
            f"{section}.max_class_loss is {max_class_loss:g}, but task '{task.name}' does not predict "
            "one class for each text; remove it."
        )
