"""Load a model with a classification head for a task, and its tokenizer."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.families import set_family
from bertsecrets.models.files import HEADS, is_file
from bertsecrets.models.spec import RANDOM_INIT, ModelSpec, check_init
from bertsecrets.settings import shown
from bertsecrets.task_heads import TASK_HEADS, kind_of
from bertsecrets.task_heads.choice import score_single_choices
from bertsecrets.task_heads.sequence import SequenceHead

_MOST = 100_000
"""Larger numbers of layers, heads or hidden units are not realistic, and building the model would fill the memory."""

_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout")
"""Names of the attention dropout: in BERT and most of its relatives, and in DistilBERT, ModernBERT and EuroBERT."""

_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")
"""Name suffixes of tensors that older library versions stored and the model computes."""

_WITH_HEAD = "give a model with that head, such as google-bert/bert-base-uncased"

_LOCAL = {"local_files_only": True, "trust_remote_code": False}
"""Arguments of the library that prevent running code from a model's folder; without the second, it asks on the
terminal.
"""

_LONGEST_REASON = 200
"""Most characters of the library's message that are shown."""


def load_tokenizer(spec: ModelSpec, *, pairs: bool = False) -> PreTrainedTokenizerFast:
    """The model's fast tokenizer.

    Args:
        spec: Where it is.
        pairs: Whether its inputs are pairs of sentences.

    Raises:
        UserError: If the model has none, the tokenizer belongs to another model, or the hub cannot be reached.
    """
    config = load_config(spec)
    location = spec.locate()
    with _one_sentence(spec), quiet():
        tokenizer: Any = AutoTokenizer.from_pretrained(location, use_fast=True, **_LOCAL)
    if not tokenizer.is_fast:
        raise UserError(
            f"Model '{spec.name}' has no fast tokenizer, which word alignment needs; choose a model with a "
            "tokenizer.json."
        )
    fast: PreTrainedTokenizerFast = tokenizer
    vocabulary = fast.get_vocab()
    # Without its files, the library builds a tokenizer that only knows special tokens.
    if vocabulary.keys() <= set(fast.all_special_tokens):
        raise UserError(
            f"Model '{spec.name}' has no tokenizer vocabulary in '{spec.path}'; add its tokenizer files, such as "
            "tokenizer.json or vocab.txt."
        )
    check_vocabulary(fast, config, spec.name)
    if pairs:
        check_segments(fast, config, spec.name)
    return fast


def check_segments(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, name: str) -> None:
    """Raise UserError if the tokenizer marks the second sentence with a segment that the model ``name`` lacks."""
    segments = getattr(config, "type_vocab_size", None)
    most = max(tokenizer("a", "b").get("token_type_ids") or [0])
    # A model with 0 segment types has no segment embeddings and ignores them.
    if segments and most >= segments:
        raise UserError(
            f"The tokenizer marks the second sentence of a pair with segment {most}, but model '{name}' has {segments} "
            "(type_vocab_size); remove token_type_ids from model_input_names in its tokenizer_config.json, or give "
            "the model's own tokenizer."
        )


def check_vocabulary(tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig, name: str) -> None:
    """Raise UserError if the tokenizer has tokens for which the model ``name`` has no embedding."""
    size = max(tokenizer.get_vocab().values()) + 1
    if size > config.vocab_size:
        raise UserError(
            f"The tokenizer has {size} tokens, but model '{name}' has embeddings for {config.vocab_size}; give "
            "tokenizer and weights of the same model."
        )


def load_config(spec: ModelSpec) -> PreTrainedConfig:
    """The configuration of a model, with the attention dropout set in ``spec``.

    Raises:
        UserError: If it cannot be read, does not describe a valid encoder, requires remote code, or has no such
            dropout.
    """
    location = spec.locate()
    with _one_sentence(spec), quiet():
        config: PreTrainedConfig = AutoConfig.from_pretrained(location, **_LOCAL)
    _check_config(config, spec)
    # This package reads outputs by name, not by position in a tuple.
    config.return_dict = True
    if spec.attention_dropout is not None:
        key = next((key for key in _ATTENTION_DROPOUT if hasattr(config, key)), None)
        if key is None:
            raise UserError(
                f"model.attention_dropout is {spec.attention_dropout}, but the configuration of model '{spec.name}' "
                f"has neither {' nor '.join(_ATTENTION_DROPOUT)}; leave it null, or choose another model."
            )
        setattr(config, key, spec.attention_dropout)
    return config


