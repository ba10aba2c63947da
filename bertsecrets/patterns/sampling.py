"""Which maps to annotate: every head about equally often and sequences of all lengths, or rare patterns."""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from bertsecrets.errors import UserError

Place = tuple[int, int]
"""Layer and head, from 0."""


def choose_heads(count: int, num_layers: int, num_heads: int, taken: Iterable[Place], seed: int) -> list[Place]:
    """Heads for ``count`` more maps, those with the fewest maps so far first and equals in random order.

    However many maps are taken in however many goes, no head ends with two more than another.

    Args:
        count: How many maps.
        num_layers, num_heads: Size of the grid.
        taken: Layer and head of each map that there is already.
        seed: Of the order of equals.
    """
    maps = Counter(taken)
    # Another run that adds to the folder, with the same seed, deals the heads out in another order.
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
    """Positions of ``count`` examples whose lengths spread evenly over ``shortest`` to ``longest`` tokens.

    For each a length is drawn, all alike likely, and the example of the nearest length that was used least so far:
    a random example would as a rule have the task's usual length.

    Args:
        count: How many; examples repeat only where there are fewer.
        lengths: Tokens of every example.
        shortest, longest: Both inclusive.
        seed: Of everything random here.

    Raises:
        UserError: If no example is as long.
    """
    fitting = [position for position, length in enumerate(lengths) if shortest <= length <= longest]
    if not fitting:
        raise UserError(
            f"No example has {shortest} to {longest} tokens (they have {min(lengths)} to {max(lengths)}); set "
            "labelling.min_length and labelling.max_length to lengths that there are."
        )
    generator = random.Random(seed)
    generator.shuffle(fitting)
    used: Counter[int] = Counter()
    chosen = []
    for _ in range(count):
        wanted = generator.randint(shortest, longest)
        position = min(fitting, key=lambda each: (used[each], abs(lengths[each] - wanted)))
        used[position] += 1
        chosen.append(position)
    return chosen


def choose_likely(
    count: int, candidates: Sequence[tuple[Place, Collection[str]]], patterns: Sequence[str], seed: int
) -> list[tuple[int, str]]:
    """Positions of ``count`` candidates that may show one of some patterns, and the pattern each was sought for.

    The patterns take turns, and for each the heads that were chosen least: a pattern that is rare is otherwise seen in
    the one head that shows it always. A pattern without candidates left is passed over.

    Args:
        count: How many; fewer if there are fewer candidates.
        candidates: Head of each map, and which patterns it may show.
        patterns: The patterns wanted.
        seed: Of the order of equals.
    """
    generator = random.Random(seed)
    left = {pattern: [n for n, (_, likely) in enumerate(candidates) if pattern in likely] for pattern in patterns}
    for maps in left.values():
        generator.shuffle(maps)
    heads: dict[str, Counter[Place]] = {pattern: Counter() for pattern in patterns}
    chosen: dict[int, str] = {}
    while len(chosen) < count and any(left.values()):
        for pattern in patterns:
            left[pattern] = [n for n in left[pattern] if n not in chosen]
            if left[pattern] and len(chosen) < count:
                best = min(left[pattern], key=lambda n: heads[pattern][candidates[n][0]])
                heads[pattern][candidates[best][0]] += 1
                chosen[best] = pattern
    return list(chosen.items())
