"""Fit hard-concrete gates to a frozen model: which heads facilitate, interfere or do not matter, and a path to few heads.

Causal head gating (NeurIPS 2025, arXiv 2505.13737) fits the gates of a frozen model twice: pushed open and
pushed shut. A gate that stays open although it is pushed shut belongs to a head that the task needs (facilitating); one
that shuts although it is pushed open, to a head that harms it (interfering); one that follows the push, to an irrelevant
head. The path pushes shut with growing strength (Voita et al. 2019, section 6).
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice

import torch
from torch import nn

from bertsecrets.attention.gates import gated
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe, evaluating, requiring_gradients
from bertsecrets.pruning.hard_concrete import HardConcrete
from bertsecrets.pruning.recovery import task_loss
from bertsecrets.pruning.sets import Context, HeadSet

FACILITATING, INTERFERING, IRRELEVANT, UNDECIDED = "facilitating", "interfering", "irrelevant", "undecided"


def fit_gates(
    model: nn.Module,
    batches: Callable[[], Iterable[Batch]],
    task: Task,
    *,
    penalty: float,
    steps: int,
    learning_rate: float,
    seed: int,
    context: Context,
    start: HardConcrete | None = None,
    warmup: float = 0.2,
    progress: Callable[[int], object] | None = None,
) -> HardConcrete:
    """Gates that minimise loss + penalty * expected number of open gates; the model is frozen and without dropout.

    Adam; every example of a batch draws gates of its own. The penalty rises linearly from 0 over the first
    ``warmup`` share of the steps.

    Args:
        model: Any module that contains a transformers encoder with a classification head.
        batches: Labelled examples; repeated as often as needed.
        task: Chooses the loss.
        penalty: Above 0 pushes the gates shut, below 0 open.
        steps: Number of steps, a batch each.
        learning_rate: Of log alpha.
        seed: Seed of the draws.
        context: Entered around every batch, e.g. the trainer's autocast.
        start: Gates to start from; None for open ones.
        warmup: Share of the steps over which the penalty rises.
        progress: Called after every step.

    Returns:
        The gates, in evaluation mode, on the model's device.

    Raises:
        UserError: If the loss is not finite, or there is no example.
    """
    encoder = describe(model)
    network = encoder.model
    device = next(network.parameters()).device
    with evaluating(network), requiring_gradients(network), torch.enable_grad(), torch.inference_mode(False):
        gates = HardConcrete(encoder.num_layers, encoder.num_heads).to(device)
        if start is not None:
            gates.load(start.log_alpha_LH.detach().clone(), "start")
        optimizer = torch.optim.Adam(gates.parameters(), lr=learning_rate)
        generator = torch.Generator(device).manual_seed(seed)
        examples = [batch.to(device) for batch in batches()]
        if not examples:
            raise UserError("There is no example to fit gates to; give at least one.")
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tolist()
        for step, index in enumerate(islice(cycle(order), steps)):
            batch = examples[index]
            assert batch.label_B is not None
            # The default binds the size of this batch.
            with gated(network, lambda size=batch.size: gates(size, generator)), context():  # type: ignore[misc]
                loss = task_loss(network(**batch.inputs()).logits, batch.label_B, task)
            if not torch.isfinite(loss):
                raise UserError(
                    f"The loss of the gated model is not finite at step {step}; lower the gates' learning_rate or penalty."
                )
            strength = penalty * min(1.0, (step + 1) / max(1.0, steps * warmup))
            (loss + strength * gates.expected_open()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if progress is not None:
                progress(1)
    return gates.eval()


def closed_heads(gates: HardConcrete) -> HeadSet:
    """The heads whose gate is likelier to be shut than fully open."""
    return frozenset((layer, head) for layer, head in (~gates.kept()).nonzero().tolist())


def roles(pushed_shut: Sequence[Sequence[float]], pushed_open: Sequence[Sequence[float]]) -> list[list[str]]:
    """What each head does for the task, from its gates in 0..1 when pushed shut and when pushed open.

    >>> roles([[0.9, 0.1, 0.0, 0.8]], [[1.0, 1.0, 0.2, 0.1]])
    [['facilitating', 'irrelevant', 'interfering', 'undecided']]
    """
    names = {
        (True, True): FACILITATING,
        (False, False): INTERFERING,
        (False, True): IRRELEVANT,
        # Open where it is pushed shut and shut where it is pushed open: the fits contradict each other.
        (True, False): UNDECIDED,
    }
    return [
        [names[shut >= 0.5, opened >= 0.5] for shut, opened in zip(shut_H, open_H, strict=True)]
        for shut_H, open_H in zip(pushed_shut, pushed_open, strict=True)
    ]
