"""Read the sentences of a treebank in CoNLL-U, with gold annotation and without labels."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.sources.base import LONGEST_TEXT, SplitFiles, check_length, opened
from bertsecrets.data.task import ConlluLayout, Task
from bertsecrets.errors import UserError

_NEGATIVE = (("Polarity", "Neg"), ("PronType", "Neg"))


class ConlluSource(SplitFiles):
    """A treebank of Universal Dependencies; each sentence is an example.

    Args:
        task: Names the files.
        root: The folder that holds the treebank's folder.

    Raises:
        UserError: If the folder does not exist, the task has no such layout, or the ``conllu`` package is missing.
    """

    def __init__(self, task: Task, root: Path) -> None:
        if task.conllu is None:
            raise UserError(
                f"Task '{task.name}' has no CoNLL-U layout; add a conllu section to conf/task/{task.name}.yaml."
            )
        if not root.is_dir():
            raise UserError(f"data.root '{root}' is not a directory; give the one that holds {task.conllu.folder}.")
        if find_spec("conllu") is None:
            raise UserError("Reading CoNLL-U needs the conllu package; run pip install 'bertsecrets[annotate]'.")
        super().__init__(task, root / task.conllu.folder, task.conllu.files)
        self.layout: ConlluLayout = task.conllu

    def examples(self, split: str) -> list[Example]:
        path = self.path(split)
        advice = f"data.root must hold {self.layout.folder}/{path.name}"
        examples = [
            Example(index, (text,), None, (annotation,))
            for index, (text, annotation) in enumerate(read_conllu(path, advice))
        ]
        if not examples:
            raise UserError(f"File '{path}' holds no sentences; expected CoNLL-U.")
        return examples


def read_conllu(path: Path, advice: str = "give the path of a CoNLL-U file") -> Iterator[tuple[str, Annotation]]:
    """Each sentence's text and annotation, in file order.

    Words are the syntactic words. Those of a multiword token ("don't") have the offsets of their forms in it; if the
    forms do not add up to the token ("du" = "de" + "le"), the first has all its characters and the others none.

    Raises:
        UserError: If the file is missing (with the advice) or cannot be read, or is not CoNLL-U, naming the sentence.
    """
    import conllu

    number = 0
    _check_lines(path, advice)
    with path.open(encoding="utf-8-sig") as file:
        sentences = conllu.parse_incr(file)
        while True:
            number += 1
            try:
                sentence = next(sentences, None)
            except conllu.exceptions.ParseException as error:
                reason = " ".join(str(error).split()).rstrip(".")
                raise UserError(
                    f"{path}: sentence {number} is not CoNLL-U ({reason}); fix or replace the file."
                ) from error
            if sentence is None:
                return
            yield _sentence(sentence, f"{path}: sentence {sentence.metadata.get('sent_id', number)}")


def _check_lines(path: Path, advice: str) -> None:
    """Raise UserError if a file cannot be read, is not UTF-8, or has a line that is too long."""
    with opened(path, advice) as file:
        number = 0
        while line := file.readline(LONGEST_TEXT + 2):
            number += 1
            check_length(line.rstrip("\r\n"), f"{path}:{number}: the line")


def _sentence(sentence: Any, where: str) -> tuple[str, Annotation]:
    words: list[Mapping[str, Any]] = [token for token in sentence if isinstance(token["id"], int)]
    if not words or [word["id"] for word in words] != list(range(1, len(words) + 1)):
        raise UserError(f"{where} does not number its words 1, 2, 3, ...; fix or replace the file.")
    for word in words:
        for column in ("upos", "head", "deprel", "feats"):
            if column not in word:
                raise UserError(
                    f"{where}, word {word['id']}: column {column.upper()} is missing; expected ten columns."
                )
        if not 0 <= (word["head"] or 0) <= len(words):
            raise UserError(
                f"{where}, word {word['id']}: head {word['head']} does not exist; expected 0 (the root) to {len(words)}."
            )
    text = str(sentence.metadata.get("text") or _spelt(sentence))
    spans = _spans(text, sentence, where)
    return text, Annotation(
        tuple(
            Word(
                word["form"],
                *spans[word["id"]],
                pos=word["upos"] or "",
                head=(word["head"] or 0) - 1,
                relation=word["deprel"] or "",
                negation=any((word["feats"] or {}).get(name) == value for name, value in _NEGATIVE),
                tag=word["xpos"] or "",
            )
            for word in words
        )
    )


def _surface(sentence: Any) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Each token of the text and its syntactic words."""
    covered = 0
    for place, token in enumerate(sentence):
        if isinstance(token["id"], int):
            if token["id"] > covered:
                yield token, [token]
        elif token["id"][1] == "-":
            first, _, covered = token["id"]
            following = sentence[place + 1 :]
            yield token, [word for word in following if isinstance(word["id"], int) and first <= word["id"] <= covered]


def _spelt(sentence: Any) -> str:
    """The text of a sentence without a '# text' line."""
    return "".join(
        token["form"] + ("" if (token["misc"] or {}).get("SpaceAfter") == "No" else " ")
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
                f"{where}: '{token['form']}' is not next in its text ('{text[start : start + 20]}'); fix the '# text' "
                "line or the word."
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
