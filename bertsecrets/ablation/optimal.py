"""Optimal ablation (Li and Janson 2024): the constant output of a head that gives the lowest loss."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.outcomes import variant_losses
from bertsecrets.ablation.plan import Head, Plan, Variant
from bertsecrets.attention.override import mean_and_spread
from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast, describe, requiring_gradients
from bertsecrets.results.components import HEAD

RATE = 0.3
"""Initial step size of Adam, in standard deviations of a head's output; it decreases linearly to 0."""


def optimal_head_outputs(
    model: nn.Module,
    batches: Sequence[Batch],
    heads: Sequence[Head],
    *,
    steps: int,
    seed: int = 0,
    rate: float = RATE,
    max_tokens: int | None = None,
    context: Autocast = nullcontext,
    progress: Callable[[int], object] | None = None,
) -> Tensor:
    """Fit, for each head, the vector that gives the lowest mean loss on some examples when it replaces the head's
    output at every token.

    Heads are fitted one at a time: the loss of head h is that of the model in which only h is replaced (Li and Janson
    2024, section 3). Adam starts at the mean outputs. It works in scaled units: the unit of each coordinate is its
    standard deviation over tokens. A step takes one batch, and one engine pass with gradients for all heads of a layer;
    batches are reshuffled once all have been used.

    Args:
        model: Any module that holds a transformers encoder with a sequence classification head; its weights are frozen
            during the fit.
        batches: Labelled examples, other than those on which the outputs are tested.
        heads: The heads to fit.
        steps: Number of steps of Adam.
        seed: Seed for the order of the batches.
        rate: Initial step size.
        max_tokens: See :class:`~bertsecrets.ablation.engine.Engine`.
        context: Entered around every pass, e.g. the trainer's autocast.
        progress: Called with 1 after each step.

    Returns:
        ``[layers, heads, head width]``, float64 on the CPU; the mean output for heads that were not fitted.

    Raises:
        UserError: If there are no batches, an example has no label, or the family has no adapter.
    """
    encoder = describe(model)
    device = next(encoder.model.parameters()).device
    with context():
        mean_LHd, spread_LHd = mean_and_spread(model, (batch.to(device).inputs() for batch in batches))
    if any(batch.label_B is None for batch in batches):
        raise UserError("Mode 'optimal' fits outputs to labels; give labelled reference examples.")
    layers = sorted({layer for layer, _ in heads})
    # Lightning validates in inference mode, whose tensors cannot take part in a backward pass. If no weight requires a
    # gradient, the layers below a head need no backward pass.
    with torch.inference_mode(False), torch.enable_grad(), requiring_gradients(encoder.model):
        mean_LHd, spread_LHd = mean_LHd.clone().float(), spread_LHd.clone().float()
        # In standard deviations: Adam's steps have the same size for all heads, but their outputs do not.
        shift_LHd = torch.zeros_like(mean_LHd, requires_grad=True)
        engines = {}
        for layer in layers:
            variants = [Variant(str(head), HEAD.name, ((layer, head),)) for at, head in heads if at == layer]
            plan = Plan("optimal", encoder.num_layers, encoder.num_heads, tuple(variants))
            engines[layer] = Engine(model, plan, constants_LHd=mean_LHd, max_tokens=max_tokens)
        adam = torch.optim.Adam([shift_LHd], lr=rate)
        # Steps of constant size would end in a random walk around the optimum.
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 1 - step / steps)
        order = _shuffled(len(batches), seed)
        for _ in range(steps):
            batch = batches[next(order)].to(device)
            label_B = batch.label_B
            assert label_B is not None
            inputs = {name: tensor.clone() for name, tensor in batch.inputs().items()}
            adam.zero_grad()
            for engine in engines.values():
                engine.constants_LHd = mean_LHd + spread_LHd * shift_LHd
                with context():
                    _, logits_BVC = engine.run(inputs, gradients=True, head=batch.head, label_B=label_B.clone())
                    loss = variant_losses(logits_BVC, label_B.clone(), batch.head).sum() / batch.size
                # Layer by layer, so that only the activations of one layer's heads are in memory at a time.
                loss.backward()
            adam.step()
            schedule.step()
            if progress is not None:
                progress(1)
        return (mean_LHd + spread_LHd * shift_LHd).detach().double().cpu()


def _shuffled(count: int, seed: int) -> Iterator[int]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator).tolist()
