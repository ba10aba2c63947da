"""Replacements for a disabled head: the mean, peak or optimal vector, or its outputs on other examples."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.outcomes import variant_losses
from bertsecrets.ablation.plan import Head, Plan, Variant
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.analysis import Batches, Context, Reference
from bertsecrets.attention.modes import OF_REFERENCES, ModeNeed, find_mode
from bertsecrets.attention.override import mean_and_spread, mean_head_outputs, peak_head_outputs
from bertsecrets.data.batch import Batch
from bertsecrets.data.sources import TRAIN
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.float64 import float64_device
from bertsecrets.models.encoder import Autocast, describe, evaluating, requiring_gradients
from bertsecrets.results.components import HEAD
from bertsecrets.results.progress import progress_over
from bertsecrets.results.store import NOTHING_KEPT, Store

DISABLING = "the effect of disabling a head cannot be measured"
"""Why analyses that disable heads need labels."""

NEAREST = 32
"""Donors of an example are drawn from this many reference examples of the most similar length."""

FIT_BATCH = 8
"""Number of examples in a step of the fit of optimal outputs; each counts once for every head."""


class Donors:
    """Draw donors for mode ``resample``: for each example, other examples whose heads' outputs replace its own.

    They are drawn without replacement from the :data:`NEAREST` reference examples with different tokens that are
    nearest in length, by a generator seeded with ``seed`` and the example's index: an example has the same donors in
    every batch, on any number of processes, and in a resumed sweep.

    Args:
        reference: The examples to draw from.
        split: The tokenised split of the receiving examples.
        draws: Number of donors per example, at least 1.
        seed: Seed of the generator.
    """

    def __init__(self, reference: Reference, split: EncodedSplit, draws: int, seed: int) -> None:
        self.reference, self.draws, self.seed = reference, draws, seed
        self._ids = {example.index: row.ids for example, row in zip(split.examples, split.rows, strict=True)}

    def of(self, batch: Batch) -> list[Batch]:
        """For each draw, a batch with one donor for each example.

        Raises:
            UserError: If fewer reference examples than draws differ from an example in their tokens.
        """
        donors_B = [self.positions(int(index)) for index in batch.index_B]
        return [self.reference.split[[row[draw] for row in donors_B]] for draw in range(self.draws)]

    def positions(self, index: int) -> list[int]:
        """The positions in the reference split of an example's donors, by draw."""
        ids, split = self._ids[index], self.reference.split
        others = [position for position in self.reference.positions if split.rows[position].ids != ids]
        if len(others) < self.draws:
            raise UserError(
                f"ablation.draws is {self.draws}, but only {len(others)} of the {len(self.reference.positions)} "
                f"reference examples differ from example {index}; lower ablation.draws or raise "
                "ablation.reference_examples."
            )
        # Of similar length, so that few of a donor's tokens are used twice or not at all.
        near = sorted(others, key=lambda position: (abs(split.lengths[position] - len(ids)), position))
        # A generator for each example, for the same donors in every batch and on any number of processes.
        return random.Random(f"{self.seed}/{index}").sample(near[: max(NEAREST, self.draws)], self.draws)


@dataclass(frozen=True)
class Replacements:
    """The replacements that a mode uses; None for modes that do not need them.

    Args:
        constants_LHd: A vector for each head, for modes ``mean``, ``peak`` and ``optimal``.
        donors: For mode ``resample``.
    """

    constants_LHd: Tensor | None = None
    donors: Donors | None = None


def check_embedder_mode(settings: AblationSettings) -> None:
    """Raise UserError if a mode takes replacements from other examples and the model embeds sentences."""
    if find_mode(settings.mode).needs & OF_REFERENCES:
        raise UserError(
            f"Mode '{settings.mode}' is not available for a sentence-embedding model; choose mode uniform or zero."
        )


def check_references(context: Context, settings: AblationSettings) -> None:
    """Raise UserError if replacements cannot be fitted because labels are missing."""
    if ModeNeed.FITTED_OUTPUTS in find_mode(settings.mode).needs and context.source is not None:
        context.source.check_labels(TRAIN)


def prepare(context: Context, plan: Plan, settings: AblationSettings, store: Store = NOTHING_KEPT) -> Replacements:
    """Prepare the replacements of a plan's mode.

    Args:
        context: The model, the evaluated examples, and those that replacements come from.
        plan: What is disabled, and how.
        settings: ``reference_examples``, ``draws``, ``optimal_steps`` and ``seed``.
        store: Where fitted optimal outputs are saved; its key contains the model, the plan and the settings.

    Raises:
        UserError: If reference examples of mode ``optimal`` lack labels, or all of them are in the evaluation set.
    """
    needs = find_mode(plan.mode).needs
    if not needs & OF_REFERENCES:
        return Replacements()
    split = context.split
    assert isinstance(split, EncodedSplit)
    reference = context.reference(settings.reference_examples)
    if ModeNeed.DONORS in needs:
        return Replacements(donors=Donors(reference, split, settings.draws, settings.seed))
    network = context.encoder.model
    device = next(network.parameters()).device
    with evaluating(network):
        if not needs & {ModeNeed.FITTED_OUTPUTS}:
            outputs = peak_head_outputs if ModeNeed.PEAK_OUTPUTS in needs else mean_head_outputs
            with context.autocast():
                return Replacements(outputs(network, _Inputs(reference.batches(context.batch_size), device)))

        def fit() -> dict[str, Tensor]:
            heads = sorted({head for variant in plan.variants for head in variant.heads})
            steps = settings.optimal_steps
            with progress_over(steps, "fitting optimal outputs", visible=context.progress) as advance:
                constants_LHd = optimal_head_outputs(
                    network,
                    list(_apart(reference, split).batches(FIT_BATCH)),
                    heads,
                    steps=steps,
                    seed=settings.seed,
                    max_tokens=settings.max_tokens,
                    context=context.autocast,
                    progress=advance,
                )
            return {"outputs": constants_LHd}

        constants_LHd = store.once(fit, "optimal outputs")["outputs"]
        return Replacements(constants_LHd.to(float64_device(device)))


@dataclass(frozen=True)
class _Inputs:
    """The model's arguments for each batch, rebuilt in each pass so that only one batch is in memory at a time."""

    batches: Batches
    device: torch.device

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (batch.to(self.device).inputs() for batch in self.batches)


def _apart(reference: Reference, split: EncodedSplit) -> Reference:
    """The reference examples outside the evaluation set, as fitted outputs would look too good on examples in it."""
    judged = {row.ids for row in split.rows}
    apart = tuple(position for position in reference.positions if reference.split.rows[position].ids not in judged)
    if not apart:
        raise UserError(
            f"All {len(reference.positions)} reference examples are also in the evaluation set, but mode 'optimal' "
            "must fit outputs on other examples; give examples that are not in the evaluation set."
        )
    return Reference(reference.split, apart)


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
