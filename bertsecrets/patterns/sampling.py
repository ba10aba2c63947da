"""Which maps to annotate: every head about equally often, and sequences of all lengths."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence

from bertsecrets.errors import UserError


def choose_heads(
    count: int, num_layers: int, num_heads: int, taken: Iterable[tuple[int, int]], seed: int
) -> list[tuple[int, int]]:
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
            "annotation.min_length and annotation.max_length to lengths that there are."
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
