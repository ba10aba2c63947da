"""The convolutional classifier of attention patterns."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertsecrets.patterns.classes import PATTERNS, Pattern
from bertsecrets.patterns.segments import ONE
from bertsecrets.patterns.views import PICTURES, SCALES, STRIPS, SUMMARY, Views, make_views

MIN_LENGTH = 8
"""Real tokens that a map must have: a band of seven diagonals fills a shorter one."""


_NEVER = -1e4
"""A logit that leaves nothing of a probability, and sums that stay finite."""


class Judgement(NamedTuple):
    """What the classifier says of maps, leading axes as given.

    Args:
        probability_P: Calibrated probabilities of the five patterns, in their order.
        pattern: Number of the most probable pattern, int64.
        uncertain: Whether the two most probable patterns are closer than the margin: no pattern should be named.
    """

    probability_P: Tensor
    pattern: Tensor
    uncertain: Tensor


class PatternNetwork(nn.Module):
    """Five logits for each map, from its views: convolutions over the picture and along the strips.

    The paper's network (METHODS K2) convolves whole maps, whose lines thin out as maps grow and whose cost grows with
    their area. Here a map of any length costs the same, and a diagonal is a channel of its own.

    Args:
        width: Channels of the wider convolutions.
        dropout: Share of the features left out in training.
    """

    mean_M: Tensor
    deviation_M: Tensor

    def __init__(self, width: int = 32, dropout: float = 0.2) -> None:
        super().__init__()
        half = width // 2
        self.picture = nn.Sequential(
            nn.Conv2d(PICTURES, half, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(half, width, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        # With the channels last a CPU takes half the time.
        nn.utils.convert_conv2d_weight_memory_format(self.picture, torch.channels_last)
        self.strips = nn.Sequential(
            nn.Conv1d((SCALES + 1) * STRIPS, 2 * width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv1d(2 * width, width, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.register_buffer("mean_M", torch.zeros(SUMMARY))
        self.register_buffer("deviation_M", torch.ones(SUMMARY))
        self.summary = nn.Sequential(nn.Linear(SUMMARY, width), nn.Tanh())
        self.judge = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(7 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, len(PATTERNS))
        )

    def standardise(self, summary_NM: Tensor) -> None:
        """Makes the summaries of these maps have mean 0 and deviation 1."""
        self.mean_M = summary_NM.mean(0)
        self.deviation_M = summary_NM.std(0).clamp(min=1e-3)

    def forward(self, views: Views) -> Tensor:
        """Logits ``[N, 5]``."""
        along_NDP = self.strips(views.strips_NGP)
        summary_ND = self.summary((views.summary_NM - self.mean_M) / self.deviation_M)
        picture_ND = self.picture(views.picture_NGPP)
        features = torch.cat((picture_ND, along_NDP.mean(-1), along_NDP.amax(-1), summary_ND), dim=-1)
        logits_NP: Tensor = self.judge(features)
        return logits_NP


class PatternClassifier(nn.Module):
    """A trained network with its calibration.

    Args:
        network: Gives the logits.
        temperature: Divides them, so that a probability of 0.8 is right in eight of ten cases (Guo et al. 2017).
        margin: Two patterns whose probabilities differ by less are a tie.
    """

    def __init__(self, network: PatternNetwork, temperature: float = 1.0, margin: float = 0.1) -> None:
        super().__init__()
        self.network = network
        self.temperature = temperature
        self.margin = margin

    @torch.no_grad()
    def forward(self, attention_BHQK: Tensor, real_BS: Tensor, first_segment_B: Tensor | None = None) -> Judgement:
        """The patterns of all maps, ``[B, H]``; of maps shorter than ``MIN_LENGTH`` real tokens they mean nothing.

        Args:
            attention_BHQK: Weights in 0..1, floating.
            real_BS: Which tokens are real, bool, a contiguous run in each example; padding has no influence.
            first_segment_B: Tokens of the first of two segments, int64, as
                :func:`~bertsecrets.patterns.segments.first_segments` gives them; None where nothing is known of them.
        """
        # Measures are fed within the model's pass, where autocast would round the maps.
        with torch.autocast(attention_BHQK.device.type, enabled=False):
            logits_NP = self.network(make_views(attention_BHQK, real_BS, first_segment_B)) / self.temperature
        logits_BHP = logits_NP.unflatten(0, attention_BHQK.shape[:2])
        if first_segment_B is not None:
            logits_BHP = rule_out_blocks(logits_BHP, first_segment_B[:, None])
        return judge(logits_BHP, self.margin)


def rule_out_blocks(logits: Tensor, first_segment: Tensor) -> Tensor:
    """Logits ``[..., 5]`` by which no map of one segment shows blocks; ``first_segment`` has the leading axes."""
    block = torch.arange(len(PATTERNS), device=logits.device) == PATTERNS.index(Pattern.BLOCK)
    return logits.masked_fill((first_segment == ONE)[..., None] & block, _NEVER)


def judge(logits: Tensor, margin: float) -> Judgement:
    """Probabilities, most probable patterns and ties from calibrated logits ``[..., 5]``."""
    probability_P = logits.softmax(-1)
    best, pattern = probability_P.topk(2, dim=-1)
    return Judgement(probability_P, pattern[..., 0], best[..., 0] - best[..., 1] < margin)
