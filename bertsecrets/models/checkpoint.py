"""Load a fine-tuned model: from a Lightning checkpoint, a run folder or a plain Hugging Face folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import RECORD
from bertsecrets.models.loading import load_folder, load_model
from bertsecrets.models.spec import INITIAL, RANDOM_INIT, ModelSpec


@dataclass(frozen=True)
class Checkpoint:
    """A fine-tuned model and the facts of its training.

    Args:
        model: On the CPU, in float32.
        record: The run's facts; empty for a plain folder.
        path: The file or folder it came from.
    """

    model: PreTrainedModel
    record: dict[str, Any]
    path: Path


def read_record(path: Path) -> dict[str, Any]:
    """The whole content of one of our Lightning checkpoints; unpickles only tensors and plain values.

    Raises:
        UserError: If the file is truncated, not a checkpoint, or not one of ours.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise UserError(
            f"File '{path}' cannot be read as a checkpoint (truncated, or not one); give a .ckpt file that train.py "
            "wrote or a Hugging Face folder."
        ) from error
    if not isinstance(content, dict) or RECORD not in content:
        raise UserError(
            f"File '{path}' is not a checkpoint of bertsecrets (it has no '{RECORD}' entry); give a .ckpt file that "
            "train.py wrote or a Hugging Face folder."
        )
    return content


def load_checkpoint(path: Path, task: Task, spec: ModelSpec) -> Checkpoint:
    """The fine-tuned model of a checkpoint.

    Args:
        path: From :func:`bertsecrets.models.spec.find_checkpoint`.
        task: The task to analyse it on; a task without labels accepts a model of any task, with or without a head.
        spec: The pre-trained model that it was made from.

    Raises:
        UserError: If the checkpoint belongs to another task or architecture, or cannot be read.
    """
    if path.is_dir():
        model = load_folder(path, with_head=task.is_labelled)
        if task.is_labelled:
            _check_head([str(label) for label in (model.config.id2label or {}).values()], task, path)
        return Checkpoint(model.eval(), {}, path)
    content = read_record(path)
    record = content[RECORD]
    if not task.is_labelled:
        label_range = None if record["labels"] else (0.0, 1.0)
        task = task.model_copy(update={"labels": tuple(record["labels"]), "label_range": label_range})
    elif record["task"] != task.name:
        raise UserError(
            f"Checkpoint '{path}' is of task '{record['task']}', not '{task.name}'; set task={record['task']}."
        )
    model = load_model(spec, task, RANDOM_INIT, seed=0)
    prefix = "model."
    weights = {
        key.removeprefix(prefix): value for key, value in content["state_dict"].items() if key.startswith(prefix)
    }
    expected = model.state_dict()
    if weights.keys() != expected.keys() or any(weights[key].shape != expected[key].shape for key in weights):
        made_from = record.get("model", {}).get("name", record["model_config"].get("model_type"))
        raise UserError(
            f"Checkpoint '{path}' has another architecture (made from '{made_from}') than model '{spec.name}'; set the "
            "model it was made from."
        )
    model.load_state_dict(weights)
    return Checkpoint(model.eval(), record, path)


def initial_checkpoint(task: Task, spec: ModelSpec, init: str, seed: int) -> Checkpoint:
    """The model before any fine-tuning, with an untrained head; raises UserError as :func:`load_model` does."""
    model = load_model(spec, task, init, seed)
    return Checkpoint(model.eval(), {"init": init, "seed": seed}, Path(INITIAL))


def _check_head(labels: list[str], task: Task, path: Path) -> None:
    outputs = len(labels)
    generic = all(label.upper().startswith("LABEL_") for label in labels)
    if outputs != task.num_outputs or (not generic and not task.is_regression and labels != list(task.labels)):
        raise UserError(
            f"Model folder '{path}' has {outputs} outputs ({', '.join(labels)}), but task '{task.name}' needs "
            f"{task.num_outputs} ({', '.join(task.labels) or 'a score'}); it was fine-tuned on another task."
        )
