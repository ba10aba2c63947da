"""The ``framenet`` section of the configuration: which annotated sentences a relation is measured on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsecrets.data.framenet.corpus import FrameNetCorpus
from bertsecrets.data.framenet.files import FrameNetFiles
from bertsecrets.data.framenet.published import read_published
from bertsecrets.data.framenet.selection import Filters, Selection, select
from bertsecrets.errors import UserError


@dataclass(frozen=True)
class FrameNetSource:
    """Where annotated sentences come from.

    Args:
        root: Folder or zip of a FrameNet release, whose exemplars are filtered.
        published: A file of sentences that were selected before, taken as they are.
        filters: For ``root``.
    """

    root: Path | None
    published: Path | None
    filters: Filters

    @classmethod
    def from_config(cls, section: Mapping[str, Any]) -> "FrameNetSource":
        """The source of a ``framenet`` section.

        Raises:
            UserError: If a key or value is not valid, both sources are given, or the one given is not there.
        """
        places = {name: section.get(name) for name in ("root", "published")}
        if all(places.values()):
            raise UserError("framenet.root and framenet.published are both given; give one of them.")
        filters = Filters.from_config({key: value for key, value in section.items() if key not in places})
        root, published = (Path(str(place)).expanduser() if place else None for place in places.values())
        if root is not None:
            FrameNetFiles(root)
        if published is not None and not published.is_file():
            raise UserError(f"File framenet.published='{published}' does not exist; give a text file of sentences.")
        return cls(root, published, filters)

    @property
    def given(self) -> bool:
        """Whether there is a source; else the task's own annotation is meant."""
        return self.root is not None or self.published is not None

    @property
    def name(self) -> str:
        """What the sentences are called in front of readers."""
        if self.root is not None:
            version = FrameNetFiles(self.root).version
            return f"FrameNet {version}" if version else "FrameNet"
        return self.published.name if self.published is not None else ""

    def load(self, progress: bool = False) -> Selection:
        """The sentences, and for a release how many were left after each filter.

        Args:
            progress: Whether a bar shows how far it is.

        Raises:
            UserError: If nothing is left or a file is damaged.
        """
        if self.root is not None:
            corpus = FrameNetCorpus(FrameNetFiles(self.root))
            return select(corpus.exemplars(progress), corpus.roles, self.filters, self.name)
        assert self.published is not None
        return Selection(read_published(self.published), {})
