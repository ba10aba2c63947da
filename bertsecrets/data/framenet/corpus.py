"""Read the lexicographic annotation of FrameNet 1.5 to 1.7 from a folder or a zip.

Uses the standard library: nltk's reader is several times slower and fails on a few lexical units. A test compares the
two.
"""

import gc
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from bertsecrets.data.example import Annotation, Example, Frame, FrameElement, Word
from bertsecrets.errors import UserError
from bertsecrets.results.progress import progress_over, reported

VERSIONS = ("1.5", "1.6", "1.7")
"""Releases with the same layout."""

_LARGEST = 50_000_000
"""Limit on a file's unpacked bytes; the largest file of the releases has 2 million."""

_NAMESPACE = "{http://framenet.icsi.berkeley.edu}"
_REQUIRED = ("luIndex.xml", "frameIndex.xml", "frRelation.xml", "lu/", "frame/")
# The releases leave lexical units with this status out of their own index.
_PROBLEM = "Problem"


@dataclass(frozen=True, slots=True)
class FrameRoles:
    """The core elements of a frame: those of type Core, and the members of its core sets."""

    core_type: frozenset[str]
    core_set: frozenset[str]


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled part of a text: characters ``start`` to ``end`` (exclusive)."""

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One sentence annotated for one lexical unit.

    ``targets`` are the spans of the word or words that evoke the frame, ``elements`` the overt frame elements of the
    first layer, both in text order.
    """

    text: str
    unit: str
    frame: str
    targets: tuple[Span, ...]
    elements: tuple[Span, ...]

    def as_example(self, index: int, linked: Collection[Span]) -> Example:
        """An example without label; elements outside ``linked`` have ``core=False``.

        Words are separated by spaces and also split where a target or an element starts or ends, so that these cover
        whole words. FrameNet has neither syntax nor universal tags: every word is "X" and a root.
        """
        target = self.targets[0]
        words = _words(self.text, [target, *self.elements])
        ranges = [(span, _word_range(span, words)) for span in self.elements]
        elements = [
            FrameElement(span.name, *covered, core=span in linked) for span, covered in ranges if covered is not None
        ]
        covered = _word_range(target, words)
        frames = (Frame(self.frame, covered[0], tuple(elements), target_last=covered[1]),) if covered else ()
        return Example(index, (self.text,), None, (Annotation(tuple(words), frames),))


