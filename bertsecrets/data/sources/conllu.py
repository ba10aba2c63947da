"""Read the sentences of a treebank in CoNLL-U or CoNLL-X, with gold annotation; a column of tags may be labels."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.sources.base import SPLIT_WORDS, SplitFiles, numbered_lines, split_by_name
from bertsecrets.data.tags import tag_numbers
from bertsecrets.data.task import ConlluLayout, Task
from bertsecrets.errors import UserError

_NEGATIVE = (("Polarity", "Neg"), ("PronType", "Neg"))

_FIELDS = {"upos": "pos", "xpos": "tag", "deprel": "relation"}
"""Columns of tags, and what a :class:`Word` calls them."""

_SUFFIXES = (".conllu", ".conllx", ".conll")
_COLUMNS = 10
ESCAPED = {
    "-LRB-": "(",
    "-RRB-": ")",
    "-LSB-": "[",
    "-RSB-": "]",
    "-LCB-": "{",
    "-RCB-": "}",
    "``": '"',
    "''": '"',
}
"""Forms of the Penn Treebank, in files without the text of their sentences."""


class ConlluSource(SplitFiles):
    """A treebank with dependencies; each sentence is an example.

    A layout without files uses every CoNLL file in the folder, or in its subfolders if they are named like splits or
    there is only one; splits are inferred from the names (train, dev, test). Without a development file, the test
    files, else unnamed files, else the training files take its place.

    Args:
        task: Names the files.
        root: The parent of the treebank's folder.
        skip_bad_rows: Skip invalid sentences, with a warning that counts them.

    Raises:
        UserError: If the folder does not exist or has no such files, the task has no such layout, or the ``conllu``
            package is missing.
    """

    def __init__(self, task: Task, root: Path, skip_bad_rows: bool = False) -> None:
        if task.conllu is None:
            raise UserError(
                f"Task '{task.name}' has no CoNLL-U layout; add a conllu section to conf/task/{task.name}.yaml."
            )
        if not root.is_dir():
            wanted = (
                f"the folder that contains {task.conllu.folder}"
                if task.conllu.files
                else "a treebank's folder of *.conllu files"
            )
            raise UserError(f"data.root '{root}' is not a directory; give {wanted}.")
        if find_spec("conllu") is None:
            raise UserError("Reading CoNLL-U needs the conllu package; run pip install 'bertsecrets[annotate]'.")
        folder = root / task.conllu.folder
        super().__init__(task, folder, task.conllu.files, None if task.conllu.files else _files_of(folder))
        self.layout: ConlluLayout = task.conllu
        self.skip_bad_rows = skip_bad_rows

    def examples(self, split: str) -> list[Example]:
        examples: list[Example] = []
        for path in self.paths(split):
            advice = f"data.root must contain {self.layout.folder}/{path.name}"
            sentences = list(read_conllu(path, self.skip_bad_rows, advice, self.notes))
            if not sentences:
                raise UserError(f"File '{path}' has no sentences; expected CoNLL-U.")
            examples += [
                Example(index, (text,), self._tags(annotation, f"{path}: '{text}'"), (annotation,))
                for index, (text, annotation) in enumerate(sentences, start=len(examples))
            ]
        return examples

    def _tags(self, annotation: Annotation, where: str) -> tuple[int, ...] | None:
        """The words' tags in the column that the layout names; None for a task that tags no words."""
        if not self.task.head.per_word:
            return None
        tags = [getattr(word, _FIELDS[self.layout.tags]) or None for word in annotation.words]
        return tag_numbers(tags, self.task.labels, len(tags), where)


def _files_of(folder: Path) -> dict[str, list[Path]]:
    """The CoNLL files of a folder by split; without any, the files of its subfolders if they are splits or a single
    treebank.

    Raises:
        UserError: If there are none, or the subfolders are several treebanks.
    """
    paths = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    if paths:
        return split_by_name({path: path.stem for path in paths})
    below = sorted(path for suffix in _SUFFIXES for path in folder.glob(f"*/*{suffix}") if path.is_file())
    inside = sorted({path.parent.name for path in below})
    splits = {word for words in SPLIT_WORDS.values() for word in words}
    if inside and (len(inside) == 1 or {name.lower() for name in inside} <= splits):
        return split_by_name({path: f"{path.parent.name} {path.stem}" for path in below})
    hint = f"; give one of its folders: {', '.join(inside)}" if inside else f" ({', '.join(_SUFFIXES)})"
    raise UserError(f"data.root '{folder}' has no CoNLL-U files{hint}.")


