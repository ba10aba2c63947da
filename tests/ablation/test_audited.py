"""What screened sweeps of random samples promise, in a population whose outcomes are all known."""

import pytest

from benchmarks.verdicts import audited
from bertsecrets.ablation.settings import BF16, FP32, Precision


@pytest.mark.slow
@pytest.mark.parametrize(("count", "audit", "precision"), [(408, 0.1, FP32), (277, 0.2, FP32), (408, 0.1, BF16)])
def test_intervals_cover_the_population_and_findings_are_true(count: int, audit: float, precision: Precision) -> None:
    """80 sweeps of 12 heads; a standard error of the coverage is about 0.01."""
    result = audited(harm=True, count=count, audit=audit, simulations=80, precision=precision)
    assert result.evaluated + result.in_bf16 < 0.5
    assert (result.in_bf16 > 0) == (precision == BF16)
    assert result.covered["accuracy"] >= 0.93
    for name in ("loss", "logit_margin"):
        assert 0.92 <= result.covered[name] <= 0.98
        assert result.holds_whole[name] >= 0.95
        assert result.wider[name] < 1.25
    # At most 5 %, with two standard errors of 80 sweeps.
    assert result.families <= 0.05 + 2 * (0.05 * 0.95 / 80) ** 0.5
    assert result.different <= 1e-4 * 80 * 12 * count
