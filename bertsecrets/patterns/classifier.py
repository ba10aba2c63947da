"""The convolutional classifier of attention patterns, and its stored weights."""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS, Pattern
from bertsecrets.patterns.map_features import (
    BINS,
    COLUMNS,
    OFFSETS,
    ONE,
    PICTURE_CHANNELS,
    SCALES,
    STRIPS,
    SUMMARY_SIZE,
    MapFeatures,
    map_features,
)

MIN_LENGTH = 8
"""Fewest real tokens of a map with a pattern: a band of seven diagonals would fill a shorter map."""

WEIGHTS, CARD = "weights.safetensors", "weights.json"
SHIPPED = Path(__file__).parent
"""The folder of the classifier included in the package."""

INPUT = {
    "patterns": list(PATTERNS),
    "bins": BINS,
    "pictures": PICTURE_CHANNELS,
    "offsets": list(OFFSETS),
    "columns": COLUMNS,
    "numbers": SUMMARY_SIZE,
}
"""The inputs that a classifier was trained with, as in its card."""

_NEVER = -1e4
"""A logit with probability 0 that keeps sums finite."""


class Judgement(NamedTuple):
    """The classifier's predictions for maps; leading axes as in the input.

    Args:
        probability_P: Calibrated probabilities of the five patterns, in their order.
        pattern: Number of the most probable pattern, int64.
        uncertain: Whether the two highest probabilities differ by less than the margin, bool.
    """

    probability_P: Tensor
    pattern: Tensor
    uncertain: Tensor


class PatternNetwork(nn.Module):
    """Five logits per map, by convolutions over the picture and along the strips.

    The paper's network (methods K2) convolves whole maps, where lines thin out and cost grows with the area of longer
    maps. Here maps of all lengths cost the same, and each diagonal has its own channel.

    Args:
        width: Channels of the wider convolutions.
        dropout: Share of the features dropped in training.
    """

    mean_M: Tensor
    deviation_M: Tensor

    def __init__(self, width: int = 32, dropout: float = 0.2) -> None:
        super().__init__()
        half = width // 2
        self.picture = nn.Sequential(
            nn.Conv2d(PICTURE_CHANNELS, half, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(half, width, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        # Channels-last takes half the time on a CPU.
        nn.utils.convert_conv2d_weight_memory_format(self.picture, torch.channels_last)
        self.strips = nn.Sequential(
            nn.Conv1d((SCALES + 1) * STRIPS, 2 * width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv1d(2 * width, width, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.register_buffer("mean_M", torch.zeros(SUMMARY_SIZE))
        self.register_buffer("deviation_M", torch.ones(SUMMARY_SIZE))
        self.summary = nn.Sequential(nn.Linear(SUMMARY_SIZE, width), nn.Tanh())
        self.judge = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(7 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, len(PATTERNS))
        )

    def forward(self, features: MapFeatures) -> Tensor:
        """Logits ``[N, 5]``."""
        along_NDP = self.strips(features.strips_NGP)
        summary_ND = self.summary((features.summary_NM - self.mean_M) / self.deviation_M)
        picture_ND = self.picture(features.picture_NGPP)
        joined_ND = torch.cat((picture_ND, along_NDP.mean(-1), along_NDP.amax(-1), summary_ND), dim=-1)
        logits_NP: Tensor = self.judge(joined_ND)
        return logits_NP


class PatternClassifier(nn.Module):
    """A trained network with its calibration.

    Args:
        network: Gives the logits.
        temperature: Divisor of the logits that calibrates the probabilities (Guo et al. 2017).
        margin: Difference of probabilities below which two patterns are a tie, 0..1.
    """

    def __init__(self, network: PatternNetwork, temperature: float = 1.0, margin: float = 0.1) -> None:
        super().__init__()
        self.network = network
        self.temperature = temperature
        self.margin = margin

    @torch.no_grad()
    def forward(self, attention_BHQK: Tensor, real_BS: Tensor, first_segment_B: Tensor | None = None) -> Judgement:
        """Patterns of all maps, ``[B, H]``; meaningless for maps of fewer than ``MIN_LENGTH`` real tokens.

        Args:
            attention_BHQK: Weights in 0..1, floating point.
            real_BS: Which tokens are not padding, bool, a contiguous run in each example.
            first_segment_B: From :func:`~bertsecrets.patterns.map_features.first_segments`; None for unknown segments.
        """
        # Measures run inside the model's pass, where autocast would round the maps.
        with torch.autocast(attention_BHQK.device.type, enabled=False):
            logits_NP = self.network(map_features(attention_BHQK, real_BS, first_segment_B)) / self.temperature
        logits_BHP = logits_NP.unflatten(0, attention_BHQK.shape[:2])
        if first_segment_B is not None:
            logits_BHP = rule_out_blocks(logits_BHP, first_segment_B[:, None])
        return judge(logits_BHP, self.margin)


def rule_out_blocks(logits: Tensor, first_segment: Tensor) -> Tensor:
    """Logits ``[..., 5]`` with ``block`` excluded for maps with one segment; ``first_segment`` has the leading axes."""
    block = torch.arange(len(PATTERNS), device=logits.device) == PATTERNS.index(Pattern.BLOCK)
    return logits.masked_fill((first_segment == ONE)[..., None] & block, _NEVER)


def judge(logits: Tensor, margin: float) -> Judgement:
    """Probabilities, most probable patterns and ties from calibrated logits ``[..., 5]``."""
    probability_P = logits.softmax(-1)
    # The top two, because the margin is their difference.
    best, pattern = probability_P.topk(2, dim=-1)
    return Judgement(probability_P, pattern[..., 0], best[..., 0] - best[..., 1] < margin)


def load_classifier(folder: Path = SHIPPED) -> PatternClassifier:
    """The classifier of a folder, in evaluation mode.

    Raises:
        UserError: If the files are missing, cannot be read, or belong to a classifier with other inputs.
    """
    try:
        card = json.loads((folder / CARD).read_text("utf-8"))
        state = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"Folder '{folder}' has no readable pattern classifier ({error}); give a folder with {WEIGHTS} and {CARD} "
            "written by python -m tools.pattern_classifier."
        ) from error
    for name, expected in INPUT.items():
        if card.get(name) != expected:
            raise UserError(
                f"The pattern classifier in '{folder}' was trained with {name} {card.get(name)}, but this version "
                f"expects {expected}; train it again with python -m tools.pattern_classifier."
            )
    network = PatternNetwork()
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(
            f"The weights in '{folder}' do not fit the pattern network of this version; train the classifier again "
            "with python -m tools.pattern_classifier."
        ) from error
    return PatternClassifier(network, float(card["temperature"]), float(card["margin"])).eval()
