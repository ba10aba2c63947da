"""Rows of multiple choice: columns of choices, and the endings of the demo corpus's sentences."""

import functools
import random
from collections.abc import Collection, Sequence
from typing import Any

from bertsecrets.data.example import Example
from bertsecrets.data.sources.base import BuiltIn, check_length
from bertsecrets.data.sources.demo import demo_examples
from bertsecrets.errors import UserError
from bertsecrets.settings import shown


def choice_texts(texts: Sequence[str], cells: Sequence[Any], columns: Sequence[str], place: str) -> tuple[str, ...]:
    """The texts of an example: its first text, and its choices, each behind the second text if there is one.

    Args:
        texts: One or two texts.
        cells: The choices, or a single list of them.
        columns: Their columns.
        place: The row, for messages.

    Raises:
        UserError: If a choice is not a text.
    """
    if len(columns) == 1:
        [cells] = cells
        if isinstance(cells, str) or not isinstance(cells, Sequence):
            raise UserError(
                f"{place}: column '{columns[0]}' contains {shown(cells)}; expected a list of choices, or name a column "
                "for each choice (data.choices=[<column>,<column>])."
            )
        columns = [*columns] * len(cells)
    for column, choice in zip(columns, cells, strict=True):
        if not isinstance(choice, str):
            raise UserError(f"{place}: column '{column}' contains the choice {shown(choice)}; expected a text.")
        check_length(choice, f"{place}: column '{column}'")
    text, *begun = texts
    return (text, *(" ".join((*begun, choice)) for choice in cells))


def names_of_places(labels: Collection[Any], count: int, columns: Sequence[str], where: str) -> list[str]:
    """What labels call the places of the choices: numbers from 0 or 1, letters, or the columns of the choices.

    >>> names_of_places({"B", "C"}, 3, ["options"], "Column 'answer'"), names_of_places({2, 1}, 2, ["a", "b"], "")
    (['A', 'B', 'C'], ['1', '2'])

    Args:
        labels: The labels that occur.
        count: Choices of an example.
        columns: Their columns.
        where: The column of the labels, for messages.

    Raises:
        UserError: If they are none of these, or there are fewer than two choices.
    """
    if count < 2:
        raise UserError(f"{where} has rows with {count} choice; expected at least two (data.choices).")
    numbers = [str(number) for number in range(count + 1)]
    letters = [chr(ord("A") + place) for place in range(min(count, 26))]
    own = [columns] if len(columns) == count else []
    for names in (numbers[:-1], numbers[1:], letters, *own):
        if {str(label) for label in labels} <= {*names}:
            return [*names]
    wrong = next((label for label in labels if str(label) not in numbers), max(labels, key=str))
    raise UserError(
        f"{where} contains {shown(wrong)}, but rows have {count} choices; expected 0 to {count - 1}, 1 to {count}, "
        f"{letters[0]} to {letters[-1]}, or the names of the columns of choices."
    )


class DemoChoices(BuiltIn):
    """Sentences of the demo corpus up to their verb, with four endings: their own and those of other sentences.

    >>> [example, *_] = DemoChoices().examples("validation")
    >>> example.texts[0], example.texts[1 + example.label]
    ('Seven metal hatches were shut', 'by the woman.')
    """

    def examples(self, split: str) -> list[Example]:
        return [*_demo_choices(split)]


@functools.cache
def _demo_choices(split: str) -> tuple[Example, ...]:
    begun: dict[tuple[str, str], str] = {}
    for example in demo_examples("demo_nli", split):
        annotation, sentence = example.annotations[0], example.texts[0]
        if len(annotation.frames) == 1:
            frame = annotation.frames[0]
            verb = annotation.words[frame.target if frame.target_last is None else frame.target_last]
            if sentence[verb.end :].strip(" ."):
                begun[sentence[: verb.end], sentence[verb.end :].strip()] = frame.name
    examples = []
    for index, ((start, ending), name) in enumerate(begun.items()):
        # A separate stream for each sentence.
        generator = random.Random(f"choices {split} {index}")
        others = sorted({other for (_, other), frame in begun.items() if frame != name and other != ending})
        # After most verbs, an ending that begins with "by" fits a passive only: two endings are of the other voice.
        alike = [other for other in others if _is_agent(other) == _is_agent(ending)]
        unlike = [other for other in others if _is_agent(other) != _is_agent(ending)]
        endings = [ending, *generator.sample(alike, 1), *generator.sample(unlike, 2)]
        generator.shuffle(endings)
        label = None if split == "test" else endings.index(ending)
        examples.append(Example(index, (start, *endings), label))
    return tuple(examples)


def _is_agent(ending: str) -> bool:
    return ending.startswith("by ")
