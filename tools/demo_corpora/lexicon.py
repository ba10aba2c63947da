"""The lexicon of the demo corpus: nouns and names by semantic class, adjectives and adverbs in pairs of opposites."""

from dataclasses import dataclass

NUMERALS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
PRONOUNS = {
    "f": ("she", "her", "her"),
    "m": ("he", "him", "his"),
    "n": ("it", "it", "its"),
    "plural": ("they", "them", "their"),
}
IRREGULAR_PLURALS = {
    "deer": "deer",
    "goose": "geese",
    "knife": "knives",
    "man": "men",
    "mouse": "mice",
    "scarf": "scarves",
    "sheep": "sheep",
    "shelf": "shelves",
    "wolf": "wolves",
    "woman": "women",
    "piano": "pianos",
    "cello": "cellos",
    "banjo": "banjos",
    "radio": "radios",
}


@dataclass(frozen=True, slots=True)
class Noun:
    """One meaning with the nouns that express it.

    ``forms`` has the singular and plural of each synonym. ``gender`` is "f", "m", "n", or "any" for a noun that leaves
    a person's gender open. A noun that is not ``countable`` has no plural; a ``proper`` one has no determiner.
    """

    forms: tuple[tuple[str, str], ...]
    category: str
    gender: str = "n"
    countable: bool = True
    proper: bool = False

    def form(self, second: bool, plural: bool = False) -> str:
        """The inflected word; of the second synonym, if there is one, when ``second``."""
        return self.forms[-1 if second else 0][plural]


def pluralize(singular: str) -> str:
    """The plural of an English noun.

    >>> [pluralize(noun) for noun in ("box", "baby", "boy", "wolf", "tomato")]
    ['boxes', 'babies', 'boys', 'wolves', 'tomatoes']
    """
    if singular in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[singular]
    if singular.endswith(("s", "x", "ch", "sh", "o")):
        return singular + "es"
    if singular.endswith("y") and singular[-2] not in "aeiou":
        return singular[:-1] + "ies"
    return singular + "s"


