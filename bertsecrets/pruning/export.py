"""Export a model, pruned or not, as a program that runs without this package: ``torch.export`` and ONNX."""

import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bertsecrets.errors import UserError
from bertsecrets.models.encoder import evaluating
from bertsecrets.pruning.removal import save_pruned
from bertsecrets.results.files import atomic_write, folder_write


class _Logits(nn.Module):
    """A model as a function of tensors to one tensor, without the library's output class."""

    def __init__(self, model: PreTrainedModel, with_segments: bool) -> None:
        super().__init__()
        self.model = model
        self.with_segments = with_segments

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.with_segments and token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        logits_BC: Tensor = self.model(**inputs).logits
        return logits_BC


def export_program(model: PreTrainedModel, path: Path, longest: int = 128) -> None:
    """Write a model as a ``torch.export`` program (``.pt2``), which only needs PyTorch.

    Load it with ``torch.export.load(path).module()(input_ids=..., attention_mask=...)``; a model with segments also
    takes ``token_type_ids``. Batches have at least two examples of 2 to ``longest`` tokens; the result is ``[B, C]``
    logits.

    Raises:
        UserError: If the model has no classification head, or the file cannot be written.
    """
    with _exported(model, longest) as (program, arguments, dynamic):
        exported = torch.export.export(program, (), kwargs=arguments, dynamic_shapes=dynamic)
        with atomic_write(path) as temporary:
            torch.export.save(exported, temporary)


def export_onnx(model: PreTrainedModel, path: Path, longest: int = 128) -> None:
    """Write a model as an ONNX graph with the inputs of :func:`export_program` and the output ``logits``.

    Raises:
        UserError: If the package onnx or onnxscript is missing, the model has no classification head, or the file
            cannot be written.
    """
    check_onnx(("onnx", "onnxscript"))
    with _exported(model, longest) as (program, arguments, dynamic), atomic_write(path) as temporary, _without_logs():
        torch.onnx.export(
            program,
            (),
            str(temporary),
            kwargs=arguments,
            input_names=list(arguments),
            output_names=["logits"],
            dynamic_shapes=dynamic,
            dynamo=True,
            # A single file with all weights.
            external_data=False,
            verbose=False,
        )


def write_smaller(
    model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerFast, programs: Sequence[str], longest: int
) -> None:
    """Write a model of :func:`bertsecrets.pruning.removal.keep_only` with its tokenizer and programs.

    Args:
        model: The model, on the CPU.
        folder: Where to.
        tokenizer: Its tokenizer.
        programs: ``program`` (``model.pt2``) and ``onnx`` (``model.onnx``); the caller writes others.
        longest: As for :func:`export_program`.
    """
    save_pruned(model, folder)
    with folder_write(folder):
        tokenizer.save_pretrained(folder)
    if "program" in programs:
        export_program(model, folder / "model.pt2", longest)
    if "onnx" in programs:
        export_onnx(model, folder / "model.onnx", longest)


def export_int8(model: PreTrainedModel, path: Path, longest: int = 128) -> None:
    """Write a model as the ONNX graph of :func:`export_onnx` with 8-bit weights and a scale per channel; activations
    are quantised dynamically, so no calibration examples are needed.

    Weights use 7 of the 8 bits: CPUs without VNNI add pairs of 8-bit products in 16 bits, which could overflow with all
    8 bits, so that the same file would give different results there.

    Raises:
        UserError: If the package onnx, onnxscript or onnxruntime is missing, or as for :func:`export_onnx`.
    """
    check_onnx(("onnx", "onnxscript", "onnxruntime"))
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder, atomic_write(path) as temporary:
        whole = Path(folder) / "model.onnx"
        export_onnx(model, whole, longest)
        with _without_logs():
            quantize_dynamic(
                str(whole), str(temporary), per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
            )


@contextmanager
def _without_logs() -> Iterator[None]:
    """Silence the exporters: they log every rewrite of the graph and recommend steps that it does not need."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class OnnxClassifier:
    """An exported classifier in ONNX Runtime, on the CPU with PyTorch's number of threads, called like a transformers
    model.

    Args:
        path: The file of :func:`export_onnx` or :func:`export_int8`.

    Raises:
        UserError: If the package onnxruntime is missing.
    """

    def __init__(self, path: Path) -> None:
        check_onnx(("onnxruntime",))
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = [entry.name for entry in self.session.get_inputs()]

    def __call__(self, **inputs: Tensor) -> SimpleNamespace:
        shape = inputs["input_ids"].shape
        # A graph with segments requires them; a transformers model defaults to segment 0.
        arrays = {name: inputs.get(name, torch.zeros(shape, dtype=torch.long)).numpy() for name in self.names}
        return SimpleNamespace(logits=torch.from_numpy(self.session.run(None, arrays)[0]))


def check_onnx(packages: Sequence[str]) -> None:
    """Raise UserError if one of the packages that ONNX needs is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"ONNX needs the Python package '{package}', which is not installed; run pip install -e '.[export]', "
                "or export a torch.export program instead."
            )


@contextmanager
def _exported(model: PreTrainedModel, longest: int) -> Iterator[tuple[nn.Module, dict[str, Tensor], dict[str, Any]]]:
    """The program, example arguments and their dynamic dimensions; the model's mode is restored."""
    if not type(model).__name__.endswith("SequenceClassification"):
        raise UserError(f"{type(model).__name__} has no sequence classification head; load the model with such a head.")
    segments = getattr(model.config, "type_vocab_size", 0) > 1
    shape = (2, min(8, longest))
    # Two examples, because a program traced with one would only accept one.
    arguments = {"input_ids": torch.full(shape, 5), "attention_mask": torch.ones(shape, dtype=torch.long)}
    if segments:
        arguments["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    dimensions = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=longest)}
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield (
            _Logits(model, segments),
            {name: tensor.to(device) for name, tensor in arguments.items()},
            dict.fromkeys(arguments, dimensions),
        )
