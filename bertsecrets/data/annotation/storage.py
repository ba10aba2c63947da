"""Annotations on disk: Parquet with a row for each word."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bertsecrets.data.example import Annotation, Word
from bertsecrets.errors import UserError
from bertsecrets.results.files import atomic_write

_WORD = (
    ("form", pa.string()),
    ("start", pa.int32()),
    ("end", pa.int32()),
    ("pos", pa.string()),
    ("head", pa.int32()),
    ("relation", pa.string()),
    ("negation", pa.bool_()),
    ("entity", pa.int32()),
    ("tag", pa.string()),
)
_SCHEMA = pa.schema([("text", pa.int32()), *_WORD])


def write_annotations(path: Path, annotations: Sequence[Annotation]) -> None:
    """Writes the words of each text, in order; frames are not kept. Raises UserError if the disk is full."""
    rows = [(number, word) for number, annotation in enumerate(annotations) for word in annotation.words]
    columns: dict[str, list[object]] = {"text": [number for number, _ in rows]}
    columns |= {name: [getattr(word, name) for _, word in rows] for name, _ in _WORD}
    with atomic_write(path) as temporary:
        pq.write_table(pa.table(columns, schema=_SCHEMA), temporary, compression="zstd")


def read_annotations(path: Path, count: int) -> list[Annotation]:
    """The annotations of ``count`` texts; raises UserError if the file cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"Annotation file {path} cannot be read ({error}); delete it to have it made again.") from error
    words: list[list[Word]] = [[] for _ in range(count)]
    columns = [table[name].to_pylist() for name, _ in _WORD]
    for number, *values in zip(table["text"].to_pylist(), *columns, strict=True):
        words[number].append(Word(*values))
    return [Annotation(tuple(each)) for each in words]
