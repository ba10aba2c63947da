"""Infer a task from the columns of the user's own file or data set."""

import logging
import math
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from bertsecrets.data.sources.base import HELD_OUT, TEXT, TRAIN, VALIDATION
from bertsecrets.data.sources.choice_rows import names_of_places
from bertsecrets.data.sources.factory import FILES, SourceConfig, make_source
from bertsecrets.data.sources.table import FileSource, HubSource, class_names
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices
from bertsecrets.settings import shown
from bertsecrets.task_heads import TASK_HEADS
from bertsecrets.task_heads.labels import CHOICE, IGNORED, MASKED, TOKENS, parts_of_tag

MOST_CLASSES = 100
"""Most distinct values of a column of classes."""

MOST_NUMBERED = 20
"""Most distinct whole numbers that count as classes; more are scores."""

_EVALUATED = (VALIDATION, "valid", "val", "dev", "test")
"""Splits of a data set to evaluate on; the first one with labels is used."""

_NAMED = 3
"""Most non-numeric values that a message lists."""

_log = logging.getLogger(__name__)

_LONGEST_NAME = 60
_LONGEST_CLASS = 100


def inferred_task(
    config: SourceConfig, otherwise: str = HELD_OUT, outputs: int = 0, kind: str | None = None
) -> dict[str, Any]:
    """The keys of a ``conf/task`` that describe a data set: its name, columns, classes or range of scores, and metrics.

    Args:
        config: With ``source`` a format of files or ``hub``, and the names of the columns.
        otherwise: The split to evaluate on if the data have no evaluation rows: ``held_out`` or ``all``.
        outputs: Number of outputs of the model to be used; if two or more, whole numbers are classes. 0 if unknown.
        kind: The kind of task, if chosen; one that makes labels of the texts needs no label column.

    Raises:
        UserError: If the data cannot be read or lack a column, the labels are neither classes nor scores, or a text
            column is also the label column.
    """
    texts = [config.text] if isinstance(config.text, str) else list(config.text)
    if config.label in texts:
        raise UserError(
            f"data.text and data.label are both '{config.label}', so the model would read the label; change one of "
            "them."
        )
    if config.source == TEXT:
        texts, kind = [TEXT], kind or MASKED
    layout, source, task = _source(config, texts, kind)
    splits = source.splits()
    if TRAIN not in splits:
        raise UserError(f"{_sentence(source.name)} has no split 'train'; {choices(TRAIN, splits)}.")
    train = splits[TRAIN]
    for column in source.columns:
        if column not in train.column_names:
            raise UserError(
                f"{_sentence(source.name)} has no column '{column}'; {choices(column, train.column_names)}."
            )
    where = f"Column '{config.label}' of {source.name}"
    makes_labels = source.task.head.makes_labels

    def can_evaluate(split: str) -> bool:
        if split not in splits or makes_labels:
            return split in splits
        if config.label not in splits[split].column_names:
            return False
        if _is_list(splits[split].features[config.label]):
            return any(splits[split][config.label])
        # GLUE's test splits on the hub have -1 in every row.
        return any(value not in (None, -1) for value in splits[split].unique(config.label))

    evaluated = next(filter(can_evaluate, _EVALUATED), None)
    common = {"texts": len(texts), **task, **layout, "evaluation": {"val": evaluated or otherwise}}
    if makes_labels:
        return {**common, "kind": kind, "metrics": []}
    if _is_list(train.features[config.label]):
        judged = [splits[split] for split in (TRAIN, evaluated) if split]
        tags = _tags([split[config.label] for split in judged], train, config, where)
        return {**common, "kind": TOKENS, **tags}
    if not _is_plain(train.features[config.label]):
        raise UserError(
            f"{where} contains {train.features[config.label]}; expected one text or number per row (tasks with "
            "several labels per text are not supported)."
        )
    if config.choices is not None:
        return {**common, **_choice([splits[split] for split in (TRAIN, evaluated) if split], config, where)}
    names = getattr(train.features[config.label], "names", None)
    if names is None:
        given = train[config.label]
        # Decimals may be scores.
        names_rows = MOST_NUMBERED < len(given) == len(set(given)) and all(
            number is None or number.is_integer() for number in map(_number, given)
        )
        if config.target == "auto" and names_rows:
            raise UserError(
                f"{where} has a different value in each of the {len(given):,} rows, so it looks like an identifier, "
                "not a label; choose a column whose values repeat with data.label, or set data.target=scores if these "
                "numbers are scores."
            )
        values = [
            [value for value in splits[split].unique(config.label) if value is not None]
            for split in (TRAIN, evaluated)
            if split
        ]
        target = _target(values, config, where, outputs)
    else:
        target = _classes([str(name) for name in names], where, outputs)
    return {**common, **target}


