"""Corrections for many tests against statsmodels and scipy."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import false_discovery_control
from statsmodels.stats.multitest import multipletests

from bertsecrets.statistics.corrections import corrected, holm


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=60))
def test_corrections_equal_statsmodels(p_values: list[float]) -> None:
    p_V = np.array(p_values)
    np.testing.assert_allclose(corrected(p_V), multipletests(p_V, method="fdr_bh")[1], atol=1e-12)
    np.testing.assert_allclose(holm(p_V), multipletests(p_V, method="holm")[1], atol=1e-12)


def test_undefined_p_values_stay_undefined_and_do_not_count() -> None:
    p_LH = np.array([[0.01, np.nan, 0.2], [0.04, 0.03, np.nan]])
    adjusted_LH = corrected(p_LH)
    defined_LH = np.isfinite(p_LH)
    assert (np.isfinite(adjusted_LH) == defined_LH).all()
    np.testing.assert_allclose(adjusted_LH[defined_LH], false_discovery_control(p_LH[defined_LH]), atol=1e-12)
    assert np.isnan(corrected(np.full(3, np.nan))).all()
    assert corrected([]).shape == (0,)
