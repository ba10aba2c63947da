"""Which maps to label: a sample of all heads and lengths, or maps that may show rare patterns."""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import MIN_LENGTH, PatternClassifier
from bertsecrets.patterns.labelling.rules import Rules, masses

HeadIndex = tuple[int, int]
"""Layer and head, from 0."""


def choose_heads(count: int, num_layers: int, num_heads: int, taken: Iterable[HeadIndex], seed: int) -> list[HeadIndex]:
    """Heads of ``count`` more maps, those with the fewest maps first and ties in random order.

    Over any number of calls that fill one folder, the numbers of maps of two heads differ by at most one.

    Args:
        count: Number of maps.
        num_layers, num_heads: Size of the grid.
        taken: Layer and head of each map that the folder holds already.
        seed: Seed of the order of ties.
    """
    maps = Counter(taken)
    # Another run with the same seed that adds to the folder draws another order.
    generator = random.Random(f"{seed} {maps.total()}")
    grid = [(layer, head) for layer in range(num_layers) for head in range(num_heads)]
    chosen = []
    for _ in range(count):
        fewest = min(maps[place] for place in grid)
        place = generator.choice([place for place in grid if maps[place] == fewest])
        maps[place] += 1
        chosen.append(place)
    return chosen


def choose_examples(count: int, lengths: Sequence[int], shortest: int, longest: int, seed: int) -> list[int]:
    """Positions of ``count`` examples with lengths spread evenly over ``shortest`` to ``longest`` tokens.

    For each map a length is drawn uniformly, then the least used example with the nearest length. Random examples would
    mostly have the task's usual length.

    Args:
        count: Number of examples; they repeat only if fewer have such a length.
        lengths: Tokens of every example.
        shortest, longest: Bounds, both inclusive.
        seed: Seed of the draws.

    Raises:
        UserError: If no example has such a length.
    """
    fitting = [position for position, length in enumerate(lengths) if shortest <= length <= longest]
    if not fitting:
        raise UserError(
            f"No example has {shortest} to {longest} tokens (they have {min(lengths)} to {max(lengths)}); set "
            "labelling.min_length and labelling.max_length to lengths within that range."
        )
    generator = random.Random(seed)
    generator.shuffle(fitting)
    used: Counter[int] = Counter()
    chosen = []
    for _ in range(count):
        wanted = generator.randint(shortest, longest)
        position = min(fitting, key=lambda position: (used[position], abs(lengths[position] - wanted)))
        used[position] += 1
        chosen.append(position)
    return chosen


def possible_patterns(
    classifier: PatternClassifier, rules: Rules, maps_NQQ: Tensor, first_segment: int
) -> list[set[str]]:
    """For each map, the pattern by the network and the pattern by the rules.

    A sample that accepts either favours neither when the two are compared on it.

    Args:
        classifier: The network.
        rules: The baseline.
        maps_NQQ: Maps of one length without padding, float32; no pattern for maps shorter than ``MIN_LENGTH``.
        first_segment: As in :func:`~bertsecrets.patterns.segments.first_segments`.
    """
    count, length = maps_NQQ.shape[:2]
    if length < MIN_LENGTH:
        return [set() for _ in range(count)]
    real_NS, first_segment_N = torch.ones(count, length, dtype=torch.bool), torch.full((count,), first_segment)
    by_network_N = classifier(maps_NQQ[:, None], real_NS, first_segment_N).pattern[:, 0].tolist()
    by_rules_N = rules(masses(list(maps_NQQ), first_segment_N.tolist())).tolist()
    return [{PATTERNS[one], PATTERNS[other]} for one, other in zip(by_network_N, by_rules_N, strict=True)]


def choose_by_pattern(
    count: int, candidates: Sequence[tuple[HeadIndex, Collection[str]]], patterns: Sequence[str], seed: int
) -> list[tuple[int, str]]:
    """Positions of ``count`` candidates that may show one of some patterns, each with that pattern.

    The patterns alternate, and for each the heads chosen least come first: otherwise a rare pattern would be sampled from
    the one head that always shows it. Patterns without candidates are skipped.

    Args:
        count: Number of maps; fewer are chosen if there are fewer candidates.
        candidates: Head of each map, and the patterns that it may show.
        patterns: The patterns to sample.
        seed: Seed of the order of ties.
    """
    generator = random.Random(seed)
    left = {pattern: [n for n, (_, possible) in enumerate(candidates) if pattern in possible] for pattern in patterns}
    for positions in left.values():
        generator.shuffle(positions)
    heads: dict[str, Counter[HeadIndex]] = {pattern: Counter() for pattern in patterns}
    chosen: dict[int, str] = {}
    while len(chosen) < count and any(left.values()):
        for pattern in patterns:
            left[pattern] = [n for n in left[pattern] if n not in chosen]
            if left[pattern] and len(chosen) < count:
                best = min(left[pattern], key=lambda n: heads[pattern][candidates[n][0]])
                heads[pattern][candidates[best][0]] += 1
                chosen[best] = pattern
    return list(chosen.items())