def load_model(spec: ModelSpec, task: Task, init: str, seed: int) -> PreTrainedModel:
    """The model with a classification head of ``task.num_outputs`` outputs, on the CPU.

    Args:
        spec: Where the weights are.
        task: Sets the head's width and its label names.
        init: ``pretrained``, or ``random_normal`` for the untrained baseline of Kovaleva et al.
        seed: Seed of the head's weights, and of all weights with ``random_normal``.

    Raises:
        UserError: If the weights cannot be loaded, do not belong to an encoder with a classification head, or lack part
            of the encoder.
    """
    check_init(init)
    config = load_config(spec)
    # The caller's random state must not depend on the number of new weights.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config.num_labels = task.num_outputs
        if task.kind is None:
            config.problem_type = "regression" if task.is_regression else "single_label_classification"
        if task.labels:
            config.id2label = dict(enumerate(task.labels))
            config.label2id = {label: i for i, label in enumerate(task.labels)}
        kind = getattr(transformers, task.head.auto)
        if init == RANDOM_INIT:
            with _one_sentence(spec), quiet():
                model = kind.from_config(config)
            random_normal_(model, seed)
            return _ready(model, spec.family)
        if task.head.makes_labels:
            # Its head is pre-trained as well.
            return _ready(_masked_lm(spec, config, "choose another task, or "), spec.family)
        # A folder fine-tuned on another task has a different head width; only the encoder is checked.
        model, _ = load_weights(kind, spec, config, ignore_mismatched_sizes=True)
    return _ready(model, spec.family)


def load_masked_lm(spec: ModelSpec, init: str) -> PreTrainedModel:
    """The pre-trained model with its masked-language-model head, in evaluation mode on the CPU.

    Args:
        spec: Where the weights are.
        init: Initial weights; random weights have no trained head.

    Raises:
        UserError: If there is no trained head, or the weights cannot be loaded.
    """
    config = load_config(spec)
    advice = "remove the measures of the masked-language-model loss, or "
    if init == RANDOM_INIT:
        raise UserError(
            f"A model with random weights (init={RANDOM_INIT}) has no trained masked-language-model head; {advice}"
            f"{_WITH_HEAD}."
        )
    with torch.random.fork_rng(devices=[]):
        ready = _ready(_masked_lm(spec, config, advice), spec.family)
    ready.eval()
    return ready


def _masked_lm(spec: ModelSpec, config: PreTrainedConfig, advice: str) -> PreTrainedModel:
    if config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise UserError(
            f"Model '{spec.name}' has no masked-language-model head: model type '{config.model_type}' (in "
            f"'{spec.path}') has none; {advice}{_WITH_HEAD}."
        )
    model, missing = load_weights(AutoModelForMaskedLM, spec, config)
    if missing:
        raise UserError(
            f"Model '{spec.name}' has no masked-language-model head: the weights in '{spec.path}' lack "
            f"{len(missing)} of its tensors, e.g. {missing[0]}; {advice}{_WITH_HEAD}."
        )
    found: PreTrainedModel = model
    return found


def load_folder(
    folder: Path, with_head: bool = True, family: str | None = None, auto: str | None = None
) -> PreTrainedModel:
    """A fine-tuned model with its own head, from a folder made by ``save_pretrained``.

    Args:
        folder: Where it is.
        with_head: Whether the folder must contain the head; otherwise a missing head is random.
        family: As in :class:`ModelSpec`.
        auto: The library's class of models with this kind of head; None for what the folder says.

    Raises:
        UserError: If the folder lacks part of the encoder, or a required head, or has a head of another kind.
    """
    spec = ModelSpec(name=folder.resolve().name or "folder", path=str(folder.resolve()))
    config = load_config(spec)
    made = next((name for name in config.architectures or () if kind_of(name) is not None), "")
    kind_there = kind_of(made)
    if with_head and auto is not None and kind_there is not None and kind_there.auto != auto:
        raise UserError(
            f"Folder '{folder}' has a {made}, but the task needs a model of {auto}; choose a task of kind "
            f"'{kind_there.kind}' (task.kind), or another model."
        )
    auto = auto or (SequenceHead if kind_there is None else kind_there).auto
    model, missing = load_weights(getattr(transformers, auto), spec, config)
    if with_head and missing:
        kind = "".join(f", but a {name}" for name in (config.architectures or [])[:1])
        noun = next((head.noun for head in TASK_HEADS.values() if head.auto == auto), "head")
        raise UserError(
            f"Folder '{folder}' has no fine-tuned {noun}{kind} ({len(missing)} of its tensors are "
            f"missing, e.g. {missing[0]}); fine-tune it first (python -m bertsecrets train model=folder "
            "model.path=<folder>), or watch and measure its heads in Python (bs.measure, bs.head_view)."
        )
    return _ready(model, family)


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
            # On the CPU in float32, so that a seed gives the same weights on every device and in every precision.
            drawn = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
            parameter.copy_(drawn)


