"""One pass over the data that feeds every requested measure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.attention.gradients import attention_gradients, output_gradients, weight_gradient_norms
from bertsecrets.attention.watch import map_stream, output_weights, watch, watch_values
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.float64 import float64_device
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import BACKWARD, OF_LOSS, Differentiated, Measure, Need, Passed
from bertsecrets.models.encoder import Autocast, evaluating, unwrap
from bertsecrets.models.origin import check_same_size


def check_needs(
    measures: Sequence[Measure],
    references: Mapping[str, nn.Module] | None,
    annotated: bool = True,
    labelled: bool = True,
) -> None:
    """Check, before the first batch, that every measure's needs can be met.

    Args:
        measures: The measures.
        references: The models to compare with, by name.
        annotated: Whether the examples have annotated words.
        labelled: Whether the examples have labels.

    Raises:
        UserError: If a need cannot be met.
    """
    for measure in measures:
        check_examples(measure, annotated, labelled)
        if Need.REFERENCE in measure.needs and measure.reference not in (references or {}):
            raise UserError(
                f"Measure '{measure.name}' compares with the model '{measure.reference}', which is missing; pass the "
                "model before fine-tuning as a reference."
            )


def check_examples(measure: Measure, annotated: bool, labelled: bool) -> None:
    """Raise UserError if a measure needs annotated words or labels that its examples do not have."""
    if measure.needs & OF_LOSS and not labelled:
        raise UserError(
            f"Measure '{measure.name}' needs the gradients of a loss, but these examples have no labels; use it with "
            "a labelled task."
        )
    if Need.ANNOTATION in measure.needs and not annotated:
        raise UserError(
            f"Measure '{measure.name}' needs annotated words, but these examples have none; use a spaCy pipeline "
            "(annotation=spacy annotation.pipeline=en_core_web_md), a demo task (task=demo_paraphrase) or a treebank "
            "(task=ud_ewt data.root=<folder>), which have gold annotation."
        )


# Lightning validates in inference mode, whose tensors cannot take part in a backward pass.
@torch.inference_mode(False)
@torch.no_grad()
def measure_pass(
    model: nn.Module,
    measures: Sequence[Measure],
    batches: Iterable[Batch],
    references: Mapping[str, nn.Module] | None = None,
    context: Autocast = nullcontext,
    progress: Callable[[], object] | None = None,
    means_LHd: Tensor | None = None,
) -> list[HeadGrid]:
    """Compute all measures in one pass over the examples; return their grids, reduced over all processes.

    The model and its references run in lockstep: one layer's maps of each are in memory at a time, and memory does not
    depend on the number of examples. All run in evaluation mode, which is restored afterwards. Measures of gradients
    need one more forward and backward pass, measures of heads' outputs one per gate, and measures of heads' weights one
    per example; no parameter receives a gradient.

    Args:
        model: The model to measure.
        measures: The measures; reset first, then fed layer by layer in this order.
        batches: Batches; moved to the model's device.
        references: The models to compare with, by the names in ``Measure.reference``; on the same device. Models that
            no measure needs do not run.
        context: Context manager for every forward pass, e.g. the trainer's autocast.
        progress: Called after each batch.
        means_LHd: The heads' mean outputs, for measures with ``reference_examples``.

    Raises:
        UserError: If a measure's need cannot be met or the models cannot be compared.
    """
    check_needs(measures, references)
    # Run only models that a measure needs, as each costs a pass.
    wanted = {measure.reference for measure in measures if Need.REFERENCE in measure.needs}
    others = {name: unwrap(other) for name, other in (references or {}).items() if name in wanted}
    for other in others.values():
        check_same_size(model, other)
    network = unwrap(model)
    device = next(network.parameters()).device
    differentiating, reading_outputs, weighing = (
        [measure for measure in measures if measure.needs & needs]
        for needs in ({Need.GRADIENT, Need.MASKED_LM}, {Need.OUTPUTS}, {Need.WEIGHTS})
    )
    watching = [measure for measure in measures if not measure.needs & BACKWARD]
    for measure in measures:
        measure.reset()
        measure.to(float64_device(device))
    with ExitStack() as stack:
        for module in (network, *others.values()):
            stack.enter_context(evaluating(module))
        for on_host in batches:
            batch = on_host.to(device)
            annotated = bool(batch.annotations) and all(batch.annotations)
            # Checked for every batch, as some examples may lack labels or annotation.
            check_needs(measures, references, annotated, labelled=batch.label_B is not None)
            if watching:
                _feed(network, others, watching, batch, context)
            if differentiating:
                _feed_gradients(network, differentiating, batch, context)
            if reading_outputs:
                _feed_outputs(network, reading_outputs, batch, context, means_LHd)
            if weighing:
                _feed_weights(network, weighing, batch, context)
            if progress is not None:
                progress()
    return [measure.compute() for measure in measures]


def _feed(
    network: PreTrainedModel,
    others: Mapping[str, PreTrainedModel],
    measures: Sequence[Measure],
    batch: Batch,
    context: Autocast,
) -> None:
    with ExitStack() as stack:
        # First in, last out: a context may set the default dtype of the process, and streams enter it in their threads.
        stack.enter_context(context())
        streams = {
            name: stack.enter_context(closing(map_stream(other, partial(other, **batch.inputs()), context)))
            for name, other in others.items()
        }

        of_values = [measure for measure in measures if Need.VALUES in measure.needs]
        of_maps = [measure for measure in measures if Need.VALUES not in measure.needs]

        def observe(layer: int, attention_BHQK: Tensor) -> None:
            references = {name: next(stream) for name, stream in streams.items()}
            # The model's autocast is still active here and would round a measure's products to half precision.
            with torch.autocast(attention_BHQK.device.type, enabled=False):
                for measure in of_maps:
                    measure.update(Passed(layer, batch, attention_BHQK, references.get(measure.reference)))

        def observe_values(layer: int, attention_BHQK: Tensor, value_BHKd: Tensor) -> None:
            weights_HDd = output_weights(network, layer).to(value_BHKd.dtype)
            passed = Passed(layer, batch, attention_BHQK, value_BHKd=value_BHKd, weights_HDd=weights_HDd)
            with torch.autocast(attention_BHQK.device.type, enabled=False):
                for measure in of_values:
                    measure.update(passed)

        if of_maps:
            stack.enter_context(watch(network, observe))
        if of_values:
            stack.enter_context(watch_values(network, observe_values))
        network(**batch.inputs())


def _feed_gradients(
    network: PreTrainedModel,
    measures: Sequence[Measure],
    batch: Batch,
    context: Autocast,
) -> None:
    passes: list[tuple[Differentiated, list[Measure]]] = []
    of_task: list[Measure] = []
    for measure in measures:
        own_pass = measure.differentiated(network, batch)
        if own_pass is None:
            of_task.append(measure)
        else:
            passes.append((own_pass, [measure]))
    if of_task:
        passes.append((Differentiated(network, batch, _loss_of(batch)), of_task))
    for run, fed in passes:

        def observe(
            layer: int,
            attention_BHQK: Tensor,
            gradient_BHQK: Tensor,
            run: Differentiated = run,
            fed: Sequence[Measure] = fed,
        ) -> None:
            for measure in fed:
                measure.update(Passed(layer, run.batch, attention_BHQK, gradient_BHQK=gradient_BHQK))

        attention_gradients(run.model, run.batch.inputs(), run.loss, observe, context)


def _feed_weights(
    network: nn.Module,
    measures: Sequence[Measure],
    batch: Batch,
    context: Autocast,
) -> None:
    norms = []
    # One at a time, because a weight's gradient is summed over the examples of a pass.
    for row in range(batch.size):
        example = batch.rows(torch.tensor([row]))
        norms.append(weight_gradient_norms(network, example.inputs(), _loss_of(example), context))
    norms_LBH3 = torch.stack(norms, 1)
    for layer, norms_BH3 in enumerate(norms_LBH3):
        for measure in measures:
            measure.update(Passed(layer, batch, norms_BH3=norms_BH3))


def _feed_outputs(
    network: nn.Module,
    measures: Sequence[Measure],
    batch: Batch,
    context: Autocast,
    means_LHd: Tensor | None,
) -> None:
    assert batch.label_B is not None
    sums: dict[tuple[int, int], Tensor] = {}
    # One pass per gate, shared by all measures with that gate.
    for gate in sorted({gate for measure in measures for gate, _ in measure.gates}):
        due = [
            (index, dict(measure.gates)[gate]) for index, measure in enumerate(measures) if gate in dict(measure.gates)
        ]

        def observe(
            layer: int,
            output_BSHd: Tensor,
            gradient_BSHd: Tensor,
            value_BSHd: Tensor,
            due: Sequence[tuple[int, float]] = due,
        ) -> None:
            mean_Hd = None if means_LHd is None else means_LHd[layer].to(output_BSHd)
            passed = Passed(
                layer,
                batch,
                value_BHKd=value_BSHd.transpose(1, 2),
                output_BSHd=output_BSHd,
                slope_BSHd=gradient_BSHd,
                mean_Hd=mean_Hd,
            )
            for index, weight in due:
                values_BHC = weight * measures[index].values(passed)
                key = (index, layer)
                # Weighted sums over gates must be complete before they are added: a standard error needs the whole.
                sums[key] = sums[key] + values_BHC if key in sums else values_BHC

        logits_BC = output_gradients(network, batch.inputs(), _loss_of(batch), observe, context, gate)
        for index, _ in due:
            measures[index].add_losses(gate, batch.losses(logits_BC))
    for (index, layer), values_BHC in sums.items():
        measures[index].update(Passed(layer, batch, values_BHC=values_BHC))


def _loss_of(batch: Batch) -> Callable[[Tensor], Tensor]:
    """From a model's output to the sum of the examples' losses, so that each example gets its own gradient."""
    return lambda output: batch.losses(output).sum()
