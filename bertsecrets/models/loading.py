"""Load a model with a classification head for a task, and its tokenizer."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.spec import RANDOM_INIT, ModelSpec, check_init


def load_tokenizer(spec: ModelSpec) -> PreTrainedTokenizerFast:
    """The model's fast tokenizer; raises UserError if it has none or the hub cannot be reached."""
    with _one_sentence(spec), _quiet():
        tokenizer: Any = AutoTokenizer.from_pretrained(spec.locate(), revision=spec.revision or "main", use_fast=True)
    if not tokenizer.is_fast:
        raise UserError(
            f"Model '{spec.name}' has no fast tokenizer, which word alignment needs; choose a model with a tokenizer.json."
        )
    fast: PreTrainedTokenizerFast = tokenizer
    return fast


def load_model(spec: ModelSpec, task: Task, init: str, seed: int) -> PreTrainedModel:
    """The model with a classification head of ``task.num_outputs`` outputs, on the CPU.

    Args:
        spec: Where the weights are.
        task: Gives the head its width and its label names.
        init: ``pretrained``, or ``random_normal`` for the untrained baseline of Kovaleva et al.
        seed: Of the head's weights, and of all weights under ``random_normal``.

    Raises:
        UserError: If the weights cannot be loaded, are not those of an encoder with a classification head, or lack a
            part of the encoder.
    """
    check_init(init)
    location = spec.locate()
    with _one_sentence(spec), _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(location, revision=spec.revision or "main")
        config.num_labels = task.num_outputs
        config.problem_type = "regression" if task.is_regression else "single_label_classification"
        if task.labels:
            config.id2label = dict(enumerate(task.labels))
            config.label2id = {label: i for i, label in enumerate(task.labels)}
        if init == RANDOM_INIT:
            model = AutoModelForSequenceClassification.from_config(config)
            random_normal_(model, seed)
            return _ready(model)
        model, info = AutoModelForSequenceClassification.from_pretrained(
            location,
            revision=spec.revision or "main",
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    _check_complete(model, info, spec)
    return _ready(model)


def load_folder(folder: Path, with_head: bool = True) -> PreTrainedModel:
    """A fine-tuned model with its own head, from a folder made by ``save_pretrained``.

    Args:
        folder: Where it is.
        with_head: Whether the head must be in the folder; else a missing head is random.

    Raises:
        UserError: If the folder lacks a part of the encoder, or the head where ``with_head`` asks for it.
    """
    spec = ModelSpec(name=folder.name, path=str(folder))
    with _one_sentence(spec), _quiet():
        model, info = AutoModelForSequenceClassification.from_pretrained(
            spec.locate(), dtype=torch.float32, output_loading_info=True
        )
    _check_complete(model, info, spec)
    if with_head and info["missing_keys"]:
        raise UserError(
            f"Folder '{folder}' holds no fine-tuned classifier ({len(info['missing_keys'])} of its tensors are missing, "
            f"e.g. {sorted(info['missing_keys'])[0]}); give a folder saved after fine-tuning."
        )
    return _ready(model)


@torch.no_grad()
def random_normal_(model: nn.Module, seed: int, std: float = 0.02) -> None:
    """Draw all weights from N(0, std), in place; biases become 0, norms 1 and 0.

    The random baseline of Kovaleva et al. 2019 (section 4.2, Table 1), as in the authors' code.
    """
    generator = torch.Generator().manual_seed(seed)
    norms = {
        id(parameter)
        for module in model.modules()
        if "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False)
        if name == "weight"
    }
    for parameter in model.parameters():
        if id(parameter) in norms:
            parameter.fill_(1.0)
        elif parameter.dim() < 2:
            parameter.zero_()
        else:
            drawn = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
            parameter.copy_(drawn)


def max_positions(model: PreTrainedModel) -> int | None:
    """The longest sequence, special tokens included, that the model has positions for; None if unlimited."""
    config = model.config
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None or getattr(config, "position_biased_input", True) is False:
        return None
    # RoBERTa and its relatives count positions from the padding id + 1.
    if config.model_type in ("camembert", "data2vec-text", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta"):
        return int(limit) - int(config.pad_token_id) - 1
    return int(limit)


def _ready(model: PreTrainedModel) -> PreTrainedModel:
    model.float().train()
    return model


def _check_complete(model: PreTrainedModel, info: dict[str, Any], spec: ModelSpec) -> None:
    prefix = model.base_model_prefix + "."
    missing = sorted(key for key in info["missing_keys"] if key.startswith(prefix) and ".pooler." not in key)
    if missing:
        raise UserError(
            f"The weights of model '{spec.name}' lack {len(missing)} tensors of its encoder, e.g. {missing[0]}; they "
            "belong to another architecture."
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library, which would report the new weights of every classification head."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        transformers.logging.enable_progress_bar()


@contextlib.contextmanager
def _one_sentence(spec: ModelSpec) -> Iterator[None]:
    """Turn the library's errors into a UserError."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"Model '{spec.name}' could not be loaded from '{spec.path}' ({reason.rstrip('.')}); if the hub cannot be "
            "reached, give a local folder: model.path=<folder with config.json, tokenizer.json and model.safetensors>."
        ) from error
