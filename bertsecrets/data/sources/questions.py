"""Questions about texts: SQuAD's JSON files, the hub's columns of answers, and the demo corpus's frames."""

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertsecrets.data.example import Example
from bertsecrets.data.groups import group_of, with_groups
from bertsecrets.data.sources.base import TRAIN, BuiltIn, SplitFiles, check_length, read_answers, reading
from bertsecrets.data.sources.demo import demo_examples
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices
from bertsecrets.settings import shown
from bertsecrets.task_heads.labels import Answers

GROUPS = ("title", "context")
"""What ``data.group`` may name in a SQuAD file: the article, or the paragraph."""

_SENTENCES = 6
"""Sentences of a demo text, each of which is asked about once."""

_ASKED_BY = {"Time": "when", "Place": "where", "Manner": "how"}


class SquadSource(SplitFiles):
    """JSON files in the format of SQuAD 1.1 and 2.0.

    Args:
        task: Says whether questions may have no answer.
        folder: The folder of the files.
        files: Split -> file name.
        group: ``title`` or ``context`` to judge the questions of an article or of a paragraph together; None if each is
            independent.

    Raises:
        UserError: If the group is another.
    """

    def __init__(self, task: Task, folder: Path, files: Mapping[str, str], group: str | None = None) -> None:
        super().__init__(task, folder, files)
        if group is not None and group not in GROUPS:
            raise UserError(f"data.group is {shown(group)}; {choices(group, GROUPS)}.")
        self.group = group

    def examples(self, split: str) -> list[Example]:
        path = self.path(split)
        examples: list[Example] = []
        names: list[dict[str, str]] = []
        with reading(path, "give data.root=<folder of SQuAD files>, or data.path=<file>"):
            content = path.read_text(encoding="utf-8-sig")
        try:
            for title, context, asked in _asked(json.loads(content)):
                where = f"{path}: question {shown(asked['id'])}"
                check_length(context, where)
                given = [] if asked.get("is_impossible") else asked["answers"]
                texts, starts = ([one[key] for one in given] for key in ("text", "answer_start"))
                answers = read_answers(texts, starts, context, optional=self.task.unanswerable, where=where)
                examples.append(Example(len(examples), (asked["question"], context), answers))
                names.append({"title": title, "context": context})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"File '{path}' does not have SQuAD's format ({type(error).__name__}: {error}); expected data > "
                "paragraphs > context and qas > id, question and answers."
            ) from error
        if not examples:
            raise UserError(f"File '{path}' has no questions; expected at least one.")
        if self.group is None:
            return examples
        return with_groups(examples, [name[self.group] for name in names], f"'{self.group}' of {path}")


def _asked(content: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Title, text and question of each question of a SQuAD file."""
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                yield article.get("title", ""), paragraph["context"], asked


class DemoQuestions(BuiltIn):
    """Questions about short texts of six sentences from the demo corpus, one about each: which words fill a role of
    its frame.

    >>> [example, *_] = DemoQuestions().examples("validation")
    >>> example.texts[0], example.label.texts
    ('Seven metal hatches were shut by who?', ('the woman',))
    """

    def examples(self, split: str) -> list[Example]:
        return [*_demo_questions(split)]


@functools.cache
def _demo_questions(split: str) -> tuple[Example, ...]:
    corpus = [(one.texts[0], one.annotations[0]) for one in demo_examples("demo_nli", split)]
    people = _roles_of_people()
    # No two sentences of a text have the same frame, so that one sentence alone answers.
    open_texts: list[dict[str, int]] = []
    examples: list[Example] = []
    for number, (_, annotation) in enumerate(corpus):
        if len(annotation.frames) != 1 or len(annotation.frames[0].elements) < 2:
            continue
        frame = annotation.frames[0]
        fitting = next((text for text in open_texts if frame.name not in text), None)
        if fitting is None:
            open_texts.append(fitting := {})
        fitting[frame.name] = number
        if len(fitting) < _SENTENCES:
            continue
        open_texts.remove(fitting)
        sentences = [corpus[place][0] for place in fitting.values()]
        context, start = " ".join(sentences), 0
        for place, sentence in zip(fitting.values(), sentences, strict=True):
            words, [frame] = corpus[place][1].words, corpus[place][1].frames
            element = frame.elements[place % len(frame.elements)]
            asked_by = _ASKED_BY.get(element.name, "who" if (frame.name, element.name) in people else "what")
            # The preposition of a person or a thing is no part of the answer.
            skips = asked_by in ("who", "what") and words[element.first].pos == "ADP" and element.first < element.last
            first, last = words[element.first + skips].start, words[element.last].end
            question = f"{sentence[:first]}{asked_by}{sentence[last:].rstrip('.')}?"
            answers = Answers((sentence[first:last],), start + first)
            index = len(examples)
            texts = (question[0].upper() + question[1:], context)
            examples.append(Example(index, texts, answers, group=group_of(context)))
            start += len(sentence) + 1
    return tuple(examples)


@functools.cache
def _roles_of_people() -> set[tuple[str, str]]:
    """Frames and roles that a name alone fills somewhere, which are asked about with "who"."""
    return {
        (frame.name, element.name)
        for example in demo_examples("demo_nli", TRAIN)
        for frame in example.annotations[0].frames
        for element in frame.elements
        if [word.pos for word in example.annotations[0].words[element.first : element.last + 1] if word.pos != "ADP"]
        == ["PROPN"]
    }
