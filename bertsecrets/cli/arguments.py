"""Parse a command line once: resumed folders, task files and data of the user's own become plain settings."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from bertsecrets.cli.run_settings import run_of
from bertsecrets.cli.targets import trainer_arguments
from bertsecrets.data.classes import all_classes
from bertsecrets.data.sources import FILES, SourceConfig
from bertsecrets.data.sources.base import ALL, FORMATS, HELD_OUT, LONGEST_TEXT, TEXT
from bertsecrets.errors import UserError
from bertsecrets.keys import top_level
from bertsecrets.models.files import ADAPTER, base_of, output_names
from bertsecrets.models.spec import INITIAL, ModelSpec, model_folder
from bertsecrets.results.files import quoted, read_yaml, typed
from bertsecrets.results.run import CONFIG_COPY
from bertsecrets.settings import CONF
from bertsecrets.sweeps.hydra_arguments import (
    PATHS,
    Invocation,
    key_of,
    parse_arguments,
    parse_overrides,
    unquoted,
)
from bertsecrets.sweeps.sweep import resume_arguments
from bertsecrets.sweeps.trust import check_links, check_sweep_arguments, code_of, may_be_given_again

OWN_DATA = "own"
"""The option of ``conf/task`` for data of the user's own."""

_COLUMNS = ("data.text", "data.choices", "data.label", "data.target", "data.dataset", "data.dataset_config")
"""Keys that define the task; no other task has them."""

_COLUMN_NAMES = ("data.text", "data.choices", "data.label")

_FILE = "file"
"""The option of ``conf/task`` for a task file."""

_KEY = re.compile(r"[^\W\d]\w*|0|[1-9]\d*", re.ASCII)
"""A key in Hydra's grammar."""

_RESUME = re.compile(r"\+{0,2}resume=(.*)", re.DOTALL)
_TEXT = "text="
_TASK = "task="

_ALLOWED_WITH_RESUME = top_level(lambda meaning: meaning.with_resume)

_OF_CHECKPOINTS = ("analyze", "view")
"""The commands whose ``checkpoint`` can be any model."""


def parse(arguments: Sequence[str], command: str) -> Invocation | None:
    """Parse a command line and complete it; None if Hydra answers it.

    Args:
        arguments: The words after the program.
        command: The default command, which ``--config-name`` overrides.

    Raises:
        UserError: If a word is neither a setting nor an option, or the settings contradict each other or cannot be
            completed.
    """
    invocation = parse_arguments(arguments, CONF, command)
    if invocation is None or invocation.help:
        return invocation
    if invocation.config_name == "analyze":
        invocation = with_model_and_file(invocation)
    invocation = replace(invocation, overrides=with_texts(invocation.overrides))
    check_words(invocation, arguments)
    invocation = with_resume(invocation)
    settings = invocation.overrides
    if invocation.config_name == "analyze":
        settings = with_analysis(settings)
    invocation = replace(invocation, overrides=with_task_file(with_quoted_text(settings)))
    check_model_name(invocation)
    if invocation.config_name in _OF_CHECKPOINTS:
        invocation = with_own_model(invocation)
    return with_new_keys(replace(invocation, overrides=[*invocation.overrides, *own_data(invocation)]))


def check_words(invocation: Invocation, arguments: Sequence[str]) -> None:
    """Check that each word is a setting, or an option of Hydra's.

    Raises:
        UserError: If one is not; the sentence says what to write.
    """
    if invocation.unknown:
        option = invocation.unknown[0]
        key, separator, value = option.lstrip("-").partition("=")
        following = next(iter(arguments[arguments.index(option) + 1 :]), "")
        if not separator and "=" not in following and not following.startswith("-"):
            value = following
        setting = f"{key.replace('-', '_')}={value or '<value>'}"
        raise UserError(f"'{option}' is not an option; settings have no dashes: write {setting}.")
    for word in invocation.overrides:
        groups = [path.parent.name for path in CONF.glob(f"*/{word}.yaml")] if word.isidentifier() else []
        if len(groups) == 1:
            raise UserError(f"'{word}' is a choice of {groups[0]}; write {groups[0]}={word}.")


