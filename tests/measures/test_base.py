"""What every measure has: checks of its class, roles of its columns, and grids that any number of processes share."""

import pytest
import torch
from families import HEADS, LAYERS, tiny_model
from measures.toy import batches
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.analysis import Paired
from bertsecrets.measures.base import Measure
from bertsecrets.measures.one_pass import measure_pass


class WithPValue(Measure):
    """A value, what uniform attention gives, and a p-value that ``compute`` adds."""

    name = "tested"
    title = "Tested"
    columns = (
        Column("weight", "weight"),
        Column("uniform", "uniform attention", role="baseline"),
        Column("p", "p-value", limits=(0.0, 1.0), role="p_value"),
    )

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        weight_BH = attention_BHQK[:, :, 0, 0]
        uniform_BH = batch.lengths_B.to(weight_BH).reciprocal()[:, None].expand_as(weight_BH)
        return torch.stack([weight_BH, uniform_BH], -1)

    def compute(self) -> HeadGrid:
        grid = super().compute()
        return self.with_p_values(grid, torch.ones(LAYERS, HEADS, 1), grid.count_LHC[..., 0])


class Nothing(Measure):
    """As far as a class gets that forgets to describe itself."""

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        return attention_BHQK[:, :, 0, :1]


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({}, "Mine has no name; set the attribute name of its class, a text."),
        ({"name": ""}, "Mine has no name"),
        ({"name": "mine"}, "Mine has no title"),
        (
            {"name": "mine", "title": "Mine"},
            r"Mine has no columns; set columns to a tuple of Column\(name, label\)",
        ),
        (
            {"name": "mine", "title": "Mine", "columns": ("a", "b")},
            "columns of Mine are .*expected a tuple of",
        ),
        (
            {
                "name": "mine",
                "title": "Mine",
                "columns": (Column("a", "first"), Column("b", "b"), Column("a", "second")),
            },
            "Measure mine has two columns called 'a'; rename one of them.",
        ),
    ],
)
def test_a_class_that_does_not_describe_itself_is_an_error(described: dict[str, object], message: str) -> None:
    kind = type("Mine", (Nothing,), described)
    with pytest.raises(UserError, match=message):
        kind(LAYERS, HEADS)


def test_p_values_are_neither_averaged_nor_subtracted() -> None:
    measure = WithPValue(LAYERS, HEADS)
    assert measure.total_LHC.shape == (LAYERS, HEADS, 2)
    paired = Paired(WithPValue(LAYERS, HEADS), "initial")
    grid, *_ = measure_pass(tiny_model("bert"), [measure, paired], batches(), {"initial": tiny_model("bert", seed=1)})
    assert grid.columns == paired.grids().other.columns == ("weight", "uniform", "p")
    lengths = torch.cat([batch.lengths_B for batch in batches()]).double()
    assert torch.allclose(grid.column("uniform"), lengths.reciprocal().mean())
    assert paired.grids().difference.columns == ("weight", "uniform")
    # A baseline has the same value in every model.
    assert (paired.grids().difference.column("uniform") == 0).all()


def test_a_grid_takes_names_or_columns() -> None:
    value_LHC = torch.arange(8.0).reshape(2, 2, 2)
    count_LHC = torch.ones(2, 2, 2)
    named = HeadGrid("m", ("first_one", "second"), value_LHC, value_LHC, count_LHC)
    assert named.columns == ("first_one", "second")
    assert named.described == (Column("first_one", "first one"), Column("second", "second"))
    described = (Column("first_one", "First", "unit", (0.0, 1.0)), Column("second", "Second", role="baseline"))
    grid = HeadGrid("m", described, value_LHC, value_LHC, count_LHC)
    assert grid.columns == named.columns
    assert grid.described == described
    assert grid.only(("second",)).described == described[1:]
    assert HeadGrid.from_sums("m", described, value_LHC, value_LHC, count_LHC).described == described
    with pytest.raises(ValueError, match=r"value of grid 'm' has shape \[2, 2, 2\]; expected \[layers, heads, 1\]"):
        HeadGrid("m", ("one",), value_LHC, value_LHC, count_LHC)
