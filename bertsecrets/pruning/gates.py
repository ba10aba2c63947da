"""Hard-concrete gates (Louizos et al. 2018), one per head (Voita et al. 2019, section 6), and their fits to a frozen
model.

Causal head gating (NeurIPS 2025, arXiv 2505.13737) fits the gates of a frozen model twice: pushed open and pushed shut.
A gate that remains open although it is pushed shut belongs to a head that the task needs (facilitating); a gate that
closes although it is pushed open, to a head that harms it (interfering); a gate that follows the push, to an irrelevant
head. The path pushes shut with growing strength (Voita et al. 2019, section 6).
"""

import math
from collections.abc import Callable, Iterable
from itertools import cycle, islice

import torch
from torch import Tensor, nn

from bertsecrets.attention.gates import gated
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast, describe, evaluating, requiring_gradients
from bertsecrets.pruning.sets import HeadSet
from bertsecrets.task_heads.base import output_of

TEMPERATURE, LOW, HIGH = 0.33, -0.1, 1.1
"""Temperature and stretch of Voita et al.'s code."""

_EDGE = 1e-6
"""Minimum distance of uniform draws from 0 and 1, whose logits are infinite."""


class HardConcrete(nn.Module):
    """A gate in 0..1 for each head, random in training and deterministic in evaluation mode.

    With u ~ U(0, 1): s = sigmoid((log u - log(1 - u) + log alpha) / temperature), g = clip(s (high - low) + low, 0, 1).
    In evaluation mode g = clip(sigmoid(log alpha) (high - low) + low, 0, 1).

    Args:
        num_layers, num_heads: Shape of the gates.
        temperature: Above 0.
        low, high: Ends of the stretched interval, below 0 and above 1.
        initial: Initial probability that a gate is open (not 0).

    Raises:
        UserError: If a number is out of range.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        temperature: float = TEMPERATURE,
        low: float = LOW,
        high: float = HIGH,
        initial: float = 0.95,
    ) -> None:
        super().__init__()
        if not (temperature > 0 and low < 0 and high > 1 and 0 < initial < 1):
            raise UserError(
                f"Gates have temperature {temperature:g}, stretch {low:g} to {high:g} and initial probability "
                f"{initial:g}; expected a temperature above 0, ends below 0 and above 1, and a probability between 0 "
                "and 1."
            )
        self.temperature, self.low, self.high = temperature, low, high
        # The inverse of open_probability().
        start = math.log(initial / (1 - initial)) + temperature * math.log(-low / high)
        self.log_alpha_LH = nn.Parameter(torch.full((num_layers, num_heads), start))

    def forward(self, examples: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """The gates, ``[layers, heads]``: random in training, else :meth:`deterministic`.

        Args:
            examples: Draw gates for this many examples, ``[layers, heads, examples]``; None for one draw.
            generator: Source of the draws; None for the global one.
        """
        if not self.training:
            return self.deterministic()
        log_alpha_LH = self.log_alpha_LH
        shape = log_alpha_LH.shape if examples is None else (*log_alpha_LH.shape, examples)
        u = torch.rand(shape, generator=generator, device=log_alpha_LH.device).clamp(_EDGE, 1 - _EDGE)
        location = log_alpha_LH if examples is None else log_alpha_LH[..., None]
        return self._stretched(torch.sigmoid((torch.logit(u) + location) / self.temperature))

    def deterministic(self) -> Tensor:
        """The gates in evaluation mode, ``[layers, heads]`` in 0..1."""
        return self._stretched(torch.sigmoid(self.log_alpha_LH))

    def open_probability(self) -> Tensor:
        """P(g > 0), ``[layers, heads]``: sigmoid(log alpha - temperature log(-low / high))."""
        return torch.sigmoid(self.log_alpha_LH - self.temperature * math.log(-self.low / self.high))

    def full_probability(self) -> Tensor:
        """P(g = 1), ``[layers, heads]``: 1 - sigmoid(temperature log((1 - low) / (high - 1)) - log alpha)."""
        edge = self.temperature * math.log((1 - self.low) / (self.high - 1))
        return torch.sigmoid(self.log_alpha_LH - edge)

    def expected_open(self) -> Tensor:
        """Expected number of open gates, the L0 penalty: the sum of :meth:`open_probability`."""
        return self.open_probability().sum()

    def kept(self) -> Tensor:
        """Mask of the kept heads, bool: their gate is more likely to be 1 than 0 (Voita et al. 2019, section 6.1)."""
        return self.full_probability() > 1 - self.open_probability()

    def load(self, log_alpha_LH: Tensor, name: str) -> None:
        """Load gates from a file or checkpoint called ``name``; raises UserError if their shape differs."""
        if log_alpha_LH.shape != self.log_alpha_LH.shape:
            raise UserError(
                f"The gates in '{name}' have {_size(log_alpha_LH)}, but the model has {_size(self.log_alpha_LH)}; "
                "give gates fitted to this model."
            )
        with torch.no_grad():
            self.log_alpha_LH.copy_(log_alpha_LH)

    def _stretched(self, s: Tensor) -> Tensor:
        return (s * (self.high - self.low) + self.low).clamp(0, 1)


def _size(gate: Tensor) -> str:
    return f"{gate.shape[0]} layers of {gate.shape[1]} heads" if gate.dim() == 2 else f"shape {list(gate.shape)}"


def fit_gates(
    model: nn.Module,
    batches: Callable[[], Iterable[Batch]],
    task: Task,
    *,
    penalty: float,
    steps: int,
    learning_rate: float,
    seed: int,
    context: Autocast,
    start: HardConcrete | None = None,
    warmup: float = 0.2,
    progress: Callable[[int], object] | None = None,
) -> HardConcrete:
    """Fit gates that minimise loss + penalty * expected number of open gates; the model is frozen, without dropout.

    Uses Adam; every example of a batch draws its own gates. The penalty rises linearly from 0 over the first ``warmup``
    share of the steps.

    Args:
        model: Any module that contains a transformers encoder with a classification head.
        batches: Labelled examples; repeated as often as needed.
        task: Chooses the loss.
        penalty: Above 0 pushes the gates shut, below 0 open.
        steps: Number of steps, one batch each.
        learning_rate: Learning rate of log alpha.
        seed: Seed of the draws.
        context: Entered around every batch, e.g. the trainer's autocast.
        start: Initial gates; None for open gates.
        warmup: Share of the steps over which the penalty increases.
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
            raise UserError("There are no examples to fit gates to; give at least one.")
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tolist()
        for step, index in enumerate(islice(cycle(order), steps)):
            batch = examples[index]
            assert batch.label_B is not None

            def drawn(batch: Batch = batch) -> Tensor:
                gate_LHB: Tensor = gates(batch.size, generator)
                return gate_LHB.repeat(1, 1, batch.parts)

            with gated(network, drawn), context():
                loss = batch.loss(output_of(network, batch.inputs()))
            if not torch.isfinite(loss):
                raise UserError(
                    f"The loss of the gated model is not finite at step {step}; lower the gates' learning_rate or "
                    "penalty."
                )
            strength = penalty * min(1.0, (step + 1) / max(1.0, steps * warmup))
            (loss + strength * gates.expected_open()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if progress is not None:
                progress(1)
    return gates.eval()


def closed_heads(gates: HardConcrete) -> HeadSet:
    """The heads whose gate is more likely to be closed than fully open."""
    return frozenset((layer, head) for layer, head in (~gates.kept()).nonzero().tolist())
