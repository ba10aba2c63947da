"""Share of each attention pattern per head (Kovaleva et al. 2019, section 4.1 and Figure 2; methods K2)."""

import logging
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import MaxExamples, Measure
from bertsecrets.patterns.classes import NAMES, PATTERNS, pattern_label
from bertsecrets.patterns.classifier import MIN_LENGTH, SHIPPED, load_classifier
from bertsecrets.patterns.map_features import first_segments
from bertsecrets.settings import typed

_log = logging.getLogger(__name__)

_SHARE = "share of a head's maps"


class Patterns(Measure):
    """Share of a head's maps that show each pattern; the columns sum to 1.

    Columns:
        The five :data:`~bertsecrets.patterns.classes.PATTERNS`, and ``uncertain``. Each example is 1 in the column of
        its pattern and 0 in the others; the mean is a share with the standard error of a proportion. Maps of fewer than
        8 real tokens do not count.

    Args:
        max_examples: Size of a random sample of the examples; None for all. The paper uses 1000.
        classifier: Folder of a classifier written by ``tools.pattern_classifier``; None for the one in the package.
        margin: Difference of probabilities below which two patterns are a tie; None for the classifier's.

    Raises:
        UserError: If the classifier cannot be read or ``margin`` is not in 0..1.
    """

    name = "patterns"
    title = "Attention patterns"
    columns = tuple(Column(name, pattern_label(name), _SHARE, (0.0, 1.0)) for name in NAMES)
    presenter = "bertsecrets.present.patterns:PRESENTER"
    tracked = ()

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        max_examples: MaxExamples = None,
        classifier: Annotated[str | None, Field(min_length=1, description="a folder, or null")] = None,
        margin: Annotated[float | None, Field(ge=0, le=1, description="a number from 0 to 1, or null")] = None,
    ) -> None:
        super().__init__(num_layers, num_heads, max_examples)
        self.classifier = load_classifier(SHIPPED if classifier is None else Path(classifier))
        if margin is not None:
            self.classifier.margin = margin

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BS = batch.attention_mask_BS.bool()
        first_segment_B = first_segments(batch.special_BS, real_BS)
        # On MPS, which has no float64, the sums are on the CPU but the maps are not.
        judgement = self.classifier.to(attention_BHQK.device)(attention_BHQK, real_BS, first_segment_B)
        column_BH = judgement.pattern.masked_fill(judgement.uncertain, len(PATTERNS))
        share_BHC = torch.nn.functional.one_hot(column_BH, len(self.columns)).to(attention_BHQK.dtype)
        return share_BHC.masked_fill((real_BS.sum(-1) < MIN_LENGTH)[:, None, None], torch.nan)

    def compute(self) -> HeadGrid:
        """The shares; logs a warning if no map was long enough to show a pattern."""
        grid = super().compute()
        if not grid.count_LHC.any():
            _log.warning(
                f"No example of this evaluation set has {MIN_LENGTH} tokens, the minimum for a pattern; choose "
                "another set, or remove the patterns measure."
            )
        return grid
