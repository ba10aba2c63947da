"""The sentence on heads that cannot be told from the highest."""

import numpy as np

from bertsecrets.present.ranking import like_the_extreme

VALUE = np.array([[0.30, 0.32, 0.10], [0.29, np.nan, 0.31]])


def sentence(stderr: float, count: int = 100, value_LH: np.ndarray = VALUE) -> str:
    return like_the_extreme(value_LH, np.full(value_LH.shape, stderr), np.full(value_LH.shape, count))


def test_heads_within_the_errors_of_the_highest_are_named_in_their_order() -> None:
    assert sentence(0.02) == (
        "Not significantly different from the top: layer 1 · head 2, layer 0 · head 0, layer 1 · head 0 (standard errors, "
        "Holm-corrected p ≥ 0.05)."
    )
    assert sentence(1e-4) == "The top head is significantly higher than every other (standard errors, Holm-corrected)."


def test_a_long_list_is_cut_and_counted() -> None:
    value_LH = np.linspace(0, 1, 12).reshape(3, 4)
    assert sentence(5.0, value_LH=value_LH) == (
        "No other head differs significantly from it (standard errors, Holm-corrected p ≥ 0.05)."
    )
    value_LH[0, 0] = -100
    assert sentence(5.0, value_LH=value_LH).startswith(
        "Not significantly different from the top: layer 2 · head 2, layer 2 · head 1, layer 2 · head 0, layer 1 · head 3, layer "
        "1 · head 2 and 5 more ("
    )


def test_nothing_is_ranked_that_cannot_be() -> None:
    assert sentence(np.nan, 1) == "With 1 example the order of the heads cannot be tested."
    assert sentence(np.nan, 40) == "With 40 examples the order of the heads cannot be tested."
    assert sentence(0.01, value_LH=np.array([[0.3]])) == ""
    assert sentence(0.01, value_LH=np.full((2, 2), np.nan)) == ""
    # Five examples: far wider than the normal distribution has it.
    assert "layer 1 · head 0" in sentence(0.004, 5)
    assert "layer 1 · head 0" not in sentence(0.004, 500)