def with_texts(arguments: Sequence[str]) -> list[str]:
    """Quote column names, and values that Hydra's grammar cannot parse.

    Data paths become absolute, so that the run folder can be read from anywhere.

    >>> with_texts(["data.label=stars, 1 to 5", "checkpoint=runs/a (1)", "seed=1,2", "data.text=[a,b]"])
    ["data.label='stars, 1 to 5'", "checkpoint='runs/a (1)'", 'seed=1,2', 'data.text=[a,b]']
    """
    completed = []
    for argument in arguments:
        key, separator, value = argument.partition("=")
        name = key_of(argument)
        if separator and not argument.startswith("~"):
            try:
                read = parse_overrides([argument])[0]
                text = value if read.is_sweep_override() else read.value()
            except UserError:
                # A mistake in the key is reported when all settings are parsed.
                text, argument = value, f"{key}={quoted(value)}"
            if (
                name in _COLUMN_NAMES
                and value
                and value[0] not in "[{'\""
                and value.lower() != "null"
                and "${" not in value
            ):
                argument = f"{key}={quoted(value)}"
            elif name in PATHS and text not in (None, "") and "${" not in str(text):
                path = os.path.expanduser(str(text))
                argument = f"{key}={quoted(os.path.abspath(path))}" if os.path.exists(path) else argument
        completed.append(argument)
    return completed


def with_resume(invocation: Invocation) -> Invocation:
    """The command line, with Hydra directed to the folder of the run or sweep that ``resume=<folder>`` names.

    Raises:
        UserError: If the folder contains neither, or a setting would change the run or sweep.
    """
    # Lightning passes these arguments on to the other processes of a run, where the folder is already quoted.
    resumed = [unquoted(match[1]) for match in map(_RESUME.fullmatch, invocation.overrides) if match]
    if not resumed or resumed[-1].lower() in ("null", "", "true"):
        return invocation
    folder = Path(resumed[-1])
    sweep = resume_arguments(folder)
    if sweep is None and not (folder / CONFIG_COPY).is_file():
        raise UserError(
            f"Folder '{folder}' has no {CONFIG_COPY}; set resume= to the folder of one interrupted run or sweep."
        )
    new_settings = [argument for argument in invocation.overrides if not _RESUME.fullmatch(argument)]
    if sweep is None and invocation.multirun:
        raise UserError(
            f"'{folder}' is the folder of a single run; remove -m, or repeat the sweep's command with resume=true."
        )
    check_links(folder)
    for argument in new_settings:
        key = key_of(argument)
        trusts = bool(code_of(key, argument.partition("=")[2]))
        allowed = key in _ALLOWED_WITH_RESUME or key.startswith("hydra.") or may_be_given_again(key) or trusts
        if not allowed:
            raise UserError(
                f"'{argument}' cannot be combined with resume=<folder>, which uses the folder's own configuration; "
                "remove it, or start a new run."
            )
    if sweep is not None:
        again = set(map(key_of, new_settings))
        sweep = [argument for argument in sweep if key_of(argument) not in again]
        check_sweep_arguments(sweep, folder)
        # The recorded arguments include the sweep's Hydra options.
        recorded = parse_arguments([*sweep, *invocation.options, *new_settings], CONF, invocation.config_name)
        assert recorded is not None
        return recorded
    quoted_folder = quoted(str(folder))
    return replace(
        invocation,
        overrides=[
            *new_settings,
            f"resume={quoted_folder}",
            f"hydra.run.dir={quoted_folder}",
            "hydra.output_subdir=null",
        ],
    )


_ANALYSES = {
    "prune.": "prune",
    "shrink.": "shrink",
    "ablation.heads": "disable_groups",
    "ablation.layers": "disable_groups",
    "ablation.head": "disable_heads",
    "ablation.layer": "disable_layers",
}
"""Prefixes of settings and the analysis they belong to."""


