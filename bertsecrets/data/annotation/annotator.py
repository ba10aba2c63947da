"""Annotates texts in chunks, each of which is done once and kept."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock
from pytorch_lightning.utilities import rank_zero_only

from bertsecrets.data.annotation.storage import read_annotations, write_annotations
from bertsecrets.data.example import Annotation
from bertsecrets.errors import UserError, choices
from bertsecrets.results.progress import progress_over

CHUNK = 512
"""Texts annotated between two writes: what an interruption can lose."""


class Pipeline(Protocol):
    """What finds the words of texts and what is known of them."""

    @property
    def identity(self) -> str:
        """Changes with everything that could change an annotation."""

    def annotate(self, texts: Sequence[str]) -> list[Annotation]:
        """The annotation of each text; raises UserError if the pipeline cannot make any."""


class Annotator:
    """A pipeline and the folder in which its annotations are kept.

    A chunk's file is named by pipeline and texts, so that nothing stale is ever read, and is made under a lock, so that
    of several processes one annotates and the others read.

    Args:
        pipeline: Run only for texts that are not in the folder yet.
        folder: Made where it is missing.
        progress: Whether to show a progress bar, on the first process.
    """

    def __init__(self, pipeline: Pipeline, folder: Path, progress: bool = True) -> None:
        self.pipeline = pipeline
        self.folder = folder
        self.progress = progress

    def annotate(self, texts: Sequence[str]) -> list[Annotation]:
        """The annotation of each text; raises UserError if the pipeline makes none."""
        different = sorted(set(texts))
        found: dict[str, Annotation] = {}
        visible = self.progress and getattr(rank_zero_only, "rank", 0) == 0
        with progress_over(len(different), "annotation", visible, unit="text") as advance:
            for start in range(0, len(different), CHUNK):
                chunk = different[start : start + CHUNK]
                found.update(zip(chunk, self._chunk(chunk), strict=True))
                advance(len(chunk))
        return [found[text] for text in texts]

    def _chunk(self, texts: Sequence[str]) -> list[Annotation]:
        digest = hashlib.sha256(json.dumps([self.pipeline.identity, *texts]).encode()).hexdigest()
        path = self.folder / f"{digest[:32]}.parquet"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock")):
                # Another process may have made it while this one waited.
                if not path.is_file():
                    write_annotations(path, self.pipeline.annotate(texts))
        return read_annotations(path, len(texts))


@dataclass(frozen=True)
class AnnotationConfig:
    """The ``annotation`` section of the configuration; the fields are explained in ``conf/annotation``."""

    pipeline: str | None = None
    cache_dir: str | None = None
    processes: int = 1


def make_annotator(config: Mapping[str, Any], progress: bool = True) -> Annotator | None:
    """The annotator that the configuration names; None where the task's own annotation is to be used.

    Raises:
        UserError: If a key is unknown, or the pipeline is not there.
    """
    from bertsecrets.data.annotation.spacy_pipeline import SpacyPipeline

    known = [item.name for item in fields(AnnotationConfig)]
    for key in config:
        if key not in known:
            raise UserError(f"Unknown key 'annotation.{key}'; {choices(str(key), known)}.")
    chosen = AnnotationConfig(**{str(key): value for key, value in config.items()})
    if type(chosen.processes) is not int or chosen.processes < 1:
        raise UserError(f"annotation.processes is {chosen.processes!r}; expected a whole number from 1.")
    if chosen.pipeline is None:
        return None
    folder = Path(chosen.cache_dir).expanduser() if chosen.cache_dir else _default_folder()
    return Annotator(SpacyPipeline(chosen.pipeline, chosen.processes), folder, progress)


def _default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertsecrets" / "annotations"
