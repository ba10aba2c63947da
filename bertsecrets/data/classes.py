"""Match the classes of a data set with a model's outputs by name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bertsecrets.errors import UserError
from bertsecrets.results.files import copied
from bertsecrets.settings import shown

_SYNONYMS = {
    "neg": "negative",
    "pos": "positive",
    "neu": "neutral",
    "entail": "entailment",
    "entails": "entailment",
    "entailed": "entailment",
    "contradict": "contradiction",
    "contradicts": "contradiction",
    "contradictory": "contradiction",
    "nonentailment": "not entailment",
    "yes": "true",
    "no": "false",
    "grammatical": "acceptable",
    "ungrammatical": "unacceptable",
    "not spam": "ham",
}
"""Common names of a class -> its normalised name."""

_UNNAMED = re.compile(r"label[ _-]?(\d+)", re.IGNORECASE)
"""The library's default names for outputs without names: LABEL_0, LABEL_1, ..."""

_NUMBER = re.compile(r"([+-]?\d+)(?:\.0+)?")
"""A whole number, also as pandas writes it: 1.0."""


def match_classes(names: Sequence[str], outputs: Sequence[str]) -> list[int]:
    """The index of the model output for each class of the data.

    Names are compared ignoring case and common synonyms: ``NEGATIVE``, ``negative``, ``neg``. Whole numbers are output
    indices, counted from 0 if one of them is 0, and from 1 if one equals the number of outputs. Outputs without names
    (``LABEL_0``, ...) are matched in order if there are as many classes.

    Args:
        names: The classes of the data.
        outputs: Names of the model's outputs in their order.

    Raises:
        UserError: If a class has no output, or two classes share an output.

    >>> match_classes(["neg", "pos"], ["POSITIVE", "NEGATIVE"])
    [1, 0]
    >>> match_classes(["1.0", "2.0"], ["LABEL_0", "LABEL_1"]), match_classes(["ham", "spam"], ["LABEL_0", "LABEL_1"])
    ([0, 1], [0, 1])
    """
    places = [_place(name, names, outputs) for name in names]
    found = [place for place in places if place is not None]
    if len(names) > len(outputs) and None in places:
        others = [name for name, place in zip(names, places, strict=True) if place is None]
        which = ", ".join(map(shown, others)) if found else f"all but {len(outputs)} of them"
        raise UserError(
            f"The data have {len(names)} classes ({', '.join(names)}), but the model has {len(outputs)} outputs "
            f"({', '.join(outputs)}); remove the rows of {which}."
        )
    if len(found) < len(names) or len(set(found)) < len(found):
        unmatched = next(
            name for name, place in zip(names, places, strict=True) if place is None or places.count(place) > 1
        )
        raise UserError(
            f"Class {shown(unmatched)} does not match exactly one output: the data have {', '.join(names)}, the model "
            f"has {', '.join(outputs)}; list the class of each output in order: model.labels=[<class>,...] on the "
            "command line, model.config.id2label in Python."
        )
    return found


def names_of(id2label: Mapping[Any, Any] | None, count: int) -> list[str]:
    """The names of a model's outputs in the order of their keys, which may be numbers or texts.

    >>> names_of({"1": "POSITIVE", "0": "NEGATIVE"}, 3)
    ['NEGATIVE', 'POSITIVE', 'LABEL_2']
    """
    names = id2label or {}
    return [str(names.get(place, names.get(str(place), f"LABEL_{place}"))) for place in range(count)]


def all_classes(names: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """The classes of the data, and those of the model's outputs that the data lack.

    Raises:
        UserError: As :func:`match_classes`.

    >>> all_classes(["neg", "pos"], ["NEGATIVE", "NEUTRAL", "POSITIVE"])
    ['neg', 'pos', 'NEUTRAL']
    """
    places = match_classes(names, outputs)
    return [*names, *(output for place, output in enumerate(outputs) if place not in places)]


def name_of_number(number: float, outputs: Sequence[str]) -> str | None:
    """The whole number as a class name if an output has that name, else None.

    >>> name_of_number(4.0, ["1 star", "4 stars"]), name_of_number(0, ["1 star", "4 stars"])
    ('4', None)
    """
    return str(int(number)) if str(int(number)) in map(_normal, outputs) else None


def are_unnamed(outputs: Sequence[str]) -> bool:
    """Whether outputs are called LABEL_0, LABEL_1, ..., as in models saved without names."""
    return all(_UNNAMED.fullmatch(name) for name in outputs)


def labels_setting(names: Sequence[str]) -> str:
    """The setting that names the class of each model output, as a user types it.

    >>> labels_setting(["bad", "not so bad"])
    "model.labels='[bad,not so bad]'"
    """
    return f"model.labels={copied(list(names))}"


def matched_sentence(names: Sequence[str], outputs: Sequence[str], places: Sequence[int]) -> str | None:
    """The sentence that tells which output stands for which class; None if all names agree."""
    if [outputs[place] for place in places] == list(names):
        return None
    pairs = ", ".join(f"{outputs[place]} is '{name}'" for name, place in zip(names, places, strict=True))
    start = "The model does not name its classes; by number," if are_unnamed(outputs) else "Outputs of the model:"
    return f"{start} {pairs}."


def _place(name: str, names: Sequence[str], outputs: Sequence[str]) -> int | None:
    """The index of the only output that matches a class; None if none or several match."""
    exact = [place for place, output in enumerate(outputs) if output == name]
    if len(exact) == 1:
        return exact[0]
    if unnamed := _UNNAMED.fullmatch(name.strip()):
        return int(unnamed[1]) if int(unnamed[1]) < len(outputs) else None
    normal, unnamed_outputs = _normal(name), are_unnamed(outputs)
    equal = [place for place, output in enumerate(outputs) if _normal(output) == normal]
    if equal:
        return equal[0] if len(equal) == 1 else None
    numbers = [int(other) for other in map(_normal, names) if _NUMBER.fullmatch(other)]
    if not _NUMBER.fullmatch(normal):
        return names.index(name) if unnamed_outputs and not numbers and len(names) == len(outputs) else None
    # Unless 0 or the number of outputs occurs, the data do not show whether counting starts at 0 or 1.
    first = 0 if 0 in numbers else 1 if len(outputs) in numbers else None
    if first is None or any(_NUMBER.fullmatch(_normal(output)) for output in outputs):
        return None
    place = int(normal) - first
    return place if 0 <= place < len(outputs) else None


def _normal(name: str) -> str:
    """The normalised form of a class name: lower case, spaces, one of several synonyms.

    >>> _normal("Not_Entailment"), _normal("non-entailment"), _normal("4 stars"), _normal("1.0")
    ('not entailment', 'not entailment', '4', '1')
    """
    text = " ".join(re.sub(r"[_\-\s]+", " ", name.strip()).casefold().split())
    if number := _NUMBER.fullmatch(name.strip()):
        return str(int(number[1]))
    text = re.sub(r"^(\d+) stars?$", r"\1", text)
    text = re.sub(r"^(?:non|no) (?=\w)", "not ", text)
    return _SYNONYMS.get(text, text)