def max_positions(model: PreTrainedModel) -> int | None:
    """The longest sequence for which the model has positions, special tokens included; None if unlimited."""
    config = model.config
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None or getattr(config, "position_biased_input", True) is False:
        return None
    # RoBERTa and its relatives count positions from the padding id + 1.
    if config.model_type in ("camembert", "data2vec-text", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta"):
        return int(limit) - int(config.pad_token_id) - 1
    return int(limit)


def _ready(model: PreTrainedModel, family: str | None) -> PreTrainedModel:
    if family is not None:
        set_family(model, family)
    score_single_choices(model)
    # Training mode, as for a model built in code; the library loads models in evaluation mode.
    model.float().train()
    return model


def load_weights(kind: Any, spec: ModelSpec, config: PreTrainedConfig, **options: Any) -> tuple[Any, list[str]]:
    """A model of an auto class with complete encoder weights, and the names of missing head and pooler tensors.

    Raises:
        UserError: If weights are missing, cannot be read, or do not fit the encoder; unused heads of other tasks,
            poolers and stored positions are fine.
    """
    folder = spec.locate()
    if is_file(Path(folder) / HEADS):
        raise UserError(
            f"'{folder}' is a model with heads removed ({HEADS}), which cannot be analysed or fine-tuned by head; "
            "load it with bertsecrets.load_pruned, or give the model before pruning."
        )
    with _one_sentence(spec), quiet():
        model, info = kind.from_pretrained(
            folder, config=config, dtype=torch.float32, output_loading_info=True, **_LOCAL, **options
        )
    prefix = model.base_model_prefix + "."
    # Saved or loaded without a head, tensors of the encoder have no prefix.
    parts = {part for part, _ in model.base_model.named_children()}

    def of_encoder(names: Iterable[str]) -> list[str]:
        # Encoders pre-trained only on masked words have no pooler, so it is new, like the head.
        found = (name for name in names if name.startswith(prefix) or name.split(".")[0] in parts)
        return sorted(name for name in found if not name.removeprefix(prefix).startswith("pooler."))

    if mismatched := of_encoder(str(key[0]) for key in info["mismatched_keys"]):
        raise UserError(
            f"The weights of model '{spec.name}' do not have the shapes in its config.json (e.g. {mismatched[0]}); "
            "give weights and config.json of the same model."
        )
    if missing := of_encoder(info["missing_keys"]):
        raise UserError(
            f"The weights of model '{spec.name}' lack {len(missing)} tensors of its encoder, e.g. {missing[0]}; they "
            "belong to another architecture."
        )
    if unused := [name for name in of_encoder(info["unexpected_keys"]) if not name.endswith(_BUFFERS)]:
        raise UserError(
            f"The weights of model '{spec.name}' have {len(unused)} encoder tensors that do not fit "
            f"{type(model).__name__}, e.g. {', '.join(unused[:3])}; merge adapters into the weights, and give the "
            "config.json used in training (number of layers, type of positions)."
        )
    return model, sorted(info["missing_keys"])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the library, which would report every new classification head and show its own progress bars."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        transformers.logging.enable_progress_bar()


def check_encoder_kind(config: PreTrainedConfig, name: str) -> None:
    """Raise UserError if the model ``name`` is or has a decoder."""
    advice = "give an encoder such as BERT or RoBERTa"
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(
            f"{name} is an encoder-decoder ('{config.model_type}'), whose heads are not analysed; {advice}."
        )
    # BERT and its relatives also have a causal head; a decoder has no masked head.
    kind = config.model_type
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise UserError(f"{name} is a decoder ('{kind}'), whose heads are not analysed; {advice}.")


def _check_config(config: PreTrainedConfig, spec: ModelSpec) -> None:
    check_encoder_kind(config, f"Model '{spec.name}'")
    for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"):
        value = getattr(config, name, None)
        limit = 10 * _MOST if name == "vocab_size" else _MOST
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
            raise UserError(
                f"The configuration of model '{spec.name}' has {name}={shown(value)}; expected a whole number from 1 "
                f"to {limit} in its config.json."
            )
    # Some configurations give the head width.
    says_width = any(getattr(config, name, None) is not None for name in ("head_dim", "d_kv"))
    if config.hidden_size % config.num_attention_heads and not says_width:
        raise UserError(
            f"The configuration of model '{spec.name}' has hidden_size={config.hidden_size}, which does not divide by "
            f"num_attention_heads={config.num_attention_heads}; correct its config.json."
        )
    attention = config._attn_implementation
    if attention is not None and "/" in str(attention):
        raise UserError(
            f"The configuration of model '{spec.name}' requires the attention code '{attention}' from the hub; remove "
            "attn_implementation from its config.json."
        )
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(
            f"The weights of model '{spec.name}' are quantized; give a folder with weights in float32, bfloat16 or "
            "float16: the model before quantization, or this one after model.dequantize() and model.save_pretrained()."
        )


@contextlib.contextmanager
def _one_sentence(spec: ModelSpec) -> Iterator[None]:
    """Turn the library's errors, which have no common base class, into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON].rstrip(".") or type(error).__name__
        reason = f"unknown {reason}" if isinstance(error, KeyError) else reason
        # PyTorch would advise to run the code that such a file holds.
        reason = "its weights are not a file of tensors" if isinstance(error, UnpicklingError) else reason
        advice = "give a folder made by save_pretrained (model.path=<folder>), or a hub name (owner/name)"
        raise UserError(f"Model '{spec.name}' could not be loaded from '{spec.path}' ({reason}); {advice}.") from error
