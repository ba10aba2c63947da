"""Override modes: replacements for a head's output.

A mode is a subclass of :class:`OverrideMode`. The built-in ones are in this file; packages can add modes with an entry
point in the group ``bertsecrets.override_modes``; ``module:Class`` and ``file.py:Class`` refer to any other. Settings,
engine, override, notebook and pages find them in the same way. Names are available without PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from bertsecrets.doors import free_names, load_named, load_offer
from bertsecrets.errors import UserError, choices

# Settings and pages use modes without loading PyTorch.
if TYPE_CHECKING:
    from torch import Tensor


class ModeNeed(Enum):
    """Inputs of a mode besides the heads' outputs."""

    MEAN_VALUE = "the mean of each head's values over the real tokens"
    VALUES = "the values of every token"
    ATTENTION = "the attention maps"
    TOKENS = "the special tokens that receive no attention, or attend only to themselves"
    MEAN_OUTPUTS = "each head's mean output over reference examples"
    PEAK_OUTPUTS = "each head's most frequent output over reference examples"
    FITTED_OUTPUTS = "an output of each head fitted to labelled reference examples"
    DONORS = "the heads' outputs on other examples"


PER_TOKEN = frozenset({ModeNeed.VALUES, ModeNeed.ATTENTION, ModeNeed.TOKENS})
"""Needs that differ between tokens, so that the variants of a sweep cannot share a pass."""

OF_CONSTANTS = frozenset({ModeNeed.MEAN_OUTPUTS, ModeNeed.PEAK_OUTPUTS, ModeNeed.FITTED_OUTPUTS})
"""Needs that are one vector per head."""

OF_REFERENCES = OF_CONSTANTS | {ModeNeed.DONORS}
"""Needs that require examples besides the evaluated ones."""


@dataclass(frozen=True)
class Heads:
    """A mode's inputs for some heads of one layer; fields it does not need are None or raise an error.

    Args:
        layer: The layer.
        output_BSHd: Their outputs: the input of the output projection.
        mean_value: Computes the mean of their values over the real tokens, ``[B, H, d]``.
        real_BS: Which tokens are real, bool; None if all variants share a pass.
        values_BSHd: Their values.
        attention: Computes their maps ``[B, H, Q, K]``, float32 or wider.
        barred_BS: Which tokens receive no attention, or attend only to themselves, bool.
        constants_Hd: One vector per head.
        donated_BSHd: Their outputs on other examples.
    """

    layer: int
    output_BSHd: Tensor
    mean_value: Callable[[], Tensor] | None = None
    real_BS: Tensor | None = None
    values_BSHd: Tensor | None = None
    attention: Callable[[], Tensor] | None = None
    barred_BS: Tensor | None = None
    constants_Hd: Tensor | None = None
    donated_BSHd: Tensor | None = None


class OverrideMode:
    """A way to replace heads; a subclass sets the attributes and :meth:`replacement`.

    Attributes:
        name: Its name in settings, tables and W&B.
        words: Completes the sentence "The output of a disabled head is ...".
        needs: Its inputs.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    needs: ClassVar[frozenset[ModeNeed]] = frozenset()

    def replacement(self, heads: Heads) -> Tensor:
        """The replacement of the heads' outputs, in any shape that broadcasts to ``[B, S, H, d]``."""
        raise NotImplementedError


class Uniform(OverrideMode):
    """Every token attends to each of the L real tokens with weight 1/L (Kovaleva et al. 2019, section 4.6)."""

    name = "uniform"
    words = "the mean of its values over all real tokens, as under uniform attention (Kovaleva et al. 2019)"
    needs = frozenset({ModeNeed.MEAN_VALUE})

    def replacement(self, heads: Heads) -> Tensor:
        assert heads.mean_value is not None
        return heads.mean_value()[:, None]


class Zero(OverrideMode):
    """The head's output is zero (Michel et al. 2019, section 3)."""

    name = "zero"
    words = "zero (Michel et al. 2019)"

    def replacement(self, heads: Heads) -> Tensor:
        return heads.output_BSHd.new_zeros(1, 1, *heads.output_BSHd.shape[2:])


class Mean(OverrideMode):
    """The head's output is its mean over the real tokens of a reference set."""

    name = "mean"
    words = "its mean over reference examples"
    needs = frozenset({ModeNeed.MEAN_OUTPUTS})

    def replacement(self, heads: Heads) -> Tensor:
        assert heads.constants_Hd is not None
        return heads.constants_Hd[None, None]


class Peak(Mean):
    """The head's output is the mode of each of its dimensions over the real tokens of a reference set (Pochinkov et al.
    2024).
    """

    name = "peak"
    words = "the peak of each dimension's histogram over reference examples (Pochinkov et al. 2024)"
    needs = frozenset({ModeNeed.PEAK_OUTPUTS})


class Optimal(Mean):
    """The head's output is the constant vector with the least loss (Li and Janson 2024)."""

    name = "optimal"
    words = "the vector with the least loss on reference examples (Li and Janson 2024)"
    needs = frozenset({ModeNeed.FITTED_OUTPUTS})


class Resample(OverrideMode):
    """The head's output is its output on another example (:class:`~bertsecrets.attention.override.DonatedOutputs`)."""

    name = "resample"
    words = "its output on another example"
    needs = frozenset({ModeNeed.DONORS})

    def replacement(self, heads: Heads) -> Tensor:
        assert heads.donated_BSHd is not None
        return heads.donated_BSHd