# Within a row "=" joins synonyms.
_COUNTABLE = {
    ("person", "any"): """
        doctor=physician lawyer=attorney teacher nurse farmer baker pilot engineer plumber journalist=reporter painter
        sculptor singer dancer judge professor student librarian gardener carpenter electrician mechanic soldier sailor
        tailor butcher barber dentist surgeon scientist chemist architect banker accountant clerk manager=supervisor
        driver guard writer=author poet editor translator photographer coach=trainer athlete chef=cook
        neighbor tourist guest visitor customer mayor senator minister diplomat musician composer secretary
        artist historian biologist astronaut jeweler blacksmith""",
    ("person", "f"): "woman girl aunt actress waitress queen princess grandmother widow nun",
    ("person", "m"): "man boy uncle actor waiter king prince grandfather monk butler",
    ("police", "any"): "detective=investigator officer constable sheriff",
    ("animal", "n"): """
        dog=hound cat horse cow pig goat sheep donkey rabbit fox wolf bear lion tiger elephant monkey parrot
        pigeon owl eagle duck goose hamster mouse squirrel deer camel otter turtle hedgehog""",
    ("dish", "n"): "sandwich cake pie omelet pizza pancake sausage salad burger muffin waffle stew pudding",
    ("produce", "n"): "apple orange banana pear peach carrot onion potato tomato lemon melon cucumber apricot",
    ("repairtool", "n"): "hammer drill wrench screwdriver",
    ("blade", "n"): "knife cleaver",
    ("tool", "n"): "saw shovel rake axe chisel crowbar needle spade hoe ladder bucket broom rope wheelbarrow toolbox",
    ("vehicle", "n"): "car=automobile truck=lorry bus van tractor taxi=cab ambulance motorcycle=motorbike scooter jeep",
    ("craft", "n"): "bicycle=bike boat ship=vessel ferry canoe yacht airplane helicopter sailboat wagon carriage",
    ("text", "n"): """
        letter novel report article poem story=tale essay memo manual=handbook speech recipe magazine script brochure
        biography diary play""",
    ("contract", "n"): "contract=agreement treaty petition lease invoice certificate license declaration",
    ("clothing", "n"): """
        coat jacket shirt dress skirt hat scarf sweater suit vest belt cap raincoat uniform apron robe cloak blouse
        cardigan tie""",
    ("instrument", "n"): """
        guitar piano violin=fiddle cello flute trumpet drum harp clarinet saxophone oboe banjo accordion trombone
        ukulele viola mandolin tuba xylophone""",
    ("building", "n"): """
        house church school hospital castle bridge tower barn museum theater library hotel factory station temple
        palace cabin garage warehouse stadium""",
    ("region", "n"): "village town city park",
    ("room", "n"): "kitchen garden office basement=cellar attic courtyard hallway classroom workshop lobby",
    ("furniture", "n"): """
        table chair desk bed sofa=couch shelf cupboard wardrobe bench lamp mirror carpet=rug stool bookcase cradle
        armchair pillow blanket""",
    ("container", "n"): "box bottle bag suitcase basket drawer jar envelope chest cabinet parcel=package",
    ("opening", "n"): "door window gate hatch shutter",
    ("valuable", "n"): """
        ring necklace watch bracelet painting=picture statue=sculpture vase coin diamond crown earring medal clock""",
    ("device", "n"): "camera phone=telephone laptop computer radio television printer toaster oven heater",
    ("plant", "n"): "tree rose tulip bush=shrub vine lily oak daisy sunflower orchid herb palm",
}
_MASS = {
    "dish": "soup bread rice pasta porridge",
    "produce": "cheese butter",
    "drink": "coffee tea juice milk wine beer lemonade water cocoa cider",
}
_NAMES = {
    "f": """Anna Maria Laura Emma Julia Sarah Helen Alice Clara Diana Eva Grace Irene Jane Karen Linda Nora Olivia
        Paula Ruth""",
    "m": """Peter Paul John David Thomas Martin Robert Simon Frank George Henry Ivan Jack Kevin Leo Mark Oliver Philip
        Victor William""",
}
_GENERAL = {
    "animal": "animal",
    "instrument": "instrument",
    "vehicle": "vehicle",
    "contract": "document",
    "building": "building",
    "tool": "tool",
    "repairtool": "tool",
    "plant": "plant",
    "device": "device",
}


def _countable(row: str, category: str, gender: str) -> Noun:
    return Noun(tuple((form, pluralize(form)) for form in row.split("=")), category, gender)


NOUNS: tuple[Noun, ...] = tuple(
    _countable(row, category, gender) for (category, gender), rows in _COUNTABLE.items() for row in rows.split()
) + tuple(Noun(((row, row),), category, countable=False) for category, rows in _MASS.items() for row in rows.split())
NAMES: tuple[Noun, ...] = tuple(
    Noun(((name, name),), "person", gender, proper=True) for gender, names in _NAMES.items() for name in names.split()
)
# The noun that names a whole class: what is true of a violin is true of an instrument.
HYPERNYMS: dict[str, Noun] = {category: _countable(form, category, "n") for category, form in _GENERAL.items()}
BY_CATEGORY: dict[str, tuple[Noun, ...]] = {
    category: tuple(noun for noun in NOUNS if noun.category == category)
    for category in dict.fromkeys(noun.category for noun in NOUNS)
}


@dataclass(frozen=True, slots=True)
class Modifier:
    """One meaning with the adjectives or adverbs that express it.

    ``polarity`` is -1, 0 or 1. ``suits`` names the classes of nouns (adjectives) or the kinds of manner (adverbs)
    that it combines with.
    """

    forms: tuple[str, ...]
    polarity: int
    suits: tuple[str, ...]

    def form(self, second: bool) -> str:
        """The word; of the second synonym, if there is one, when ``second``."""
        return self.forms[-1 if second else 0]


_THING = "vehicle craft furniture instrument clothing device container"
# positive or first word | its opposite | 1 if the pair expresses a judgement | what it combines with
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
