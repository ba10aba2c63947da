"""The nouns and names of the demo corpus, sorted into the semantic classes that verbs select."""

from dataclasses import dataclass

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

    ``forms`` has the singular and plural of each synonym. ``gender`` is "f", "m", "n", or "any" for a person whose
    gender the noun leaves open. A noun that is not ``countable`` has no plural; a ``proper`` one no determiner.
    """

    forms: tuple[tuple[str, str], ...]
    category: str
    gender: str = "n"
    countable: bool = True
    proper: bool = False

    def form(self, second: bool, plural: bool = False) -> str:
        """The inflected word, of the second synonym if there is one and it is asked for."""
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