class _Block(NamedTuple):
    """The lines of one sentence, and the number of its first line, from 1."""

    line: int
    lines: list[str]


def read_conllu(
    path: Path,
    skip_bad: bool = False,
    advice: str = "give the path of a CoNLL-U file",
    notes: list[str] | None = None,
) -> Iterator[tuple[str, Annotation]]:
    """Each sentence's text and annotation, in file order.

    Words are the syntactic words. Those of a multiword token ("don't") have the offsets of their forms in it; if the
    forms do not add up to the token ("du" = "de" + "le"), the first gets all its characters and the others none. Empty
    nodes are skipped, and a sentence may have several roots; a message counts both.

    Args:
        path: A file in CoNLL-U, or in CoNLL-X (ten columns, as the Stanford converter writes them).
        skip_bad: Skip invalid sentences, with a warning that counts them.
        advice: What to do if the file is missing, as the end of a sentence.
        notes: Receives the messages on sentences left out and on unusual ones.

    Raises:
        UserError: If the file is not text, or a sentence is not valid; the message gives file, line and sentence.
    """
    import conllu

    columns: list[str] | None = None
    empty = rooted = 0
    bad: list[str] = []
    messages = [] if notes is None else notes
    for number, block in enumerate(_blocks(path, advice), start=1):
        for line in block.lines:
            if line.startswith("# global.columns ="):
                columns = line.split("=", 1)[1].lower().split()
        where = f"{path}:{block.line}: sentence {number}"
        try:
            try:
                [sentence] = conllu.parse("".join(block.lines), fields=columns)
            except (conllu.exceptions.ParseException, ValueError) as error:
                reason = " ".join(str(error).split()).rstrip(".")
                raise UserError(f"{where} is not CoNLL-U ({reason}); fix or replace the file.") from error
            example = _sentence(sentence, path, block, number, columns)
        except UserError as error:
            if not skip_bad:
                raise
            bad.append(str(error))
            continue
        empty += sum(not isinstance(token["id"], int) and token["id"][1] == "." for token in sentence)
        rooted += sum(word.head < 0 for word in example[1].words) > 1
        yield example
    if bad:
        counted = "1 sentence that is" if len(bad) == 1 else f"{len(bad):,} sentences that are"
        message = f"skipped {counted} not valid; the first: {bad[0]}"
        rank_zero_warn(f"{path}: {message}")
        messages.append(f"{path.name}: {message}")
    if empty or rooted:
        message = f"skipped {empty:,} empty nodes; {rooted:,} sentences have several roots."
        rank_zero_info(f"{path}: {message}")
        messages.append(f"{path.name}: {message}")


def _blocks(path: Path, advice: str) -> Iterator[_Block]:
    """The sentences of a file: blocks between blank lines with at least one line that is not a comment."""
    first = 1
    lines: list[str] = []
    for number, line in numbered_lines(path, advice, "the line"):
        content = line.rstrip("\r\n")
        if content.strip():
            first = first if lines else number
            lines.append(f"{content}\n")
        elif lines:
            if not all(text.startswith("#") for text in lines):
                yield _Block(first, lines)
            lines = []
    if lines and not all(text.startswith("#") for text in lines):
        yield _Block(first, lines)


