"""Which patterns maps may show, for those who look for rare ones to annotate."""

import torch
from torch import Tensor

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.network import MIN_LENGTH, PatternClassifier
from bertsecrets.patterns.rules import Rules, masses


def likely_patterns(
    classifier: PatternClassifier, rules: Rules, maps_NQQ: Tensor, first_segment: int
) -> list[set[str]]:
    """The pattern that the network names for each map, and the one that the rules name.

    Either is enough, so that maps chosen by it favour neither when the two are compared on them.

    Args:
        classifier: The network.
        rules: The baseline.
        maps_NQQ: Maps of one length without padding, float32; shorter than the classifier's least length, no pattern.
        first_segment: As :func:`~bertsecrets.patterns.segments.first_segments` gives it.
    """
    count, length = maps_NQQ.shape[:2]
    if length < MIN_LENGTH:
        return [set() for _ in range(count)]
    real_NS, first_segment_N = torch.ones(count, length, dtype=torch.bool), torch.full((count,), first_segment)
    judged_N = classifier(maps_NQQ[:, None], real_NS, first_segment_N).pattern[:, 0].tolist()
    ruled_N = rules(masses(list(maps_NQQ), first_segment_N.tolist())).tolist()
    return [{PATTERNS[judged], PATTERNS[ruled]} for judged, ruled in zip(judged_N, ruled_N, strict=True)]
