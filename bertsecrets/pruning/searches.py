"""Searches for smaller models that are tested on the same examples share one error: how many there were, and what each spends."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.results.run import Run

_log = logging.getLogger(__name__)

_SPENT = 2 / 3
"""Share of the error left that a search spends: the first one is tested nearly as if it were the only one."""

_RECORDS = "searches"
"""Folder, within that of the model's run, with a file for each search."""


def search_level(confidence: float, search: int) -> float:
    """Confidence of the tests of a search, so that all searches on the same examples together keep ``confidence``.

    The k-th search spends alpha 2/3 (1/3)^(k-1) of alpha = 1 - confidence, which sums to alpha (alpha spending).

    Args:
        confidence: Of all searches together, between 0 and 1.
        search: Number of the search, from 1.

    >>> [round(search_level(0.95, search), 4) for search in (1, 2, 3)]
    [0.9667, 0.9889, 0.9963]
    """
    return 1 - (1 - confidence) * _SPENT * (1 - _SPENT) ** (search - 1)


def digest_of(examples: EncodedSplit) -> str:
    """What tells these examples from others, in any order: a hash of their tokens and labels."""
    rows = sorted(f"{row.ids} {example.label}" for row, example in zip(examples.rows, examples.examples, strict=True))
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Searches:
    """The searches with one model on one evaluation set, each a file in the folder of the model's run.

    Args:
        folder: That folder; None for a model of no run, whose searches are not known.
        digest: Of the evaluation set.
        resumed: File that an interrupted search finds its number in.
        analysis: Folder of the search's results, for the record.
    """

    folder: Path | None
    digest: str
    resumed: Path
    analysis: Path

    @classmethod
    def of(cls, run: Run, examples: EncodedSplit, resumed: Path) -> "Searches":
        """Those before a search whose results go to this run."""
        # A callback may be part of a training that has written none.
        trained = run.config().get("trained") if run.config_path.is_file() else None
        folder = run.folder if trained is None else trained.get("folder")
        return cls(None if folder is None else Path(folder), digest_of(examples), resumed, run.folder)

    def next(self) -> int:
        """The number of the search that is about to begin or resumes, from 1."""
        if self.resumed.is_file():
            return int(json.loads(self.resumed.read_text("utf-8"))["search"])
        return 1 + self._count()

    def begin(self, *, anew: bool = False) -> int:
        """Record that a search begins or resumes; return its number, from 1.

        Args:
            anew: Whether it is a further search, and not the one that was interrupted.
        """
        if self.resumed.is_file() and not anew:
            return self.next()
        search = 1 + self._count()
        self.resumed.parent.mkdir(parents=True, exist_ok=True)
        if self.folder is not None:
            try:
                search = self._record(search)
            except OSError as error:
                _log.warning(f"This search is not counted for later ones on the same examples: {error}.")
        self.resumed.write_text(json.dumps({"search": search}), "utf-8")
        return search

    def _count(self) -> int:
        return 0 if self.folder is None else len(list((self.folder / _RECORDS).glob(f"{self.digest}-*.json")))

    def _record(self, search: int) -> int:
        assert self.folder is not None
        records = self.folder / _RECORDS
        records.mkdir(exist_ok=True)
        while True:
            try:
                # Fails where another search has just taken the number.
                with (records / f"{self.digest}-{search}.json").open("x", encoding="utf-8") as file:
                    json.dump({"analysis": str(self.analysis)}, file)
                return search
            except FileExistsError:
                search += 1


def search_in_words(content: Mapping[str, Any]) -> str:
    """Which search on these examples it was and what error it spent, in a sentence; empty for results of earlier versions."""
    search = content.get("search")
    if search is None:
        return ""
    known = "" if content["counted"] else " as far as is known"
    return (
        f"This is search {search} for a smaller model on these examples{known}; each spends two thirds of the error that is left, so that "
        f"all together keep {content['confidence']:.0%} confidence: this one is tested at {100 * content['level']:.4g}%."
    )
