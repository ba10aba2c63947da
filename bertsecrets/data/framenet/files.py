"""The files of a FrameNet release, from its folder or from its zip."""

import gc
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from bertsecrets.errors import UserError

NAMESPACE = "{http://framenet.icsi.berkeley.edu}"
VERSIONS = ("1.5", "1.6", "1.7")
"""Releases that share one layout."""

_REQUIRED = ("luIndex.xml", "frameIndex.xml", "frRelation.xml")
_FOLDERS = ("lu/", "frame/")


class FrameNetFiles:
    """A FrameNet release on disk; a folder, or a zip as it is distributed.

    Args:
        root: The folder that holds ``luIndex.xml``, ``frame`` and ``lu``, a folder or zip that holds only that folder.

    Raises:
        UserError: If there is nothing, or what is there is incomplete, damaged or of a release with another layout.
    """

    def __init__(self, root: Path) -> None:
        if not root.exists():
            raise UserError(f"FrameNet folder '{root}' does not exist; give framenet.root=<folder or zip of FrameNet>.")
        self.root = root
        self._zip: zipfile.ZipFile | None = None
        if root.is_file():
            try:
                self._zip = zipfile.ZipFile(root)
            except zipfile.BadZipFile as error:
                raise UserError(
                    f"FrameNet file '{root}' is no zip, or a damaged one; give the folder or zip of FrameNet."
                ) from error
        self._prefix = _prefix(self._names() if self._zip else _two_levels(root))
        self._check()

    def _names(self) -> list[str]:
        assert self._zip is not None
        return self._zip.namelist()

    def _check(self) -> None:
        release = f"a release of FrameNet {', '.join(VERSIONS[:-1])} or {VERSIONS[-1]}"
        if self._zip is None:
            base = self.root / self._prefix
            present = {name for name in (*_REQUIRED, *_FOLDERS) if (base / name).exists()}
        else:
            names = [name.removeprefix(self._prefix) for name in self._names()]
            present = {name for name in _REQUIRED if name in names}
            present |= {folder for folder in _FOLDERS if any(name.startswith(folder) for name in names)}
        missing = [name for name in (*_REQUIRED, *_FOLDERS) if name not in present]
        if missing:
            raise UserError(
                f"FrameNet folder '{self.root}' is incomplete or of another version ({', '.join(missing)} missing); give "
                f"the whole folder of {release}."
            )
        if self.version not in (None, *VERSIONS):
            raise UserError(f"FrameNet folder '{self.root}' is of version {self.version}; give {release}.")
        if self.parse("luIndex.xml").tag != f"{NAMESPACE}luIndex":
            raise UserError(
                f"FrameNet folder '{self.root}' is of another version (the layout of luIndex.xml differs); give {release}."
            )

    @property
    def version(self) -> str | None:
        """The release's number as its README tells it; None where it does not."""
        try:
            text = self.read("README.txt").decode("utf-8", "replace")
        except UserError:
            return None
        found = re.search(r"[Rr]elease\s+(\d+\.\d+)", text)
        return found.group(1) if found else None

    def read(self, name: str) -> bytes:
        """A file's content; raises UserError if it is not there or cannot be read."""
        try:
            if self._zip is not None:
                return self._zip.read(self._prefix + name)
            return (self.root / self._prefix / name).read_bytes()
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise UserError(
                f"FrameNet folder '{self.root}' is incomplete ({name} is missing or cannot be read); give the whole folder."
            ) from error

    def parse(self, name: str) -> ElementTree.Element:
        """An XML file's root element; raises UserError if it is not there or no valid XML."""
        content = self.read(name)
        try:
            with _without_collection():
                return ElementTree.fromstring(content)
        except ElementTree.ParseError as error:
            raise UserError(
                f"FrameNet file '{name}' of '{self.root}' is damaged ({error}); unpack the release again."
            ) from error


@contextmanager
def _without_collection() -> Iterator[None]:
    """No search for reference cycles: a tree has none, and looking for them is two fifths of the time to parse one."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _two_levels(root: Path) -> Iterable[str]:
    return [path.relative_to(root).as_posix() for path in (*root.glob("*.xml"), *root.glob("*/luIndex.xml"))]


def _prefix(names: Iterable[str]) -> str:
    """The folder inside that holds the index, with its slash; none if that is not plain."""
    found = {name.removesuffix("luIndex.xml") for name in names if re.fullmatch(r"(?:[^/]+/)?luIndex\.xml", name)}
    return "" if "" in found or len(found) != 1 else found.pop()
