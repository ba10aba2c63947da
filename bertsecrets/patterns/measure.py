"""Share of each attention pattern, head by head (Kovaleva et al. 2019, section 4.1 and Figure 2; METHODS K2)."""

import logging
from pathlib import Path

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Feed, Measure
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.network import MIN_LENGTH
from bertsecrets.patterns.segments import first_segments
from bertsecrets.patterns.trained import SHIPPED, load_classifier

_log = logging.getLogger(__name__)

PATTERN_MEASURE = "patterns"
UNCERTAIN = "uncertain"
"""The column of the maps of which the classifier names no pattern: the two most probable ones are too close."""


class Patterns(Measure):
    """Share of a head's maps that show each pattern; the columns sum to 1.

    Columns:
        The five :data:`~bertsecrets.patterns.classes.PATTERNS`, and ``uncertain``. Each example is 1 in the column of
        its pattern and 0 in the others, so that the mean is a share and its standard error that of a share. Maps of
        fewer than 8 real tokens do not count.

    Args:
        num_layers, num_heads: Size of the grid.
        max_examples: A random sample of this many examples; None for all. The paper takes 1000.
        classifier: Folder of a classifier of one's own, as ``train_patterns`` writes it; None for the package's.
        margin: Two patterns whose probabilities differ by less are a tie; None for the classifier's own.

    Raises:
        UserError: If there is no such classifier or ``margin`` is not in 0..1.
    """

    name = PATTERN_MEASURE
    columns = (*PATTERNS, UNCERTAIN)

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        max_examples: int | None = None,
        classifier: str | None = None,
        margin: float | None = None,
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
        # Where the sums stay on the CPU (MPS has no float64), the maps are elsewhere.
        judgement = self.classifier.to(attention_BHQK.device)(attention_BHQK, real_BS, first_segment_B)
        column_BH = judgement.pattern.masked_fill(judgement.uncertain, len(PATTERNS))
        share_BHC = torch.nn.functional.one_hot(column_BH, len(self.columns)).to(attention_BHQK.dtype)
        return share_BHC.masked_fill((real_BS.sum(-1) < MIN_LENGTH)[:, None, None], torch.nan)

    def compute(self) -> HeadGrid:
        """The shares; says so where no map was long enough to have a pattern."""
        grid = super().compute()
        if not grid.count_LHC.any():
            _log.warning(
                f"No example of this evaluation set has the {MIN_LENGTH} tokens that a map needs to show a pattern, so "
                "that no head has one; choose another set, or leave the patterns measure out."
            )
        return grid
