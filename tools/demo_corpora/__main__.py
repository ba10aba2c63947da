"""Write the rows of the demo corpora that the package ships.

python -m tools.demo_corpora                      # into bertsecrets/data/demo; 5 seconds
python -m tools.demo_corpora --out <folder>       # somewhere else
python -m tools.demo_corpora --seed 1 --out ...   # other sentences
"""

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from bertsecrets.data.example import Annotation, Example
from bertsecrets.data.sources.demo import CORPORA, ROWS
from tools.demo_corpora.corpus import generate


def lines_of(rows: Sequence[Example]) -> bytes:
    """JSON Lines, one row a line, as ``bertsecrets.data.sources.demo`` reads them."""
    return "".join(f"{json.dumps(_row(row), separators=(',', ':'))}\n" for row in rows).encode()


def _row(row: Example) -> dict[str, object]:
    sentences = [_sentence(*pair) for pair in zip(row.texts, row.annotations, strict=True)]
    return {"label": row.label, "sentences": sentences}


def _sentence(text: str, annotation: Annotation) -> dict[str, object]:
    words = [
        [word.form, word.pos, word.head, word.relation, int(word.negation), word.entity] for word in annotation.words
    ]
    frames = [
        [frame.name, frame.target, [[part.name, part.first, part.last, int(part.core)] for part in frame.elements]]
        for frame in annotation.frames
    ]
    return {"text": text, "words": words, "frames": frames}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.demo_corpora", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROWS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for task in CORPORA:
        for split, rows in generate(task, arguments.seed).items():
            path = arguments.out / f"{task}.{split}.jsonl.gz"
            # Without a time stamp, so that the same rows are the same file.
            path.write_bytes(gzip.compress(lines_of(rows), mtime=0))
            print(path)


if __name__ == "__main__":
    main()
