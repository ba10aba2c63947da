"""Share of each attention pattern per head (Kovaleva et al. 2019, section 4.1 and Figure 2; methods K2)."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Feed, MaxExamples, Measure
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import MIN_LENGTH, SHIPPED, load_classifier
from bertsecrets.patterns.section import UNCERTAIN, compare_patterns, main_patterns, pattern_section
from bertsecrets.patterns.segments import first_segments
from bertsecrets.results.report.content import Section
from bertsecrets.results.views import Comparison, MeasureView

_log = logging.getLogger(__name__)

_SHARE = "share of a head's maps"


class Patterns(Measure):
    """Share of a head's maps that show each pattern; the columns sum to 1.

    Columns:
        The five :data:`~bertsecrets.patterns.classes.PATTERNS`, and ``uncertain``. Each example is 1 in the column of
        its pattern and 0 in the others; the mean is a share, and its standard error that of a share. Maps of fewer than
        8 real tokens do not count.

    Args:
        num_layers, num_heads: Size of the grid.
        max_examples: Size of a random sample of the examples; None for all. The paper takes 1000.
        classifier: Folder of a classifier that ``tools.pattern_classifier`` wrote; None for the one in the package.
        margin: Difference of probabilities below which two patterns are a tie; None for the classifier's.

    Raises:
        UserError: If the classifier cannot be read or ``margin`` is not in 0..1.
    """

    name = "patterns"
    title = "Attention patterns"
    columns = tuple(Column(name, name.replace("_", " + "), _SHARE) for name in (*PATTERNS, UNCERTAIN))
    tracked = ()

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        max_examples: MaxExamples = None,
        classifier: Annotated[str | None, Field(min_length=1, description="a folder, or null")] = None,
        margin: Annotated[float | None, Field(ge=0, le=1, description="a number from 0 to 1, or null")] = None,
    ) -> None:
        super().__init__(num_layers, num_heads)
        self.classifier = load_classifier(SHIPPED if classifier is None else Path(classifier))
        if margin is not None:
            if not isinstance(margin, (int, float)) or not 0 <= margin <= 1:
                raise UserError(f"margin of the patterns measure is {margin!r}; expected a number from 0 to 1.")
            self.classifier.margin = margin
        self.feed = Feed(max_examples=max_examples)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        first_segment_B = first_segments(batch.special_BS, real_BS)
        # On MPS, which has no float64, the sums are on the CPU and the maps are not.
        judgement = self.classifier.to(attention_BHQK.device)(attention_BHQK, real_BS, first_segment_B)
        column_BH = judgement.pattern.masked_fill(judgement.uncertain, len(PATTERNS))
        share_BHC = torch.nn.functional.one_hot(column_BH, len(self.columns)).to(attention_BHQK.dtype)
        return share_BHC.masked_fill((real_BS.sum(-1) < MIN_LENGTH)[:, None, None], torch.nan)

    def compute(self) -> HeadGrid:
        """The shares; logs a warning if no map was long enough to show a pattern."""
        grid = super().compute()
        if not grid.count_LHC.any():
            _log.warning(
                f"No example of this evaluation set has the {MIN_LENGTH} tokens that a map needs to show a pattern; choose "
                "another set, or leave out the patterns measure."
            )
        return grid

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Figure 2 of the paper, the pattern of each head, and how both moved."""
        return pattern_section(view)

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """The pattern that at least half of a head's maps show, if any."""
        return {"pattern": main_patterns(view)} if view.step is not None else {}

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """Figure 2 of the paper, condition by condition."""
        section, heads = compare_patterns(comparison), super().compare(comparison)
        if section is None or heads is None:
            return section or heads
        return replace(
            section,
            findings=[*section.findings, *heads.findings],
            tables=[*section.tables, *heads.tables],
            figures=[*section.figures, *heads.figures],
            rows=heads.rows,
        )
