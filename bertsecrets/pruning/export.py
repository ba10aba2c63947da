"""Export a model, pruned or not, as a program that runs without this package: ``torch.export`` and ONNX."""

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.models.encoder import evaluating
from bertsecrets.results.files import atomic_write


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
    """Write a model as a ``torch.export`` program (``.pt2``), which needs PyTorch alone.

    Load it with ``torch.export.load(path).module()(input_ids=..., attention_mask=...)``; a model with segments takes
    ``token_type_ids`` too. Batches hold two examples or more, of 2 to ``longest`` tokens; the result is ``[B, C]`` logits.

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
        UserError: If the package onnx or onnxscript is missing, the model has no classification head, or the file cannot
            be written.
    """
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"ONNX needs the Python package '{package}', which is not installed; run pip install -e '.[export]', or export "
                "a torch.export program instead."
            )
    with _exported(model, longest) as (program, arguments, dynamic), atomic_write(path) as temporary:
        torch.onnx.export(
            program,
            (),
            str(temporary),
            kwargs=arguments,
            input_names=list(arguments),
            output_names=["logits"],
            dynamic_shapes=dynamic,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextmanager
def _exported(model: PreTrainedModel, longest: int) -> Iterator[tuple[nn.Module, dict[str, Tensor], dict[str, Any]]]:
    """The program, example arguments and their dynamic dimensions; the model's mode is restored."""
    if not type(model).__name__.endswith("SequenceClassification"):
        raise UserError(f"{type(model).__name__} has no sequence classification head; load the model with one.")
    segments = getattr(model.config, "type_vocab_size", 0) > 1
    shape = (2, min(8, longest))
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