class FrameNetFiles:
    """The files of a FrameNet release.

    Args:
        root: The folder with ``luIndex.xml``, ``frame`` and ``lu``; a folder or zip that contains only that folder.

    Raises:
        UserError: If the release does not exist, is incomplete or damaged, or has another layout.
    """

    def __init__(self, root: Path) -> None:
        if not root.exists():
            raise UserError(f"FrameNet folder '{root}' does not exist; give framenet.root=<folder or zip of FrameNet>.")
        self.root = root
        self._folder: Path | zipfile.Path = root
        if root.is_file():
            try:
                self._folder = zipfile.Path(zipfile.ZipFile(root))
            except zipfile.BadZipFile as error:
                raise UserError(
                    f"FrameNet file '{root}' is not a zip, or is damaged; give the folder or zip of FrameNet."
                ) from error
        within = [folder for folder in self._folder.iterdir() if (folder / "luIndex.xml").exists()]
        if not (self._folder / "luIndex.xml").exists() and len(within) == 1:
            [self._folder] = within
        release = f"a release of FrameNet {', '.join(VERSIONS[:-1])} or {VERSIONS[-1]}"
        missing = [name for name in _REQUIRED if not (self._folder / name).exists()]
        if missing:
            raise UserError(
                f"FrameNet folder '{self.root}' is incomplete or another version ({', '.join(missing)} missing); give "
                f"the whole folder, or the zip, of {release}."
            )
        if self.version not in (None, *VERSIONS):
            raise UserError(f"FrameNet folder '{self.root}' has version {self.version}; give {release}.")
        if self.parse("luIndex.xml").tag != f"{_NAMESPACE}luIndex":
            raise UserError(
                f"FrameNet folder '{self.root}' is another version (the layout of luIndex.xml differs); give {release}."
            )

    @property
    def version(self) -> str | None:
        """The release's number according to its README; None if the README does not name it."""
        try:
            text = self.read("README.txt").decode("utf-8", "replace")
        except UserError:
            return None
        match = re.search(r"[Rr]elease\s+(\d+\.\d+)", text)
        return match.group(1) if match else None

    def read(self, name: str) -> bytes:
        """A file's content; raises UserError if it is missing or cannot be read."""
        try:
            with (self._folder / name).open("rb") as file:
                content = file.read(_LARGEST + 1)
        # A zip with a password raises RuntimeError.
        except (OSError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(
                f"FrameNet folder '{self.root}' is incomplete ({name} is missing or cannot be read); give the whole "
                "folder."
            ) from error
        if len(content) > _LARGEST:
            raise UserError(
                f"FrameNet file '{name}' of '{self.root}' has more than {_LARGEST:,} bytes, more than any release; "
                "give a folder or zip of FrameNet."
            )
        return content

    def parse(self, name: str) -> ElementTree.Element:
        """An XML file's root element; raises UserError if the file is missing or not valid XML."""
        content = self.read(name)
        # The search for reference cycles takes two fifths of the parsing time, and a tree has none.
        collects = gc.isenabled()
        gc.disable()
        try:
            return ElementTree.fromstring(content)
        except ElementTree.ParseError as error:
            raise UserError(
                f"FrameNet file '{name}' of '{self.root}' is damaged ({error}); unpack the release again."
            ) from error
        finally:
            if collects:
                gc.enable()


class FrameNetCorpus:
    """The frames and exemplars of a release.

    Attributes:
        units: The lexical units of the index, as attributes of their XML element.
    """

    def __init__(self, files: FrameNetFiles) -> None:
        self.files = files
        index = files.parse("luIndex.xml").iter(f"{_NAMESPACE}lu")
        self.units = [unit.attrib for unit in index if unit.get("status") != _PROBLEM]
        self._roles: dict[str, FrameRoles] = {}

    def roles(self, frame: str) -> FrameRoles:
        """The core elements of a frame; raises UserError if the release lacks it."""
        if frame not in self._roles:
            root = self.files.parse(f"frame/{frame}.xml")
            elements = root.iterfind(f"{_NAMESPACE}FE")
            members = root.iterfind(f"{_NAMESPACE}FEcoreSet/{_NAMESPACE}memberFE")
            self._roles[frame] = FrameRoles(
                core_type=frozenset(one.attrib["name"] for one in elements if one.get("coreType") == "Core"),
                core_set=frozenset(member.attrib["name"] for member in members),
            )
        return self._roles[frame]

    def exemplars(self, progress: bool = False) -> Iterator[Exemplar]:
        """All exemplars, by lexical unit in the order of the index.

        Args:
            progress: Whether to show a progress bar.

        Raises:
            UserError: If a file is missing or damaged.
        """
        annotated = [unit for unit in self.units if unit.get("hasAnnotation") != "false"]
        with progress_over(len(annotated), "reading FrameNet", progress, unit="lexical unit") as advance:
            for unit in reported(annotated, advance):
                root = self.files.parse(f"lu/lu{unit['ID']}.xml")
                for sentence in root.iter(f"{_NAMESPACE}sentence"):
                    yield _exemplar(sentence, unit["name"], unit["frameName"])


def _exemplar(sentence: ElementTree.Element, unit: str, frame: str) -> Exemplar:
    text = (sentence.findtext(f"{_NAMESPACE}text") or "").replace("\n", " ")
    spans_of: dict[str, tuple[Span, ...]] = {}
    for annotation in sentence.iterfind(f"{_NAMESPACE}annotationSet"):
        if "cxnID" in annotation.attrib:
            continue
        of_set: dict[str, tuple[Span, ...]] = {}
        for layer in annotation.iterfind(f"{_NAMESPACE}layer"):
            name = layer.get("name")
            if name == "Target" or (name == "FE" and layer.get("rank") == "1"):
                spans = _spans(layer.iterfind(f"{_NAMESPACE}label"))
                # An empty layer of targets, or a second one, is ignored, as in nltk's reader.
                if name == "FE" or (spans and name not in of_set):
                    of_set[name] = spans
        # The last annotation set counts, as in nltk's reader.
        spans_of |= of_set
    return Exemplar(text, unit, frame, spans_of.get("Target", ()), spans_of.get("FE", ()))


def _spans(labels: Iterator[ElementTree.Element]) -> tuple[Span, ...]:
    """The overt labels of a layer, sorted; null instantiations have no offsets."""
    labelled = {
        (int(label.attrib["start"]), int(label.attrib["end"]) + 1, label.attrib["name"])
        for label in labels
        if "start" in label.attrib
    }
    return tuple(Span(*span) for span in sorted(labelled))


def _words(text: str, spans: Collection[Span]) -> list[Word]:
    cuts = {edge for span in spans for edge in (span.start, span.end)}
    words = []
    for match in re.finditer(r"\S+", text):
        edges = [match.start(), *sorted(cut for cut in cuts if match.start() < cut < match.end()), match.end()]
        words += [
            Word(text[start:end], start, end, pos="X", head=-1, relation="root") for start, end in pairwise(edges)
        ]
    return words


def _word_range(span: Span, words: list[Word]) -> tuple[int, int] | None:
    """First and last word of a span; None if it covers no word."""
    inside = [number for number, word in enumerate(words) if word.start >= span.start and word.end <= span.end]
    return (inside[0], inside[-1]) if inside else None