def with_analysis(arguments: list[str]) -> list[str]:
    """Add the analysis that the settings of ``analyze`` belong to, if the command line does not choose one.

    >>> with_analysis(["checkpoint=run", "prune.max_loss=1.0"])
    ['checkpoint=run', 'prune.max_loss=1.0', 'analysis=prune']
    >>> with_analysis(["checkpoint=run", "ablation.head=5.1,5.9"])
    ['checkpoint=run', 'ablation.head=5.1,5.9', 'analysis=disable_heads']
    """
    keys = list(map(key_of, arguments))
    chosen = any(key in ("experiment", "resume") or key.partition(".")[0] == "analysis" for key in keys)
    if chosen:
        return arguments
    for index in reversed(range(len(keys))):
        analysis = next((name for prefix, name in _ANALYSES.items() if keys[index].startswith(prefix)), None)
        if analysis is not None:
            return [*arguments[: index + 1], f"analysis={analysis}", *arguments[index + 1 :]]
    return arguments


_HEAD = re.compile(r"(?<![\w.'\"])\d+\.\d+(?![\w.'\"])")


def with_quoted_text(arguments: list[str]) -> list[str]:
    """Quote the sentences of ``text``, in which Hydra would interpret commas, quotes and dollars.

    Heads are quoted too, because Hydra would read 5.10 as the number 5.1.

    >>> with_quoted_text(["text=It's late, she said.", "text=[one,two]", "checkpoint=a"])
    ["text='It\\\\'s late, she said.'", 'text=[one,two]', 'checkpoint=a']
    >>> with_quoted_text(["head=5.10", "ablation.head=[5.1,5.10],3.2"])
    ["head='5.10'", "ablation.head=['5.1','5.10'],'3.2'"]
    """
    arguments = [
        _HEAD.sub(r"'\g<0>'", argument) if key_of(argument) in ("head", "ablation.head") else argument
        for argument in arguments
    ]
    return [f"{_TEXT}{_as_text(argument)}" if argument.startswith(_TEXT) else argument for argument in arguments]


def _as_text(argument: str) -> str:
    text = argument.removeprefix(_TEXT)
    if text == "null":
        return text
    if not text.startswith(("[", "'", '"')):
        return quoted(text)
    override = parse_overrides([argument])[0]
    if override.is_sweep_override():
        return ",".join(_as_text(f"{_TEXT}{value}") for value in override.sweep_string_iterator())
    return typed(override.value())


def with_task_file(arguments: Sequence[str]) -> list[str]:
    """Replace a task given as a YAML file by its keys; keys on the command line take precedence.

    The command line then defines the task, so the run's processes and analyses do not need the file.

    Raises:
        UserError: If the file cannot be read, does not consist of keys and values, or has a key that Hydra cannot read.
    """
    keys = {key_of(argument) for argument in arguments}
    task_files = [
        argument
        for argument in arguments
        if argument.startswith(_TASK) and unquoted(argument.removeprefix(_TASK)).endswith((".yaml", ".yml"))
    ]
    completed = []
    for argument in arguments:
        if argument not in task_files:
            # The file may define new keys.
            completed.append(f"++{argument}" if task_files and argument.startswith("task.") else argument)
            continue
        path = unquoted(argument.removeprefix(_TASK))
        advice = "give one YAML file in the format of conf/task"
        content = read_yaml(Path(path).expanduser(), "the task file", advice)
        if not isinstance(content, Mapping):
            raise UserError(f"The task file {path} does not contain keys and values; {advice}.")
        completed.append(f"{_TASK}{_FILE}")
        for key, value in _leaves(content, "task"):
            for name in key.split("."):
                if not _KEY.fullmatch(name):
                    raise UserError(
                        f"The task file {path} has the key '{name}'; use letters, digits and underscores in keys."
                    )
            if key not in keys:
                completed.append(f"++{key}={typed(value)}")
    return completed


