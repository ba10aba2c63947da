"""A small FrameNet with our own sentences, in the layout of releases 1.5 to 1.7."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

_NAMESPACE = 'xmlns="http://framenet.icsi.berkeley.edu"'


@dataclass
class Sentence:
    """A sentence, its targets and its elements as texts, located from the left; ``element@2`` is on a second layer."""

    text: str
    targets: tuple[str, ...]
    elements: dict[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()


NOD = (
    Sentence("He slowly and surely nodded . ", ("nodded",), {"Agent": "He"}, absent=("Addressee",)),
    Sentence("He nodded . ", ("nodded",), {"Agent": "He"}),
    Sentence("One two three four five six seven eight nine ten eleven they nodded . ", ("nodded",), {"Agent": "One"}),
    Sentence("Heads were , up and down , all nodded and shaken . ", ("nodded", "shaken"), {"Agent": "Heads"}),
    Sentence("The man from Leeds , as always , nodded . ", ("nodded",), {"Agent": "The man from Leeds"}),
    Sentence("Gravely and twice they both nodded . ", ("nodded",), {"Manner": "Gravely"}),
    # Its article occurs again next to the target: near by strings, far by offsets.
    Sentence("The man there behind the door nodded . ", ("nodded",), {"Agent": "The man"}),
    Sentence("the man there behind the door nodded . ", ("nodded",), {"Agent": "the man"}),
    Sentence("He was becoming , I mean , nodding . ", ("nodding",), {"Agent": "He", "Manner@2": "becoming"}),
)
PLAIN = (Sentence("He went out and shivered . ", ("shivered",), {"Agent": "He"}),)

FRAMES = {
    "Nodding": ({"Agent": "Core", "Addressee": "Core", "Manner": "Peripheral"}, ["Agent", "Addressee"]),
    "Shivering": ({"Agent": "Core", "Place": "Peripheral"}, []),
}
UNITS = {1: ("nod.v", "Nodding", NOD), 2: ("shiver.v", "Shivering", PLAIN), 3: ("wink.v", "Nodding", ())}

REMAINING = {
    "kovaleva": [10, 9, 8, 7, 6, 4, 3],
    "offsets": [10, 9, 8, 7, 6, 5, 4],
}
"""Computed by hand: all sentences, and those that remain after each filter."""


def write_framenet(folder: Path, release: str = "1.5") -> Path:
    """Write the corpus and return its folder; files are private to their owner, as nltk's reader requires."""
    for name in ("frame", "lu", "fulltext"):
        (folder / name).mkdir(parents=True)
    numbers = {name: number for number, name in enumerate(FRAMES, 1)}
    _write(folder / "README.txt", f"Welcome to Release {release} of the FrameNet data!")
    _write(folder / "frRelation.xml", f"<frameRelations {_NAMESPACE}></frameRelations>")
    index = "".join(f'<frame ID="{number}" name="{name}"/>' for name, number in numbers.items())
    _write(folder / "frameIndex.xml", f"<frameIndex {_NAMESPACE}>{index}</frameIndex>")
    units = "".join(
        f'<lu hasAnnotation="{"true" if sentences else "false"}" frameID="{numbers[frame]}" frameName="{frame}" '
        f'status="Finished_Initial" name="{name}" ID="{number}"/>'
        for number, (name, frame, sentences) in UNITS.items()
    )
    _write(folder / "luIndex.xml", f"<luIndex {_NAMESPACE}>{units}</luIndex>")
    for name, (elements, core_set) in FRAMES.items():
        _write(folder / "frame" / f"{name}.xml", _frame(name, numbers[name], elements, core_set))
    for number, (name, frame, sentences) in UNITS.items():
        body = "".join(_sentence(sentence, place) for place, sentence in enumerate(sentences, 1))
        attributes = f'name="{name}" ID="{number}" frame="{frame}" frameID="{numbers[frame]}" POS="V" status="New"'
        content = f'<lexUnit {attributes} {_NAMESPACE}><subCorpus name="all">{body}</subCorpus></lexUnit>'
        _write(folder / "lu" / f"lu{number}.xml", content)
    return folder


def _write(path: Path, content: str) -> None:
    path.write_text(content, "utf-8")
    path.chmod(0o600)


def _frame(name: str, number: int, elements: dict[str, str], core_set: list[str]) -> str:
    roles = "".join(
        f'<FE coreType="{kind}" abbrev="" name="{element}" ID="{place}"><definition/></FE>'
        for place, (element, kind) in enumerate(elements.items(), 1)
    )
    members = "".join(f'<memberFE name="{member}" ID="1"/>' for member in core_set)
    sets = f"<FEcoreSet>{members}</FEcoreSet>" if core_set else ""
    units = "".join(
        f'<lexUnit status="Finished_Initial" POS="V" name="{unit}" ID="{place}" lemmaID="{place}"><definition/>'
        f'<lexeme order="1" POS="V" name="{unit}"/></lexUnit>'
        for place, (unit, frame, _) in UNITS.items()
        if frame == name
    )
    return f'<frame name="{name}" ID="{number}" {_NAMESPACE}><definition/>{roles}{sets}{units}</frame>'


def _sentence(sentence: Sentence, number: int) -> str:
    targets = "".join(_label(sentence.text, form, "Target") for form in sentence.targets)
    layers = {1: "", 2: ""}
    for name, form in sentence.elements.items():
        element, _, rank = name.partition("@")
        layers[int(rank or 1)] += _label(sentence.text, form, element)
    layers[1] += "".join(f'<label itype="INI" name="{name}"/>' for name in sentence.absent)
    second = f'<layer rank="2" name="FE">{layers[2]}</layer>' if layers[2] else ""
    return (
        f'<sentence sentNo="0" ID="{number}"><text>{escape(sentence.text)}</text>'
        f'<annotationSet status="UNANN" ID="{2 * number}"><layer rank="1" name="BNC">'
        f"{_label(sentence.text, sentence.text.split()[0], 'NN1')}</layer></annotationSet>"
        f'<annotationSet status="MANUAL" ID="{2 * number + 1}"><layer rank="1" name="FE">{layers[1]}</layer>{second}'
        f'<layer rank="1" name="Target">{targets}</layer></annotationSet></sentence>'
    )


def _label(text: str, form: str, name: str) -> str:
    start = text.index(form)
    return f'<label start="{start}" end="{start + len(form) - 1}" name="{name}"/>'