def _source(
    config: SourceConfig, texts: list[str], kind: str | None
) -> tuple[dict[str, Any], FileSource | HubSource, dict[str, Any]]:
    """The layout of a task on some data, their source, and the task's name."""
    columns: dict[str, Any] = {"texts": texts, "label": config.label}
    if config.choices is not None:
        columns["choices"] = [config.choices] if isinstance(config.choices, str) else list(config.choices)
    if config.source in FILES:
        layout: dict[str, Any] = {"table": columns}
        short = Path(config.path or "").stem
    else:
        name = config.dataset or config.path
        if name is None:
            raise UserError("data=hub needs one of: a task, data.dataset=<name on the hub>, data.path=<folder>.")
        # A local folder needs no hub name; the layout repeats its path.
        layout = {"hub": {"path": name, "name": config.dataset_config, **columns}}
        short = name.rpartition("/")[2] if config.dataset is not None else Path(name).expanduser().resolve().name
    named = {"name": _name(short)}
    # What its labels are is not known before they are read.
    of_texts = {"kind": kind} if kind and kind in TASK_HEADS and TASK_HEADS[kind].makes_labels else {}
    provisional = Task.read("task", {**named, "metrics": [], "texts": len(texts), **layout, **of_texts})
    source = make_source(config, provisional).source
    assert isinstance(source, (FileSource, HubSource))
    return layout, source, named


def _sentence(name: str) -> str:
    """The beginning of a sentence about a data set: "File 'x.csv'", "Data set 'x'"."""
    return f"File {name}" if name.startswith("'") else f"D{name[1:]}"


def _is_plain(feature: Any) -> bool:
    """Whether a column contains a text or a number in each row."""
    import datasets

    return isinstance(feature, (datasets.Value, datasets.ClassLabel))


def _is_list(feature: Any) -> bool:
    """Whether a column holds a list of texts or of numbers in each row."""
    return _is_plain(getattr(feature, "feature", None))


def _tags(columns: Sequence[Sequence[Any]], train: Any, config: SourceConfig, where: str) -> dict[str, Any]:
    """The tags of a column with a list for each row, of the rows to train on and those to evaluate on, if any."""
    words = config.text if isinstance(config.text, str) else config.text[0]
    if not _is_list(train.features[words]):
        raise UserError(
            f"{where} holds a list in each row, but column '{words}' a text; name the column of the words with "
            "data.text, as each word has a tag."
        )
    names = class_names(train.features[config.label])
    if names is None:
        different = dict.fromkeys(tag for column in columns for tags in column if tags for tag in tags)
        given = [tag for tag in different if tag is not None and tag != IGNORED]
        if not given:
            raise UserError(f"{where} has no tags (none, or {IGNORED}); give tags to the words to be scored.")
        # The tag outside of entities first.
        names = sorted(map(str, given), key=lambda tag: (tag != "O", tag.partition("-")[2], tag))
        if any(isinstance(tag, int) for tag in given):
            names = [str(number) for number in range(max(given) + 1)]
    _check_classes(names, where)
    entities = ["entity_f1"] if any(parts_of_tag(name)[0] != "O" for name in names) else []
    return {"labels": names, "metrics": [*entities, "token_accuracy"]}


def _choice(splits: Sequence[Any], config: SourceConfig, where: str) -> dict[str, Any]:
    """The places of the choices, from what their labels call them."""
    columns = [config.choices] if isinstance(config.choices, str) else [*(config.choices or ())]
    counts = {len(columns)}
    if len(columns) == 1:
        counts = {len(cell) for split in splits for cell in split[columns[0]] if isinstance(cell, list)} or {0}
    if len(counts) > 1:
        raise UserError(
            f"Column '{columns[0]}' has {min(counts)} choices in some rows and {max(counts)} in others; keep rows with "
            "the same number of choices."
        )
    labels = {label for split in splits for label in split.unique(config.label) if label not in (None, -1)}
    names = class_names(splits[0].features[config.label])
    named = labels if names is None else {names[label] for label in labels}
    return {
        "kind": CHOICE,
        "labels": names_of_places(named, counts.pop(), columns, where),
        "metrics": ["accuracy"],
    }