def _leaves(content: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """The values of nested sections by dotted keys."""
    for name, value in content.items():
        key = f"{prefix}.{name}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, key)
        else:
            yield key, value


def check_model_name(invocation: Invocation) -> None:
    """Raise UserError if ``model.name`` renames a predefined model, which every page would then mislabel."""
    settings = invocation.settings
    model_choice = settings["model"].value() if "model" in settings else None
    if "model.name" in settings and model_choice != "folder" and "model.path" not in settings:
        value = settings["model.name"].value()
        raise UserError(
            f"model.name={value} only renames the model; choose a model with model=bert_base or another name of "
            "conf/model, or use your own with model=folder model.path=<folder> model.name=<name>."
        )


def own_data(invocation: Invocation) -> list[str]:
    """The arguments that define a task from the data, for a command line with data but no task.

    They become part of the command line, so the run folder, its configuration and its analyses know the columns,
    classes and metrics. The user's own settings are kept.

    Raises:
        UserError: If the data cannot be read or have no classes or scores, or if columns are combined with a task or an
            experiment that defines its own.
    """
    settings = invocation.settings
    resumed = "resume" in settings and settings["resume"].value() is not True
    if resumed:
        return []
    if invocation.config_name != "train":
        checkpoint = settings.get("checkpoint")
        if checkpoint is None or checkpoint.is_sweep_override() or run_of(checkpoint.value()) is not None:
            # A run knows its task.
            return []
    values = {key: override.value() for key, override in settings.items() if key.partition(".")[0] in ("data", "task")}
    source, task = values.get("data"), values.get("task", OWN_DATA)
    named = [key for key in _COLUMNS if key in settings]
    if task != OWN_DATA:
        if named and isinstance(task, str):
            raise UserError(f"{named[0]} is for data without a task, but task={task} is given; remove one of them.")
        return []
    if any(key.startswith(("task.table", "task.hub")) for key in settings):
        return []
    if "experiment" in settings and "task" not in settings:
        if source in FILES or named:
            setting = settings["data"].input_line if source in FILES else settings[named[0]].input_line
            raise UserError(
                f"'{setting}' is for data without a task, but {settings['experiment'].input_line} sets its own tasks; "
                "remove one of them, or add task=own."
            )
        return []
    if source not in FILES and not (source == "hub" and {"data.dataset", "data.path"} & set(settings)):
        if "task" in settings:
            raise UserError(
                "task=own needs your own data: give data=csv data.path=<file>, or data=hub data.dataset=<name>."
            )
        return []
    for key in (*_COLUMNS, "data.path", "data.eval_path"):
        if key in settings and settings[key].is_sweep_override():
            raise UserError(f"'{settings[key].input_line}' lists several data sets; run one command for each.")
    section = {
        key.partition(".")[2]: value
        for key, value in values.items()
        if key.startswith("data.") and not settings[key].is_sweep_override()
    }
    # A slow import that only this path needs.
    from bertsecrets.data.inferred import inferred_task

    split = HELD_OUT if invocation.config_name == "train" or "data.eval_fraction" in settings else ALL
    moved: dict[str, Any] = {}
    if split == ALL and section.get("path") is None and section.get("eval_path") is not None:
        # Nothing is trained, so evaluation rows are enough.
        moved = {"path": section["eval_path"], "eval_path": None}
    outputs = None if invocation.config_name == "train" else _outputs(settings)
    if outputs is not None and len(outputs) == 1:
        section.setdefault("target", "scores")
    own: Any = OmegaConf.load(CONF / "data" / f"{source}.yaml")
    # A file with a word in each line numbers its columns.
    columns = {key: own[key] for key in ("text", "label") if key in own}
    config = SourceConfig.read("data", {"source": source, **columns, **section, **moved})
    kind = values.get("task.kind")
    facts = inferred_task(
        config, split, 0 if outputs is None else len(outputs), kind if isinstance(kind, str) else None
    )
    if outputs is not None and "labels" in facts and "task.labels" not in settings:
        facts["labels"] = all_classes(facts["labels"], outputs)
    added = {f"data.{key}": value for key, value in moved.items()}
    added |= {
        key: value for key, value in _leaves(facts, "task") if not {key, ".".join(key.split(".")[:2])} & settings.keys()
    }
    choice = [] if "task" in settings else [f"task={OWN_DATA}"]
    # Only single values, as recorded in a sweep's folder; resume=true completes the command again.
    return [
        *choice,
        *(f"{'++' if key.count('.') > 1 else ''}{key}={typed(value)}" for key, value in added.items()),
    ]


def _outputs(settings: Mapping[str, Override]) -> Sequence[str] | None:
    """The class names of the classifier at ``checkpoint``; None for a run or any other kind of model."""
    folder = model_folder(str(settings["checkpoint"].value()), _revision(settings))
    if folder is None:
        return None
    if "model.labels" in settings:
        return ModelSpec.read("model", {"name": "own", "path": ".", "labels": settings["model.labels"].value()}).labels
    if not (folder / ADAPTER).is_file():
        return output_names(folder)
    base = settings["model.path"].value() if "model.path" in settings else base_of(folder)
    return output_names(folder, model_folder(str(base), _revision(settings)))


def _revision(settings: Mapping[str, Override]) -> str | None:
    override = settings.get("model.revision")
    return None if override is None or override.value() is None else str(override.value())


def with_own_model(invocation: Invocation) -> Invocation:
    """Set ``model`` to the folder or hub model of ``checkpoint`` unless another is given; for an adapter, to its base
    model.

    Raises:
        UserError: If the hub does not provide the model.
    """
    settings = invocation.settings
    checkpoint = settings.get("checkpoint")
    if checkpoint is None or checkpoint.is_sweep_override():
        return invocation
    name = str(checkpoint.value())
    if {"model", "model.path", "model.name", "experiment"} & settings.keys() or run_of(name) is not None:
        return invocation
    folder = model_folder(name, _revision(settings))
    if folder is None:
        return invocation
    path = name if not os.path.exists(os.path.expanduser(name)) else str(folder)
    if (folder / ADAPTER).is_file():
        path = base_of(folder)
    short = re.sub(r"[^\w.-]+", "_", Path(name).expanduser().resolve().name).strip("._-") or "own"
    added = ["model=folder", f"model.path={quoted(path)}", f"model.name={quoted(short)}"]
    return replace(invocation, overrides=[*invocation.overrides, *added])


def with_new_keys(invocation: Invocation) -> Invocation:
    """Prefix the settings that the composed configuration may lack, so that Hydra accepts them."""
    named = OmegaConf.load(CONF / "trainer" / "default.yaml")
    # Most task files leave out the kind, and only conf/model/folder.yaml has labels.
    new = {"task.kind", *(f"trainer.{name}" for name in trainer_arguments() if name not in named)}
    if invocation.config_name in _OF_CHECKPOINTS:
        new.add("model.labels")
    settings = invocation.settings
    checkpoint = settings.get("checkpoint")
    single = None if checkpoint is None or checkpoint.is_sweep_override() else checkpoint.value()
    if single is not None and "data" not in settings and run_of(single) is not None:
        # The run's data may have settings that the default data lack.
        new |= {f"data.{name}" for name in SourceConfig.model_fields}
    words = [f"++{word}" if word.partition("=")[0] in new else word for word in invocation.overrides]
    return replace(invocation, overrides=words)


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
    if not words:
        return invocation
    if words[0].isidentifier() and not os.path.exists(words[0]) and any(CONF.glob(f"*/{words[0]}.yaml")):
        # A configuration choice, whose own check explains how to write it.
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
    if not {"analysis", "measure", "experiment"} & keys and not any(key.startswith(_CHOOSING) for key in keys):
        added.append("analysis=disable")
    if files:
        added += _file_settings(model, files[0], keys)
    return replace(invocation, overrides=[*added, *settings])


_NAMED = {"checkpoint": "a model", "data.path": "a file"}
_CHOOSING = ("prune.", "shrink.")
"""Settings that choose an analysis."""


def _file_settings(model: str, file: str, keys: set[str]) -> list[str]:
    path = Path(file).expanduser()
    if not path.exists():
        raise UserError(f"'{file}' does not exist; give a file with texts and labels, with a header.")
    if run_of(model) is not None:
        # A run records its columns.
        return [f"data.eval_path={quoted(os.path.abspath(path))}"]
    kind = FORMATS.get(path.suffix.lower(), "csv")
    if path.is_dir():
        kind = TEXT if {inside.suffix for inside in path.iterdir()} == {".txt"} else "hub"
    elif path.suffix.lower() == ".txt":
        with path.open(encoding="utf-8-sig", errors="replace") as opened:
            first = opened.readline(LONGEST_TEXT)
        names = ([name.strip(' \n"') for name in first.split(separator)] for separator in ",;\t")
        # A header names a column of texts and one of labels.
        kind = kind if any(all(find_columns(columns)) for columns in names) else TEXT
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
