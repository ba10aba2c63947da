"""Plans by hand-counted cases, and every wrong plan in one sentence."""

import json
from pathlib import Path

import pytest

from bertsecrets.ablation.plan import (
    Plan,
    Variant,
    all_but_one,
    cumulative,
    every_head,
    every_layer,
    groups,
    random_groups,
    read_groups,
)
from bertsecrets.errors import UserError


def test_single_heads_and_layers() -> None:
    assert [variant.name for variant in every_head(2, 2)] == ["l00h00", "l00h01", "l01h00", "l01h01"]
    assert every_head(2, 2)[1] == Variant("l00h01", "head", ((0, 1),), 0, 1)
    assert every_layer(3, 2, [2]) == [Variant("l02", "layer", ((2, 0), (2, 1)), 2)]


def test_all_but_one() -> None:
    assert all_but_one(2, 3, [1])[1] == Variant("all-but-l01h01", "all_but_one", ((1, 0), (1, 2)), 1, 1)


def test_groups_and_rankings() -> None:
    assert groups([[[7, 10], [3, 1]]])[0].heads == ((3, 1), (7, 10))
    assert [variant.heads for variant in cumulative([(1, 0), (0, 2)])] == [((1, 0),), ((0, 2), (1, 0))]
    assert cumulative([(1, 0), (0, 2), (0, 1)])[2].name == "top-003"


def test_random_groups_repeat_with_their_seed() -> None:
    first, again, other = (random_groups(12, 12, 4, 50, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert all(len(set(variant.heads)) == 4 for variant in first)
    assert len({variant.heads for variant in first}) > 45


def test_groups_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps([[[0, 1], [1, 1]], [[1, 0]]]))
    assert read_groups(path) == [[[0, 1], [1, 1]], [[1, 0]]]


@pytest.mark.parametrize(
    "content", ["{a: 1}", "5", "[1, 2]", "[[1, 2]]", "[[[1]]]", "[[[1, x]]]", "[[]]", "[[[", "[[[0, 1.5]]]"]
)
def test_a_plan_file_of_another_shape(tmp_path: Path, content: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=r"plan\.yaml"):
        read_groups(path)


def test_a_plan_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml cannot be read"):
        read_groups(tmp_path / "none.yaml")


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
    with pytest.raises(UserError, match="Head 1 of layer 0 is in the ranking twice"):
        cumulative([(0, 1), (0, 1)])
    with pytest.raises(UserError, match="Random groups of 9 heads cannot be drawn from 4"):
        random_groups(2, 2, 9, 1, 0)
