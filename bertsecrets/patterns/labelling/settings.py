"""Settings of the ``labelling`` section: which maps are sampled for labelling, and which labels are imported."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from bertsecrets.errors import UserError, choices
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.results.run import CHECKPOINT, INITIAL
from bertsecrets.settings import Settings

STAGES = (INITIAL, CHECKPOINT)
_Path = Annotated[str, Field(min_length=1)]
_POSITIVE = "a whole number from 1"


class LabellingSettings(Settings):
    """The ``labelling`` section.

    Args:
        folder: The annotation folder, which several runs may fill; None for ``patterns/`` in the run's folder.
        labels: CSV files of labels to import instead of sampling.
        annotator: Annotator of the rows of these files that name none.
        maps: Number of maps to add.
        stages: ``initial`` (before fine-tuning) and ``checkpoint``; the maps alternate between them.
        min_length, max_length: Bounds on an example's tokens, special tokens included; both inclusive.
        evaluation: Evaluation set; None for the task's first.
        passes: Number of passes with contact sheets.
        votes: Labels of a map on which the passes disagree, before the pattern named most often is taken.
        patterns: Sample only maps that may show one of these patterns; None for a sample of all maps.
        examples: Number of examples searched for ``patterns``.
        seed: Seed of the sample.
    """

    folder: str | None = Field(
        default=None, min_length=1, description="a folder, or null for patterns/ in the run's folder"
    )
    labels: _Path | Annotated[Sequence[_Path], Field(min_length=1)] | None = Field(
        default=None, description="a CSV file of labels, a list of them, or null"
    )
    annotator: str | None = Field(default=None, min_length=1, description="an annotator's name, or null")
    maps: int = Field(default=72, ge=1, description=_POSITIVE)
    stages: Sequence[str] = Field(default=STAGES, description=f"a list of {' and '.join(STAGES)}")
    min_length: int = Field(default=8, ge=1, description=_POSITIVE)
    max_length: int = Field(default=64, ge=1, description=_POSITIVE)
    evaluation: str | None = Field(default=None, description="an evaluation set, or null for the task's first")
    passes: int = Field(default=2, ge=1, description=_POSITIVE)
    votes: int = Field(default=3, ge=2, description="a whole number from 2: the labels of a disputed map")
    patterns: Sequence[str] | None = Field(default=None, description=f"a list of {', '.join(PATTERNS)}, or null")
    examples: int = Field(default=100, ge=1, description=_POSITIVE)
    seed: int = Field(default=0, ge=0, lt=2**32, description=f"a whole number from 0 to {2**32 - 1}")

    @field_validator("stages")
    @classmethod
    def _known_stages(cls, stages: Sequence[str]) -> Sequence[str]:
        if not stages:
            raise UserError(f"labelling.stages names no stage; choose from {', '.join(STAGES)}.")
        for stage in stages:
            if stage not in STAGES:
                raise UserError(f"Unknown stage '{stage}' in labelling.stages; {choices(stage, STAGES)}.")
        return stages

    @field_validator("patterns")
    @classmethod
    def _known_patterns(cls, patterns: Sequence[str] | None) -> Sequence[str] | None:
        if patterns is not None and not patterns:
            raise UserError(f"labelling.patterns names no pattern; choose from {', '.join(PATTERNS)}, or give null.")
        for pattern in patterns or ():
            if pattern not in PATTERNS:
                raise UserError(f"Unknown pattern '{pattern}' in labelling.patterns; {choices(pattern, PATTERNS)}.")
        return patterns

    @model_validator(mode="after")
    def _ordered_lengths(self) -> Self:
        if self.max_length < self.min_length:
            raise UserError(
                f"labelling.max_length is {self.max_length}; expected a whole number from {self.min_length}, which is "
                "labelling.min_length."
            )
        return self
