"""Annotate texts without gold annotation with a pipeline that the user chooses; results are cached on disk."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock
from pydantic import Field

from bertsecrets.data.example import Annotation, Word
from bertsecrets.data.spacy_pipeline import SpacyPipeline
from bertsecrets.errors import UserError
from bertsecrets.results.files import write_text
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import is_first_process
from bertsecrets.settings import Meaning, Settings

CHUNK = 512
"""Texts annotated between two writes, the most that an interruption can lose."""


class Annotator:
    """A pipeline and the folder that caches its annotations.

    A chunk's file is named after pipeline and texts, so a stale file is never read. It is written under a lock: one
    process annotates and the others read.

    Args:
        pipeline: Runs only on texts that are not cached.
        folder: The cache; created if missing.
        progress: Whether to show a progress bar, on the first process.
    """

    def __init__(self, pipeline: SpacyPipeline, folder: Path, progress: bool = True) -> None:
        self.pipeline = pipeline
        self.folder = folder
        self.progress = progress

    def annotate(self, texts: Sequence[str]) -> list[Annotation]:
        """The annotation of each text; raises UserError if the pipeline fails."""
        # In a fixed order, so that the same texts form the same chunks and file names.
        distinct = sorted(set(texts))
        annotations: dict[str, Annotation] = {}
        visible = self.progress and is_first_process()
        with progress_over(len(distinct), "annotation", visible, unit="text") as advance:
            for start in range(0, len(distinct), CHUNK):
                chunk = distinct[start : start + CHUNK]
                digest = hashlib.sha256(json.dumps([self.pipeline.identity, *chunk]).encode()).hexdigest()
                path = self.folder / f"{digest[:32]}.json"
                if not path.is_file():
                    self.folder.mkdir(parents=True, exist_ok=True)
                    with FileLock(path.with_suffix(".lock")):
                        # Another process may have written it in the meantime.
                        if not path.is_file():
                            write_annotations(path, self.pipeline.annotate(chunk))
                annotations.update(zip(chunk, read_annotations(path), strict=True))
                advance(len(chunk))
        return [annotations[text] for text in texts]


class AnnotationConfig(Settings):
    """The ``annotation`` section of the configuration.

    Attributes:
        pipeline: An installed spaCy package, or the folder of a saved pipeline; None uses the task's own annotation.
        cache_dir: Folder for annotations; None means ``~/.cache/bertsecrets/annotations``.
        processes: Processes that annotate in parallel.
    """

    conf = ("annotation/gold",)

    pipeline: str | None = Field(min_length=1, description="a spaCy package or folder, or null")
    cache_dir: Annotated[str | None, Meaning(outside=True)] = Field(
        min_length=1, description="the path of a folder, or null"
    )
    processes: int = Field(ge=1, le=1024, description="a whole number from 1 to 1024")


def make_annotator(config: Mapping[str, Any], progress: bool = True) -> Annotator | None:
    """The annotator of the ``annotation`` section; None if it has no pipeline.

    Raises:
        UserError: If a key or value is not valid, or the pipeline does not exist.
    """
    settings = AnnotationConfig.read("annotation", config)
    if settings.pipeline is None:
        return None
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(settings.cache_dir or f"{caches}/bertsecrets/annotations").expanduser()
    return Annotator(SpacyPipeline(settings.pipeline, settings.processes), folder, progress)


def write_annotations(path: Path, annotations: Sequence[Annotation]) -> None:
    """Write the words of each text as JSON; frames are not written.

    Raises:
        UserError: If the disk is full.
    """
    write_text(path, json.dumps([[astuple(word) for word in annotation.words] for annotation in annotations]))


def read_annotations(path: Path) -> list[Annotation]:
    """The annotation of each text; raises UserError if the file cannot be read."""
    try:
        return [Annotation(tuple(Word(*word) for word in words)) for words in json.loads(path.read_text("utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"Annotation file {path} cannot be read ({error}); delete it, and run again.") from error
