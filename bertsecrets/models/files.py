"""Check the files of a model's folder before the library reads them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsecrets.data.classes import names_of
from bertsecrets.errors import UserError
from bertsecrets.task_heads import kind_of

CONFIG = "config.json"

ADAPTER = "adapter_config.json"
"""The file that makes a folder one of an adapter of PEFT."""

MODULES = "modules.json"
"""The file that makes a folder one of Sentence Transformers."""

HEADS = "heads.json"
"""The file of a pruned model that lists the heads it has left."""

_ADAPTED = "adapter_model.safetensors"

_LAST_MAP = re.compile(r".*\b(?:classifier|score|out_proj)\.weight")
"""Names of a classification head's last linear map among an adapter's tensors."""


def holds_model(folder: Path) -> bool:
    """Whether a folder contains a transformers model, an adapter, or a Sentence Transformers model."""
    return any(is_file(folder / name) for name in (CONFIG, ADAPTER, MODULES))


def trainer_checkpoint(folder: Path) -> Path | None:
    """The best checkpoint in the output folder of a transformers Trainer, or the last if it chose none; None without
    any.
    """
    steps = {
        int(path.name.rpartition("-")[2]): path
        for path in folder.glob("checkpoint-*")
        if path.name.rpartition("-")[2].isdigit() and holds_model(path)
    }
    if not steps:
        return None
    last = steps[max(steps)]
    state = last / "trainer_state.json"
    # The path of a folder that may have been moved.
    best = read_object(state).get("best_model_checkpoint") if is_file(state) else None
    chosen = folder / Path(str(best).replace("\\", "/")).name
    return chosen if chosen in steps.values() else last


def recorded_base(folder: Path) -> str | None:
    """The path or hub name of the model that an adapter was trained on; None if its configuration does not name it."""
    base = read_object(folder / ADAPTER).get("base_model_name_or_path")
    return base if isinstance(base, str) and base else None


def base_of(folder: Path) -> str:
    """The path or hub name of the model that an adapter was trained on.

    Raises:
        UserError: If the adapter's configuration does not name it.
    """
    base = recorded_base(folder)
    if base is None:
        raise UserError(
            f"'{folder / ADAPTER}' does not name the model it was trained on (base_model_name_or_path); give that "
            "model: model=folder model.path=<folder>, or bs.load(..., base=<folder>)."
        )
    return base


def adapter_outputs(folder: Path) -> int:
    """The number of outputs of the classification head in an adapter's folder.

    Raises:
        UserError: If it has none, or its weights are missing or cannot be read.
    """
    # A slow import: configurations are checked without PyTorch.
    from safetensors import safe_open

    path = folder / _ADAPTED
    if not is_file(path):
        raise UserError(f"Adapter folder '{folder}' has no {_ADAPTED}; save the adapter again with save_pretrained.")
    try:
        with safe_open(path, framework="pt") as file:
            widths = [file.get_slice(name).get_shape()[0] for name in file.keys() if _LAST_MAP.fullmatch(name)]  # noqa: SIM118
    # The reader's errors (truncation, another format) have no common base class.
    except Exception as error:
        raise UserError(f"Adapter weights '{path}' cannot be read ({error}); copy the adapter again.") from error
    if not widths:
        raise UserError(
            f"Adapter '{folder}' has no classification head; train it with task_type='SEQ_CLS', or merge it into its "
            "model (merge_and_unload) and give the merged model's folder."
        )
    return int(min(widths))


def output_names(folder: Path, base: Path | None = None) -> list[str] | None:
    """The names of the outputs of the classifier in a folder; None for any other model.

    Args:
        folder: The model's folder.
        base: The folder of the base model if the folder is an adapter, which inherits its names.

    Raises:
        UserError: If a file of the folder cannot be read.
    """
    if is_file(folder / ADAPTER):
        config = {} if base is None or not is_file(base / CONFIG) else read_object(base / CONFIG)
        return names_of_adapter(config.get("id2label"), adapter_outputs(folder))
    content = read_object(folder / CONFIG) if is_file(folder / CONFIG) else {}
    kinds = [kind_of(str(name)) for name in content.get("architectures") or ()]
    if not any(kind is not None and (kind.classifies or kind.per_word) and not kind.in_parts for kind in kinds):
        return None
    # The library omits default values.
    names = content.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(names, dict) or not all(key.isdigit() for key in names):
        return None
    return names_of(names, len(names))


def names_of_adapter(id2label: Mapping[Any, Any] | None, outputs: int) -> list[str]:
    """The names of an adapter's outputs: the base model's names if it has as many outputs."""
    return names_of(id2label if len(id2label or ()) == outputs else None, outputs)


def check_config_file(folder: Path) -> dict[str, Any]:
    """The content of a folder's ``config.json``.

    Raises:
        UserError: If it is missing, cannot be read, or is not a JSON object that names its ``model_type``.
    """
    if not is_file(folder / CONFIG):
        raise UserError(
            f"Model folder '{folder}' has no {CONFIG}; give a folder made by save_pretrained, or a hub name."
        )
    content = read_object(folder / CONFIG)
    if not isinstance(content.get("model_type"), str):
        raise UserError(f"'{folder / CONFIG}' has no model_type; give a folder made by save_pretrained.")
    return content


def is_file(path: Path) -> bool:
    """Whether a path is a file.

    Raises:
        UserError: If its folder cannot be read.
    """
    try:
        return path.is_file()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read ({error.strerror}); change its permissions or its path.") from error


def read_json(path: Path) -> Any:
    """The content of a JSON file of a model's folder; raises UserError if it cannot be read."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON: {str(error).splitlines()[0]}"
        raise UserError(f"'{path}' cannot be read ({reason}); save or copy the model again.") from error


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file with an object; raises UserError if it is not an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"'{path}' contains a {type(content).__name__}; expected a JSON object of names and values.")
    return content
