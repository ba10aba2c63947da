"""Hard-concrete gates (Louizos et al. 2018), one for each head (Voita et al. 2019, section 6)."""

import math

import torch
from torch import Tensor, nn

from bertsecrets.errors import UserError

TEMPERATURE, LOW, HIGH = 0.33, -0.1, 1.1
"""Temperature and stretch of Voita et al.'s code."""

_EDGE = 1e-6
"""Uniform draws keep this distance from 0 and 1, whose logits are infinite."""


class HardConcrete(nn.Module):
    """A gate in 0..1 for each head, drawn while training and deterministic in evaluation mode.

    With u ~ U(0, 1): s = sigmoid((log u - log(1 - u) + log alpha) / temperature), g = clip(s (high - low) + low, 0, 1).
    In evaluation mode g = clip(sigmoid(log alpha) (high - low) + low, 0, 1).

    Args:
        num_layers, num_heads: Shape of the gates.
        temperature: Above 0.
        low, high: Ends of the stretched interval, below 0 and above 1.
        initial: Probability with which a gate is open (not 0) at first.

    Raises:
        UserError: If a number is out of its range.
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
                f"Gates have temperature {temperature:g}, stretch {low:g} to {high:g} and initial probability {initial:g}; "
                "expected a temperature above 0, ends below 0 and above 1, and a probability between 0 and 1."
            )
        self.temperature, self.low, self.high = temperature, low, high
        # The inverse of open_probability().
        start = math.log(initial / (1 - initial)) + temperature * math.log(-low / high)
        self.log_alpha_LH = nn.Parameter(torch.full((num_layers, num_heads), start))

    def forward(self, examples: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """The gates, ``[layers, heads]``: drawn while training, else :meth:`deterministic`.

        Args:
            examples: Draw gates for as many examples, ``[layers, heads, examples]``; None for one draw.
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
        """Which heads are kept, bool: those whose gate is likelier to be 1 than 0 (Voita et al. 2019, section 6.1)."""
        return self.full_probability() > 1 - self.open_probability()

    def load(self, log_alpha_LH: Tensor, name: str) -> None:
        """Take the gates of a file or checkpoint called ``name``; raises UserError if they are of another shape."""
        if log_alpha_LH.shape != self.log_alpha_LH.shape:
            raise UserError(
                f"The gates in '{name}' are of {_size(log_alpha_LH)}, but the model has {_size(self.log_alpha_LH)}; give gates "
                "that were fitted to this model."
            )
        with torch.no_grad():
            self.log_alpha_LH.copy_(log_alpha_LH)

    def _stretched(self, s: Tensor) -> Tensor:
        return (s * (self.high - self.low) + self.low).clamp(0, 1)


def _size(gate: Tensor) -> str:
    return f"{gate.shape[0]} layers of {gate.shape[1]} heads" if gate.dim() == 2 else f"shape {list(gate.shape)}"
