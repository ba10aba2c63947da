"""Agreement against scikit-learn, statsmodels and a case by hand."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.proportion import proportion_confint

from bertsecrets.patterns.classes import PATTERNS
from tools.pattern_labels.agreement import Agreement


@pytest.mark.filterwarnings("ignore::RuntimeWarning:statsmodels")
@given(st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(PATTERNS)), min_size=2, max_size=60))
def test_agreement_equals_scikit_learn_and_statsmodels(pairs: list[tuple[str, str]]) -> None:
    first, second = ({f"m{i}": pair[side] for i, pair in enumerate(pairs)} for side in (0, 1))
    agreement = Agreement.between(first, {**second, "unseen": "block"})
    same = sum(one == two for one, two in pairs)
    assert agreement.count == len(pairs)
    assert agreement.raw == pytest.approx(same / len(pairs))
    assert agreement.raw_interval == pytest.approx(proportion_confint(same, len(pairs), method="wilson"), abs=1e-9)
    if len({pattern for pair in pairs for pattern in pair}) == 1:
        assert np.isnan(agreement.kappa)
        return
    assert agreement.kappa == pytest.approx(cohen_kappa_score(*zip(*pairs, strict=True)), abs=1e-12)
    reference = cohens_kappa(agreement.confusion_PP)
    if reference.var_kappa > 1e-12:
        assert agreement.kappa_interval == pytest.approx((reference.kappa_low, reference.kappa_upp), abs=1e-9)


def test_specific_agreement_by_hand() -> None:
    agreement = Agreement.between(
        {"a": "block", "b": "block", "c": "vertical"}, {"a": "block", "b": "vertical", "c": "vertical"}
    )
    assert agreement.of_pattern("block") == pytest.approx(2 / 3)
    assert np.isnan(agreement.of_pattern("diagonal"))
    assert json.loads(json.dumps(agreement.as_dict(), allow_nan=False))["confusion"]["block"]["vertical"] == 1
