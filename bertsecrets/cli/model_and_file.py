"""``analyze <model> <file>``: turn a model and a file of texts and labels into settings."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bertsecrets.cli.run_settings import run_of
from bertsecrets.data.sources.base import FORMATS, LONGEST_TEXT, TEXT
from bertsecrets.errors import UserError
from bertsecrets.models.spec import INITIAL
from bertsecrets.results.files import quoted
from bertsecrets.settings import CONF
from bertsecrets.sweeps.hydra_arguments import Invocation, key_of

_LABELS = (
    "label",
    "labels",
    "gold_label",
    "class",
    "category",
    "sentiment",
    "target",
    "stars",
    "rating",
    "score",
    "ner_tags",
    "pos_tags",
    "tags",
)
_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("question", "sentence"),
)
_TEXTS = ("text", "sentence", "review", "content", "comment", "message", "tweet", "document", "body", "tokens", "words")
"""Common names of columns, the likeliest first."""

_BEFORE_CHOICES = (
    *(("sent1", "sent2"), ("article", "question"), ("passage", "question"), ("context", "question")),
    *(("question",), ("premise",), ("startphrase",), ("ctx",), ("sentence",), ("context",)),
)
_CHOICE_LISTS = ("choices", "options", "endings")
_CHOICE = re.compile(r"(ending|choice|option|answer|sol)_?\d", re.IGNORECASE)
_RIGHT = ("label", "answer", "answerkey", "gold", "correct")


def with_model_and_file(invocation: Invocation) -> Invocation:
    """Turn the plain words of ``analyze``, a model and perhaps a file, into settings.

    Without ``analysis``, every head and layer is disabled in turn. Columns are recognised by their names.

    Raises:
        UserError: If there are more words, one is neither a model nor a file, a setting gives the same thing, or the
            columns are not recognised.
    """
    words = [word for word in invocation.overrides if "=" not in word and not word.startswith("~")]
    if invocation.config_name != "analyze" or not words or _is_choice(words[0]):
        return invocation
    settings = [word for word in invocation.overrides if word not in words]
    keys = set(map(key_of, settings))
    model, *files = words
    if not os.path.exists(os.path.expanduser(model)) and "/" not in model and model != INITIAL:
        raise UserError(
            f"'{model}' is not a setting (key=value), a folder or a file; give a run folder, a folder with a model, "
            "or a hub name (owner/name)."
        )
    if len(files) > 1:
        raise UserError(f"Unexpected argument '{files[1]}'; give analyze <model> <file with texts and labels>.")
    for key, word in zip(("checkpoint", "data.path"), words, strict=False):
        if key in keys:
            raise UserError(f"'{word}' and {key}= both give {_NAMED[key]}; remove one of them.")
    added = [f"checkpoint={quoted(model)}"]
    if not {"analysis", "measure", "experiment"} & keys and not any(key.startswith(_ANALYSES) for key in keys):
        added.append("analysis=disable")
    if files:
        added += _data(model, files[0], keys)
    return replace(invocation, overrides=[*added, *settings])


_NAMED = {"checkpoint": "a model", "data.path": "a file"}
_ANALYSES = ("prune.", "shrink.")
"""Settings that choose an analysis."""


def _is_choice(word: str) -> bool:
    """Whether a word is a configuration choice, whose own check explains how to write it."""
    return word.isidentifier() and not os.path.exists(word) and any(CONF.glob(f"*/{word}.yaml"))


def _data(model: str, file: str, keys: set[str]) -> list[str]:
    path = Path(file).expanduser()
    if not path.exists():
        raise UserError(f"'{file}' does not exist; give a file with texts and labels, with a header.")
    if run_of(model) is not None:
        # A run records its columns.
        return [f"data.eval_path={quoted(os.path.abspath(path))}"]
    kind = FORMATS.get(path.suffix.lower(), "csv")
    if path.is_dir():
        kind = TEXT if {inside.suffix for inside in path.iterdir()} == {".txt"} else "hub"
    elif path.suffix.lower() == ".txt" and not _has_header(path):
        kind = TEXT
    added = [f"data={kind}", f"data.path={quoted(str(path))}"]
    if kind == "columns" and path.suffix == ".conllu":
        of_treebank = {"data.text": "form", "data.label": "upos"}
        return [*added, *(f"{key}={name}" for key, name in of_treebank.items() if key not in keys)]
    if kind in ("hub", "columns", TEXT):
        return added
    # A slow import that only files need.
    from bertsecrets.data.sources.table import file_columns

    columns = file_columns(path, kind)
    found = find_choices(columns) or dict(zip(("data.text", "data.label"), find_columns(columns), strict=True))
    for key, column in found.items():
        if key in keys:
            continue
        if not column:
            raise UserError(
                f"'{file}' has the columns {', '.join(columns)}; choose the texts and the labels with "
                "data.text=<column> (for pairs data.text=[<column>,<column>]) and data.label=<column>."
            )
        added.append(f"{key}=[{','.join(map(quoted, column))}]" if len(column) > 1 else f"{key}={quoted(column[0])}")
    return added


def find_choices(columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The columns of a file of multiple choice by setting, empty where no name is recognised; no setting for others.

    >>> find_choices(["sent1", "sent2", "ending0", "ending1", "label"])["data.choices"], find_choices(["text", "label"])
    (('ending0', 'ending1'), {})
    """
    own = {name.casefold(): name for name in columns}
    numbered = tuple(name for name in columns if _CHOICE.fullmatch(name))
    choices = numbered if len(numbered) > 1 else next(((own[name],) for name in _CHOICE_LISTS if name in own), ())
    if not choices:
        return {}
    texts = next((names for names in _BEFORE_CHOICES if all(name in own for name in names)), ())
    label = next(((own[name],) for name in _RIGHT if name in own), ())
    return {"data.text": tuple(own[name] for name in texts), "data.choices": choices, "data.label": label}


def _has_header(path: Path) -> bool:
    """Whether the first line of a file names a column of texts and one of labels."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = file.readline(LONGEST_TEXT)
    names = ([name.strip(' \n"') for name in first.split(separator)] for separator in ",;\t")
    return any(all(find_columns(columns)) for columns in names)


def find_columns(columns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The one or two text columns and the label column; empty if no name is recognised.

    >>> find_columns(["id", "Review", "stars"]), find_columns(["premise", "hypothesis", "label"])
    ((('Review',), ('stars',)), (('premise', 'hypothesis'), ('label',)))
    >>> find_columns(["utterance", "label"]), find_columns(["a", "b", "c"])
    ((('utterance',), ('label',)), ((), ()))
    """
    own = {name.casefold(): name for name in columns}
    label: tuple[str, ...] = next(((own[name],) for name in _LABELS if name in own), ())
    texts: tuple[str, ...] = next(((own[one], own[two]) for one, two in _PAIRS if one in own and two in own), ())
    texts = texts or next(((own[name],) for name in _TEXTS if name in own), ())
    if len(columns) == 2:
        # The remaining one of two columns.
        texts = texts or tuple(name for name in columns if label and name not in label)
        label = label or tuple(name for name in columns if len(texts) == 1 and name not in texts)
    return texts, label
