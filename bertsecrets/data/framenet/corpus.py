"""The lexicographic examples of FrameNet 1.5 to 1.7.

Read with the standard library, not with ``nltk``'s reader: that one takes minutes for the lexicon, refuses files that
another account owns or may write to, and stops at annotation that repeats a label (docs/relations.md has the figures).
What it reads, this reads alike; a test compares the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from tqdm.auto import tqdm

from bertsecrets.data.framenet.files import NAMESPACE, FrameNetFiles

_LABELS = (
    f"{NAMESPACE}annotationSet",
    f"{NAMESPACE}layer",
    f"{NAMESPACE}label",
)
# Lexical units that the releases themselves leave out of their index.
_BAD = "Problem"


@dataclass(frozen=True, slots=True)
class FrameRoles:
    """A frame's elements: all of type Core, and the members of its core sets."""

    core_type: frozenset[str]
    core_set: frozenset[str]


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled stretch of a text: characters ``start`` to ``end`` (exclusive)."""

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One sentence annotated for one lexical unit.

    ``targets`` are the spans of the word or words that evoke the frame, ``elements`` the overt frame elements of the
    first layer, both in the order of the text.
    """

    text: str
    unit: str
    frame: str
    targets: tuple[Span, ...]
    elements: tuple[Span, ...]


class FrameNetCorpus:
    """Frames and exemplars of a release."""

    def __init__(self, files: FrameNetFiles) -> None:
        self.files = files
        index = files.parse("luIndex.xml").iter(f"{NAMESPACE}lu")
        self._units = [unit.attrib for unit in index if unit.get("status") != _BAD]
        self._roles: dict[str, FrameRoles] = {}

    def roles(self, frame: str) -> FrameRoles:
        """The core elements of a frame; raises UserError if the release lacks it."""
        if frame not in self._roles:
            self._roles[frame] = _roles(self.files.parse(f"frame/{frame}.xml"))
        return self._roles[frame]

    def exemplars(self, progress: bool = False) -> Iterator[Exemplar]:
        """All exemplars, by lexical unit in the order of the index.

        Args:
            progress: Whether a bar shows how far it is.

        Raises:
            UserError: If a file is missing or damaged.
        """
        annotated = [unit for unit in self._units if unit.get("hasAnnotation") != "false"]
        for unit in tqdm(annotated, desc="FrameNet", unit="lexical unit", leave=False, delay=5, disable=not progress):
            root = self.files.parse(f"lu/lu{unit['ID']}.xml")
            for sentence in root.iter(f"{NAMESPACE}sentence"):
                yield _exemplar(sentence, unit["name"], unit["frameName"])


def _roles(frame: Element) -> FrameRoles:
    elements = frame.iterfind(f"{NAMESPACE}FE")
    members = frame.iterfind(f"{NAMESPACE}FEcoreSet/{NAMESPACE}memberFE")
    return FrameRoles(
        core_type=frozenset(element.attrib["name"] for element in elements if element.get("coreType") == "Core"),
        core_set=frozenset(member.attrib["name"] for member in members),
    )


def _exemplar(sentence: Element, unit: str, frame: str) -> Exemplar:
    text = (sentence.findtext(f"{NAMESPACE}text") or "").replace("\n", " ")
    targets: tuple[Span, ...] = ()
    elements: tuple[Span, ...] = ()
    sets, layers, labels = _LABELS
    for annotation in sentence.iterfind(sets):
        if "cxnID" in annotation.attrib:
            continue
        found: dict[str, tuple[Span, ...]] = {}
        for layer in annotation.iterfind(layers):
            name = layer.get("name")
            if name == "Target" or (name == "FE" and layer.get("rank") == "1"):
                spans = _spans(layer.iterfind(labels))
                # An empty layer of targets, or a second one, says nothing; as in nltk's reader.
                if name == "FE" or (spans and name not in found):
                    found[name] = spans
        # Where a sentence has several annotation sets, the last one counts; as in nltk's reader.
        targets = found.get("Target", targets)
        elements = found.get("FE", elements)
    return Exemplar(text, unit, frame, targets, elements)


def _spans(labels: Iterator[Element]) -> tuple[Span, ...]:
    """The overt labels of a layer, sorted; null instantiations have no place in the text."""
    places = {
        (int(label.attrib["start"]), int(label.attrib["end"]) + 1, label.attrib["name"])
        for label in labels
        if "start" in label.attrib
    }
    return tuple(Span(*place) for place in sorted(places))