class Identity(OverrideMode):
    """Every token attends only to itself."""

    name = "identity"
    words = "each token's own value, as if every token attended only to itself"
    needs = frozenset({ModeNeed.VALUES})

    def replacement(self, heads: Heads) -> Tensor:
        assert heads.values_BSHd is not None
        return heads.values_BSHd


class Cut(OverrideMode):
    """Attention to the tokens of ``away_from`` is removed; the other weights are unchanged."""

    name = "cut"
    words = "its output without the contribution of the special tokens"
    needs = frozenset({ModeNeed.ATTENTION, ModeNeed.VALUES, ModeNeed.TOKENS})
    rescales: ClassVar[bool] = False

    def replacement(self, heads: Heads) -> Tensor:
        import torch

        assert heads.attention is not None
        assert heads.values_BSHd is not None
        assert heads.barred_BS is not None
        kept_BHQK = heads.attention().masked_fill(heads.barred_BS[:, None, None], 0)
        if self.rescales:
            kept_BHQK = kept_BHQK / kept_BHQK.sum(-1, keepdim=True).clamp(min=torch.finfo(kept_BHQK.dtype).tiny)
        # Autocast is still active in a forward pass and would round the products to half precision.
        with torch.autocast(kept_BHQK.device.type, enabled=False):
            output_BHSd = kept_BHQK @ heads.values_BSHd.transpose(1, 2).to(kept_BHQK.dtype)
        return output_BHSd.transpose(1, 2)


class Redirect(Cut):
    """As ``cut``, but the remaining weights of a row are rescaled to sum to one; zero in a row without any."""

    name = "redirect"
    words = "its output with the attention to special tokens redistributed to the others"
    rescales = True


class Isolate(OverrideMode):
    """The tokens of ``away_from`` attend only to themselves; all other rows are unchanged."""

    name = "isolate"
    words = "its output with special tokens attending only to themselves"
    needs = frozenset({ModeNeed.VALUES, ModeNeed.TOKENS})

    def replacement(self, heads: Heads) -> Tensor:
        assert heads.values_BSHd is not None
        assert heads.barred_BS is not None
        values_BSHd = heads.values_BSHd.to(heads.output_BSHd.dtype)
        return values_BSHd.where(heads.barred_BS[..., None, None], heads.output_BSHd)


_OURS: dict[str, OverrideMode] = {
    kind.name: kind() for kind in (Uniform, Zero, Mean, Peak, Resample, Optimal, Identity, Redirect, Cut, Isolate)
}


_LOADED: dict[str, OverrideMode] = {}
"""The modes that this process has loaded from ``module:Class`` or ``file.py:Class``, by name."""


def mode_names(*, sweeps: bool = False) -> list[str]:
    """The names of all modes, or of those for sweeps: all except modes for special tokens.

    Packages' modes are all listed without being imported.
    """
    loaded = {**_LOADED, **_OURS}
    names = [name for name, mode in loaded.items() if not (sweeps and ModeNeed.TOKENS in mode.needs)]
    return [*dict.fromkeys([*names, *free_names("override_modes", tuple(_OURS))])]


def find_mode(name: str) -> OverrideMode:
    """A mode by its name, ``module:Class`` or ``file.py:Class``; it is then available by name in this process.

    Raises:
        UserError: If the mode is unknown, cannot be imported, or is not an :class:`OverrideMode` with this name.
    """
    if ":" in name:
        return _load(name)
    if (mode := _OURS.get(name) or _LOADED.get(name)) is not None:
        return mode
    # Before importing packages, so that a typo lists the choices.
    if name not in mode_names():
        raise UserError(f"Unknown override mode '{name}'; {choices(str(name), mode_names())}.")
    kind = load_offer("override_modes", name)
    if kind is None:
        raise UserError(f"The override mode '{name}' of an installed package cannot be imported; choose another mode.")
    mode = _checked(kind, f"The override mode '{name}' of an installed package")
    if mode.name != name:
        raise UserError(
            f"The override mode '{name}' of an installed package is named {mode.name!r} in its class; use one name."
        )
    return mode


def loaded_mode(name: str) -> OverrideMode | None:
    """The mode of this name that was loaded from ``module:Class`` or ``file.py:Class``, to send to another process."""
    return _LOADED.get(name)


def keep_mode(mode: OverrideMode) -> None:
    """Register another process's mode by name in this process."""
    _LOADED[mode.name] = mode


def _load(name: str) -> OverrideMode:
    mode = _checked(load_named("The override mode", name), f"The override mode '{name}'")
    if mode.name in _OURS or not mode.name.isidentifier():
        raise UserError(
            f"The override mode '{name}' is named {mode.name!r}; give it an unused name of letters, digits and "
            "underscores."
        )
    keep_mode(mode)
    return mode


def _checked(kind: object, origin: str) -> OverrideMode:
    if not (isinstance(kind, type) and issubclass(kind, OverrideMode)):
        raise UserError(f"{origin} is {kind!r}; expected a subclass of bertsecrets.attention.modes.OverrideMode.")
    if not isinstance(getattr(kind, "name", None), str):
        raise UserError(f"{origin} has no name; set the attribute name of its class.")
    return kind()


def check_sweep_mode(name: str, setting: str = "disabling mode") -> None:
    """Raise UserError if a sweep cannot use a mode of this name."""
    if name not in mode_names(sweeps=True):
        raise UserError(f"Unknown {setting} '{name}'; {choices(str(name), mode_names(sweeps=True))}.")
