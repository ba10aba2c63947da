"""The adjectives and adverbs of the demo corpus, in pairs of opposites."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Modifier:
    """One meaning with the adjectives or adverbs that express it.

    ``polarity`` is -1, 0 or 1. ``suits`` names the classes of nouns (adjectives) or the kinds of manner (adverbs)
    that it goes with.
    """

    forms: tuple[str, ...]
    polarity: int
    suits: tuple[str, ...]

    def form(self, second: bool) -> str:
        """The word, of the second synonym if there is one and it is asked for."""
        return self.forms[-1 if second else 0]


_THING = "vehicle craft furniture instrument clothing device container"
# positive or first word | its opposite | whether the pair judges | what it goes with
_ADJECTIVES = f"""
old|new|0|{_THING} text tool repairtool blade
big=large|small=little|0|{_THING} animal plant building opening valuable
expensive=costly|cheap|0|vehicle craft instrument clothing device furniture valuable tool
heavy|light|0|instrument furniture container tool
narrow|wide|0|opening furniture
long|short|0|text contract
tall|short|0|person plant
young|elderly|0|person
rich=wealthy|poor|0|person
famous=renowned|unknown|0|person
ancient|modern|0|building
hot|cold|0|drink dish
sweet|bitter|0|drink
tame|wild|0|animal
round|square|0|container
green|yellow|0|vehicle clothing container opening
red|blue|0|vehicle clothing container opening
wooden|metal|0|furniture opening tool
fresh|stale|1|dish meal
ripe|rotten|1|produce
beautiful|ugly|1|clothing valuable plant building furniture room
clean|dirty|1|vehicle clothing container room
healthy|sick|1|animal
gentle|vicious|1|animal
interesting|boring|1|text show
funny|tedious|1|text show
kind|cruel|1|person staff
polite=courteous|rude|1|person staff
honest|dishonest|1|person
brave|cowardly|1|person
friendly|unfriendly|1|person staff
clever=smart|foolish|1|person
generous|greedy|1|person
attentive|careless|1|staff
helpful|arrogant|1|staff
delicious=tasty|bland|1|meal
crisp|soggy|1|meal
gripping|dull|1|show
original|predictable|1|show
charming|silly|1|show
memorable|forgettable|1|show
comfortable|uncomfortable|1|room
cozy|cramped|1|room
quiet|noisy|1|room
wonderful|awful|1|any
excellent|terrible|1|any
superb|dreadful|1|any
lovely|horrible|1|any
fantastic|disappointing|1|any
good|bad|1|any
"""
_ADVERBS = """
quickly=rapidly|slowly|0|speed
carefully|carelessly|1|care
secretly|openly|0|secrecy
quietly=silently|noisily|0|sound
warmly|coldly|1|warmth
gladly=happily|reluctantly|1|mood
"""


def _pairs(table: str) -> tuple[tuple[Modifier, Modifier], ...]:
    rows = [row.split("|") for row in table.split("\n") if row]
    return tuple(
        (
            Modifier(tuple(first.split("=")), int(polarity), tuple(suits.split())),
            Modifier(tuple(second.split("=")), -int(polarity), tuple(suits.split())),
        )
        for first, second, polarity, suits in rows
    )


_ADJECTIVE_PAIRS = _pairs(_ADJECTIVES)
_ADVERB_PAIRS = _pairs(_ADVERBS)
ADJECTIVES: tuple[Modifier, ...] = tuple(modifier for pair in _ADJECTIVE_PAIRS for modifier in pair)
ADVERBS: tuple[Modifier, ...] = tuple(modifier for pair in _ADVERB_PAIRS for modifier in pair)
OPPOSITE: dict[Modifier, Modifier] = {
    modifier: other for one, two in _ADJECTIVE_PAIRS + _ADVERB_PAIRS for modifier, other in ((one, two), (two, one))
}


def _by_kind(modifiers: tuple[Modifier, ...]) -> dict[str, tuple[Modifier, ...]]:
    kinds = dict.fromkeys(kind for modifier in modifiers for kind in modifier.suits)
    return {kind: tuple(modifier for modifier in modifiers if kind in modifier.suits) for kind in kinds}


ADJECTIVES_FOR: dict[str, tuple[Modifier, ...]] = _by_kind(ADJECTIVES)
ADVERBS_FOR: dict[str, tuple[Modifier, ...]] = _by_kind(ADVERBS)
