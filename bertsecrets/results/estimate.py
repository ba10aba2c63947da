"""A number with its uncertainty."""

import re
from dataclasses import dataclass
from math import isfinite, nan

from bertsecrets.results.formatting import MISSING, low_to_high, number

_SPEC = re.compile(r"(\+?)(?:\.(\d))?(%|points|)")


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Its format is ``[+][.digits][% or points]``: with a sign, with this many digits, in hundredths.

    Args:
        value: The number; NaN where it is undefined.
        low, high: The limits of its 95 % interval; NaN where unknown.
        stderr: Its standard error over examples, or over seeds for a mean over seeds; NaN where unknown.
        n: Number of examples, or of seeds, behind it.

    >>> f"{Estimate(0.5, 0.4, 0.61):%}", f"{Estimate(0.5, stderr=0.01)}", f"{Estimate(-0.012, -0.02, 0.0):+points}"
    ('50.0 (40.0 to 61.0)', '0.500 ± 0.010', '−1.2 points (−2.0 to 0.0)')
    """

    value: float
    low: float = nan
    high: float = nan
    stderr: float = nan
    n: int = 0

    def __format__(self, spec: str) -> str:
        match = _SPEC.fullmatch(spec)
        if match is None:
            raise ValueError(f"an estimate has no format '{spec}'; use [+][.digits][% or points]")
        signed, unit = bool(match[1]), match[3]
        if unit:
            return self.in_hundredths("points" if unit == "points" else "", int(match[2] or 1), signed=signed)
        return self._written(1, "", int(match[2] or 3), signed)

    def __str__(self) -> str:
        return format(self)

    def in_hundredths(self, unit: str, digits: int = 1, *, signed: bool = False) -> str:
        """The number and its limits in hundredths of a unit.

        >>> Estimate(-0.012, -0.02, 0.0).in_hundredths("hundredths of a nat", signed=True)
        '−1.2 hundredths of a nat (−2.0 to 0.0)'

        Args:
            unit: What follows the number, in the plural; empty for nothing.
            digits: Behind the point.
            signed: Whether a positive number has its sign.
        """
        return self._written(100, f" {unit}" if unit else "", digits, signed)

    def _written(self, scale: int, unit: str, digits: int, signed: bool) -> str:
        if not isfinite(self.value):
            return MISSING
        if isfinite(self.low) and isfinite(self.high):
            limits = f" ({low_to_high(scale * self.low, scale * self.high, digits, signed=signed)})"
        else:
            limits = f" ± {number(scale * self.stderr, digits)}" if isfinite(self.stderr) else ""
        return f"{number(scale * self.value, digits, signed=signed)}{unit}{limits}"
