"""Plans by hand-counted cases, and every wrong plan in one sentence."""

from typing import Any

import pytest

from bertsecrets.ablation.plan import Plan, Variant, every, every_head, every_layer, groups
from bertsecrets.errors import UserError
from bertsecrets.results.components import ALL_BUT_ONE


def test_single_heads_and_layers() -> None:
    assert [variant.name for variant in every_head(2, 2)] == ["l00h00", "l00h01", "l01h00", "l01h01"]
    assert every_head(2, 2)[1] == Variant("l00h01", "head", ((0, 1),), 0, 1)
    assert every_layer(3, 2, [2]) == [Variant("l02", "layer", ((2, 0), (2, 1)), 2)]


def test_all_but_one() -> None:
    assert every(ALL_BUT_ONE, 2, 3, [1])[1] == Variant("all-but-l01h01", "all_but_one", ((1, 0), (1, 2)), 1, 1)


def test_groups_are_sorted() -> None:
    assert groups([[[7, 10], [3, 1]]])[0].heads == ((3, 1), (7, 10))


@pytest.mark.parametrize("group", [5, "01", [], [1, 2], [[1]], [[1, "x"]], [[0, 1.5]], [[0, -1]]])
def test_a_group_of_another_shape(group: Any) -> None:
    with pytest.raises(UserError, match=r"^Group 0 is .*; expected a list of \[layer, head\]"):
        groups([group])


def variant(*heads: tuple[int, int]) -> Variant:
    return Variant("group-000", "group", heads)


def test_wrong_plans() -> None:
    with pytest.raises(UserError, match="does not disable anything; give at least one head or layer"):
        Plan("zero", 2, 2, ())
    with pytest.raises(UserError, match="is empty; give at least one head"):
        Plan("zero", 2, 2, (variant(),))
    with pytest.raises(UserError, match="contains layer 2, but the model has layers 0 to 1"):
        Plan("zero", 2, 2, (variant((2, 0)),))
    with pytest.raises(UserError, match="contains head 5 of layer 1, but the model has heads 0 to 1"):
        Plan("zero", 2, 2, (variant((1, 5)),))
    with pytest.raises(UserError, match="contains head 1 of layer 0 twice"):
        Plan("zero", 2, 2, (variant((0, 1), (0, 1)),))
    with pytest.raises(UserError, match="'group-000' is in the plan twice"):
        Plan("zero", 2, 2, (variant((0, 1)), variant((1, 1))))
    with pytest.raises(UserError, match="The plan contains layer 7, but the model has layers 0 to 1"):
        every_head(2, 2, [7])