def _target(values: Sequence[Sequence[Any]], config: SourceConfig, where: str, outputs: int) -> dict[str, Any]:
    """The classes, or the range of scores, of a label column, from training rows and then any evaluation rows."""
    different = list(dict.fromkeys(chain.from_iterable(values)))
    numbers = [_number(value) for value in different]
    numeric = [number for number in numbers if number is not None]
    scores = len(numeric) == len(different) and (
        (len(set(numeric)) > MOST_NUMBERED and outputs < 2) or not all(number.is_integer() for number in numeric)
    )
    if config.target == "auto":
        _check_numbers(different, numbers, scores, where)
    if config.target == "scores" or (config.target == "auto" and scores):
        if len(numeric) < len(different):
            raise UserError(
                f"{where} contains {shown(different[numbers.index(None)])}; data.target=scores expects numbers."
            )
        if len(set(numeric)) == 1:
            raise UserError(f"{where} contains only {shown(different[0])}; expected at least two different scores.")
        return {"label_range": [min(numeric), max(numeric)], "metrics": ["pearson", "spearman"]}
    most = max(MOST_CLASSES, outputs)
    if len(different) > most:
        expected = "at most" if outputs > 1 else "numbers, or at most"
        raise UserError(
            f"{where} has {len(different):,} distinct values, such as {shown(different[0])}; expected {expected} "
            f"{most} classes: choose another column with data.label."
        )
    # Sort numbers by value and texts alphabetically.
    ordered = sorted(different, key=lambda value: (_number(value) or 0.0, str(value)))
    if outputs < 2:
        _check_classes([str(value) for value in values[0]], where)
    return _classes([str(value) for value in ordered], where, outputs)


def _check_numbers(different: Sequence[Any], numbers: Sequence[float | None], scores: bool, where: str) -> None:
    """Raise UserError if most values are numbers but a few are not, or if classes are one number in two spellings."""
    texts = [value for value, number in zip(different, numbers, strict=True) if number is None]
    if 0 < len(texts) < len(different) / 2:
        more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
        raise UserError(
            f"{where} contains numbers, but also {', '.join(map(shown, texts[:_NAMED]))}{more}; remove these rows, or "
            "set data.target=classes to treat every value as a class."
        )
    first: dict[float, Any] = {}
    for value, number in zip(different, numbers, strict=True):
        if number is not None and first.setdefault(number, value) != value and not scores:
            raise UserError(
                f"{where} contains {shown(first[number])} and {shown(value)}, which are the same number; use one "
                "spelling, or set data.target=classes to keep them apart."
            )


def _check_classes(names: Sequence[str], where: str) -> None:
    """Raise UserError if there are fewer than two classes."""
    different = list(dict.fromkeys(names))
    if len(different) < 2:
        raise UserError(f"{where} has only one class ({', '.join(map(shown, different))}); expected at least two.")


def _classes(names: list[str], where: str, outputs: int) -> dict[str, Any]:
    # A model names the classes that its data lack.
    if outputs < 2:
        _check_classes(names, where)
    elif len(names) == 1:
        _log.warning(f"{where} has only class {shown(names[0])}: heads that matter for other classes cannot be found.")
    for name in names:
        # The start of an interpolation, or a missing value, would not be read back as a text.
        if "${" in name or name == "???" or not name.isprintable() or len(name) > _LONGEST_CLASS:
            raise UserError(
                f"{where} contains {shown(name)}, which cannot be a class name; rename it to at most {_LONGEST_CLASS} "
                "printable characters without '${'."
            )
    return {"labels": names, "metrics": ["accuracy", "matthews"]}


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _name(stem: str) -> str:
    """A folder name derived from the name of a file or data set."""
    return re.sub(r"[^\w.-]+", "_", stem).strip("._-")[:_LONGEST_NAME] or "own"
