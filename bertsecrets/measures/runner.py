"""One pass over the data that feeds every requested measure."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bertsecrets.attention.lockstep import map_stream
from bertsecrets.attention.watch import watch
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Measure, Need
from bertsecrets.models.encoder import describe, unwrap


def check_needs(measures: Sequence[Measure], reference: nn.Module | None, annotated: bool = True) -> None:
    """Raises UserError, before the first batch, if a measure's need cannot be met.

    Args:
        measures: Each says what it needs.
        reference: The model to compare with, if there is one.
        annotated: Whether the examples' words are annotated.
    """
    for measure in measures:
        if Need.ANNOTATION in measure.needs and not annotated:
            raise UserError(
                f"Measure '{measure.name}' needs annotated words, and these examples have none; name a spaCy pipeline "
                "(annotation=spacy annotation.pipeline=en_core_web_md), or use a demo task (task=demo_paraphrase) or a "
                "treebank (task=ud_ewt data.root=<folder>), which carry gold annotation."
            )
        if Need.REFERENCE in measure.needs and reference is None:
            raise UserError(
                f"Measure '{measure.name}' compares with a reference model and there is none; give the model that the "
                "fine-tuning started from."
            )


def check_comparable(model: nn.Module, reference: nn.Module) -> None:
    """Raises UserError if the maps of two models cannot be compared head by head and token by token."""
    ours, theirs = describe(model), describe(reference)
    for name, left, right in (
        ("layers", ours.num_layers, theirs.num_layers),
        ("heads", ours.num_heads, theirs.num_heads),
        ("entries in the vocabulary", ours.base.config.vocab_size, theirs.base.config.vocab_size),
    ):
        if left != right:
            raise UserError(
                f"The model has {left} {name} and its reference {right}; compare a model with the one it was "
                "fine-tuned from."
            )


@torch.no_grad()
def measure_pass(
    model: nn.Module,
    measures: Sequence[Measure],
    batches: Iterable[Batch],
    reference: nn.Module | None = None,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    progress: Callable[[], object] | None = None,
) -> list[HeadGrid]:
    """The grids of all measures after one pass, reduced over all processes.

    Model and reference run in step, so that one layer's maps of each are alive at a time; memory does not depend on
    the number of examples. Both are put in evaluation mode for the pass and back afterwards.

    Args:
        model: The model to measure.
        measures: Fed layer by layer; they are reset first.
        batches: Moved to the model's device.
        reference: The model to compare with; on the same device.
        context: Entered around every forward pass, e.g. the trainer's autocast.
        progress: Called after each batch.

    Raises:
        UserError: If a measure's need cannot be met or the two models cannot be compared.
    """
    check_needs(measures, reference)
    with_reference = any(Need.REFERENCE in measure.needs for measure in measures) and reference is not None
    if with_reference:
        assert reference is not None
        check_comparable(model, reference)
    network = unwrap(model)
    device = next(network.parameters()).device
    modes = [(module, module.training) for module in (network, unwrap(reference) if reference else None) if module]
    for measure in measures:
        measure.reset()
        # MPS has no float64: there the sums stay on the CPU.
        measure.to("cpu" if device.type == "mps" else device)
    try:
        for module, _ in modes:
            module.eval()
        for on_host in batches:
            batch = on_host.to(device)
            check_needs(measures, reference, annotated=bool(batch.annotations) and all(batch.annotations))
            if with_reference:
                assert reference is not None
                _in_step(network, unwrap(reference), measures, batch, context)
            else:

                def observe(layer: int, attention_BHQK: Tensor, batch: Batch = batch) -> None:
                    _update(measures, layer, attention_BHQK, batch, None)

                with context(), watch(network, observe):
                    network(**batch.inputs())
            if progress is not None:
                progress()
    finally:
        for module, training in modes:
            module.train(training)
    return [measure.compute() for measure in measures]


def _in_step(
    network: nn.Module,
    reference: nn.Module,
    measures: Sequence[Measure],
    batch: Batch,
    context: Callable[[], AbstractContextManager[Any]],
) -> None:
    with closing(map_stream(reference, lambda: reference(**batch.inputs()), context)) as reference_maps:

        def observe(layer: int, attention_BHQK: Tensor) -> None:
            _update(measures, layer, attention_BHQK, batch, next(reference_maps))

        with context(), watch(network, observe):
            network(**batch.inputs())


def _update(
    measures: Sequence[Measure], layer: int, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None
) -> None:
    # The model's autocast is still on here: it would round a measure's products to half precision.
    with torch.autocast(attention_BHQK.device.type, enabled=False):
        for measure in measures:
            measure.update(layer, attention_BHQK, batch, reference_BHQK)