def _sentence(
    sentence: Any, path: Path, block: _Block, number: int, columns: list[str] | None
) -> tuple[str, Annotation]:
    name = f"sentence {sentence.metadata.get('sent_id', number)}"
    words: list[Mapping[str, Any]] = [token for token in sentence if isinstance(token["id"], int)]
    if not words or [word["id"] for word in words] != list(range(1, len(words) + 1)):
        raise UserError(f"{path}:{block.line}: {name} does not number its words 1, 2, 3, ...; fix or replace the file.")
    if columns is None:
        for index, line in enumerate(block.lines):
            if not line.startswith("#") and len(line.split("\t")) > _COLUMNS:
                raise UserError(
                    f"{path}:{block.line + index}: {name}: the row has more than {_COLUMNS} columns; give CoNLL-U or "
                    "CoNLL-X."
                )
    line_of = {text.split()[0]: block.line + index for index, text in enumerate(block.lines)}
    for word in words:
        where = f"{path}:{line_of.get(str(word['id']), block.line)}: {name}, word {word['id']}"
        for column in ("upos", "head", "deprel", "feats"):
            if column not in word:
                raise UserError(f"{where}: column {column.upper()} is missing; expected ten columns.")
        if not word["form"]:
            raise UserError(f"{where}: the form, column 2, is empty; give the word.")
        if word["head"] is None:
            raise UserError(f"{where}: the head, column 7, is '_'; expected 0 (the root) to {len(words)}.")
        if not 0 <= word["head"] <= len(words):
            raise UserError(f"{where}: head {word['head']} does not exist; expected 0 (the root) to {len(words)}.")
    cycle = _cycle([word["head"] for word in words])
    if cycle is not None:
        raise UserError(
            f"{path}:{line_of.get(str(cycle), block.line)}: {name}, word {cycle}: its heads form a cycle; fix the "
            "sentence, or set data.skip_bad_rows=true."
        )
    if "text" not in sentence.metadata:
        for token in sentence:
            token["form"] = ESCAPED.get(token["form"], token["form"])
    text = str(sentence.metadata.get("text") or _spelt(sentence))
    spans = _spans(text, sentence, f"{path}:{block.line}: {name}")
    return text, Annotation(
        tuple(
            Word(
                word["form"],
                *spans[word["id"]],
                pos=word["upos"] or "",
                head=word["head"] - 1,
                relation=word["deprel"] or "",
                negation=any((word["feats"] or {}).get(name) == value for name, value in _NEGATIVE),
                tag=word["xpos"] or "",
            )
            for word in words
        )
    )


def _cycle(heads: list[int]) -> int | None:
    """A word, from 1, on a cycle of heads; None in a tree or several trees."""
    safe = {0}
    for word in range(1, len(heads) + 1):
        seen: dict[int, None] = {}
        node = word
        while node not in safe:
            if node in seen:
                return node
            seen[node] = None
            node = heads[node - 1]
        safe.update(seen)
    return None


def _surface(sentence: Any) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Each token of the text and its syntactic words."""
    covered = 0
    for index, token in enumerate(sentence):
        if isinstance(token["id"], int):
            if token["id"] > covered:
                yield token, [token]
        elif token["id"][1] == "-":
            first, _, covered = token["id"]
            following = sentence[index + 1 :]
            yield token, [word for word in following if isinstance(word["id"], int) and first <= word["id"] <= covered]


def _spelt(sentence: Any) -> str:
    """The text of a sentence without a '# text' line."""
    return "".join(
        token["form"] + ("" if (token.get("misc") or {}).get("SpaceAfter") == "No" else " ")
        for token, _ in _surface(sentence)
    ).rstrip()


def _spans(text: str, sentence: Any, where: str) -> dict[int, tuple[int, int]]:
    """Character offsets of each syntactic word, by its number."""
    spans: dict[int, tuple[int, int]] = {}
    end = 0
    for token, words in _surface(sentence):
        start = end
        while start < len(text) and text[start].isspace():
            start += 1
        if not text.startswith(token["form"], start):
            raise UserError(
                f"{where}: '{token['form']}' does not occur next in its text ('{text[start : start + 20]}'); fix the "
                "'# text' line or the word, or set data.skip_bad_rows=true."
            )
        end = start + len(token["form"])
        if "".join(word["form"] for word in words) == token["form"]:
            for word in words:
                spans[word["id"]] = (start, start + len(word["form"]))
                start += len(word["form"])
        else:
            spans[words[0]["id"]] = (start, end)
            spans |= {word["id"]: (end, end) for word in words[1:]}
    return spans
