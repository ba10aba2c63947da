"""Infer a task from the columns of the user's own file or data set."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
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

_LIST_MARKS = "|;,"
"""Separators between several labels in one row."""

_MISSING = frozenset({"na", "n/a", "nan", "null", "none", "?", "missing", "unknown"})
"""Class names that often mean a missing label."""

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
    plain = [column for column, feature in train.features.items() if _is_plain(feature)]
    if config.label not in plain:
        raise UserError(
            f"{where} contains {train.features[config.label]}; expected one text or number per row (tasks with "
            "several labels per text are not supported)."
        )
    if config.choices is not None:
        return {**common, **_choice([splits[split] for split in (TRAIN, evaluated) if split], config, where)}
    names = getattr(train.features[config.label], "names", None)
    if names is None:
        others = [column for column in plain if column not in (*texts, config.label)]
        _check_repeated(train[:], others, config, where)
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
        _check_single(different, where)
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


def _check_repeated(rows: Mapping[str, Sequence[Any]], others: Sequence[str], config: SourceConfig, where: str) -> None:
    """Raise UserError if every row has a distinct value, like an identifier; decimals may be scores.

    Args:
        rows: Column -> the value of each row.
        others: Columns that may hold labels instead.
        config: Names the label and the target; an explicit target is accepted without this check.
        where: The column, for the message.
    """
    values = rows[config.label]
    if config.target != "auto" or len(values) <= MOST_NUMBERED or len(set(values)) < len(values):
        return
    if any(number is not None and not number.is_integer() for number in map(_number, values)):
        return
    most = min(MOST_CLASSES, len(values) / 2)
    possible = [name for name in others if 1 < len(set(rows[name])) <= most]
    advice = (
        f"choose a column whose values repeat: data.label={' or data.label='.join(possible)}"
        if possible
        else "no other column looks like classes: add a column of labels, or set data.target=scores if these numbers "
        "are scores"
    )
    raise UserError(
        f"{where} has a different value in each of the {len(values):,} rows, so it looks like an identifier, not a "
        f"label; {advice}."
    )


def _check_single(different: Sequence[Any], where: str) -> None:
    """Raise UserError if values list several labels, such as ``a|b`` where ``a`` and ``b`` are also values."""
    texts = [str(value) for value in different]
    for mark in _LIST_MARKS:
        lists = [text for text in texts if mark in text.strip(mark)]
        labels = {part.strip() for text in texts for part in text.split(mark)}
        if lists and len(labels) < len(texts):
            raise UserError(
                f"{where} has several labels in one row, such as {shown(lists[0])}; tasks with several labels per "
                "text are not supported: keep one label in each row, or set data.target=classes to treat every "
                "combination as a class."
            )


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
    doubts = _doubts(names)
    if doubts:
        _log.warning(
            f"{where}: {'; '.join(doubts)}. Each counts as a separate class; correct or remove these rows if that is "
            "not intended."
        )
    return {"labels": names, "metrics": ["accuracy", "matthews"]}


def _doubts(names: Sequence[str]) -> list[str]:
    """Suspicious class names, as parts of a sentence.

    >>> _doubts(["Yes", "no", "yes", "NA"])
    ["'Yes' and 'yes' differ only in case", "'NA' may stand for a missing label"]
    >>> _doubts(["-1", "0", "1"]), _doubts(["-1", "1"])
    (["'-1' may stand for a missing label"], [])
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.casefold().strip(), []).append(name)
    doubts = [f"{' and '.join(map(shown, same))} differ only in case" for same in alike.values() if len(same) > 1]
    counted = set(names) == {"-1", *map(str, range(len(names) - 1))}
    missing = [name for name in names if name.casefold().strip() in _MISSING or (name == "-1" and counted)]
    return doubts + [f"{shown(name)} may stand for a missing label" for name in missing]


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _name(stem: str) -> str:
    """A folder name derived from the name of a file or data set."""
    return re.sub(r"[^\w.-]+", "_", stem).strip("._-")[:_LONGEST_NAME] or "own"
