"""What every measure has: checks of its class, roles of its columns, and grids that any number of processes share."""

import json
import math
from pathlib import Path

import pytest
import torch
from families import HEADS, LAYERS, tiny_model
from measures.toy import Focus, batches
from measures.two_processes import grids, run
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Measure
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.measures.paired import Paired
from bertsecrets.measures.shipped import shipped_measure, shipped_names


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
        ({}, "Measure class Mine has no name; set Mine.name."),
        ({"name": ""}, "Measure class Mine has no name"),
        ({"name": "mine"}, "Measure class Mine has no title; set Mine.title."),
        (
            {"name": "mine", "title": "Mine"},
            r"Measure class Mine has no columns; set Mine.columns to a tuple of Column\(name, label\)",
        ),
        ({"name": "mine", "title": "Mine", "columns": ("a", "b")}, "Measure class Mine has no columns"),
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


def test_a_class_is_usable_with_a_name_a_title_and_one_column() -> None:
    kind = type("Mine", (Nothing,), {"name": "mine", "title": "Mine", "columns": (Column("a", "first"),)})
    (grid,) = measure_pass(tiny_model("bert"), [kind(LAYERS, HEADS)], batches())
    assert (grid.measure, grid.described) == ("mine", (Column("a", "first"),))
    assert (grid.count_LHC == 7).all()


def test_p_values_are_not_averaged() -> None:
    measure = WithPValue(LAYERS, HEADS)
    assert [column.name for column in measure.averaged] == ["weight", "uniform"]
    assert measure.total_LHC.shape == (LAYERS, HEADS, 2)
    (grid,) = measure_pass(tiny_model("bert"), [measure], batches())
    assert grid.columns == ("weight", "uniform", "p")
    lengths = torch.cat([batch.lengths_B for batch in batches()]).double()
    assert torch.allclose(grid.column("uniform"), lengths.reciprocal().mean())


def test_a_pair_has_no_p_values_of_differences() -> None:
    paired = Paired(WithPValue(LAYERS, HEADS), "initial")
    measure_pass(tiny_model("bert"), [paired], batches(), {"initial": tiny_model("bert", seed=1)})
    assert paired.grids().other.columns == ("weight", "uniform", "p")
    assert paired.grids().difference.columns == ("weight", "uniform")
    # A baseline has the same value in every model.
    assert (paired.grids().difference.column("uniform") == 0).all()


def test_a_measure_has_no_examples_and_no_findings_by_default() -> None:
    measure = Focus(LAYERS, HEADS)
    assert measure.dataset(None) is None  # type: ignore[arg-type]
    assert measure.inapplicable(None) is None  # type: ignore[arg-type]
    (grid,) = measure_pass(tiny_model("bert"), [measure], batches())
    assert not measure.findings(grid, nn.Identity())


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
    assert [cell.column for cell in grid.cells()] == ["first_one"] * 4 + ["second"] * 4
    assert HeadGrid.from_sums("m", described, value_LHC, value_LHC, count_LHC).described == described
    with pytest.raises(ValueError, match=r"value of grid 'm' has shape \[2, 2, 2\]; expected \[layers, heads, 1\]"):
        HeadGrid("m", ("one",), value_LHC, value_LHC, count_LHC)


def test_two_processes_have_the_grids_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(run, (2, tmp_path), nprocs=2)
    alone, spaces = grids(0, 1)
    assert [grid.measure for grid in alone] == ["focus", "drift", "clusters", "focus", "focus", "focus"]
    for rank in range(2):
        together = json.loads((tmp_path / f"{rank}.json").read_text("utf-8"))
        assert [space["rows"] for space in together] == [space["rows"] for space in spaces]
        assert together[0] == pytest.approx(spaces[0], abs=1e-6)
        parts = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for index, grid in enumerate(alone):
            assert torch.equal(parts[f"{index}/count_LHC"], grid.count_LHC)
            for name in ("value_LHC", "stderr_LHC"):
                together = parts[f"{index}/{name}"]
                assert torch.allclose(together, getattr(grid, name), rtol=1e-12, atol=1e-12, equal_nan=True)
    # One process alone has seen part of the examples.
    (part, *_), part_spaces = grids(0, 2)
    assert not math.isclose(part.value_LHC[0, 0, 0].item(), alone[0].value_LHC[0, 0, 0].item())
    assert part_spaces[0]["rows"] < spaces[0]["rows"]


@pytest.mark.parametrize("name", shipped_names())
def test_every_measure_checks_its_arguments_by_their_types(name: str) -> None:
    measure = shipped_measure(name)
    with pytest.raises(UserError, match=r"\w+\.max_examples is 0; expected a whole number from 1, or null for all\."):
        measure(2, 2, max_examples=0)
    with pytest.raises(UserError, match=r"\w+\.num_heads is '2'; expected a whole number\."):
        measure(2, "2")
    assert measure(2, 2, max_examples=3).feed.max_examples == 3


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("clusters", {"smoothing": 1.0}, "Clusters.smoothing is 1.0; expected a share"),
        ("clusters", {"groups": 5}, "Clusters.groups is 5; expected a whole number from 2 to the 4 heads"),
        ("clusters", {"replicates": -1}, "Clusters.replicates is -1"),
        ("coreference", {"candidates": "mentions"}, "Coreference.candidates 'mentions'; valid names: earlier, others"),
        ("coreference", {"windows": "second"}, "Unknown Coreference.windows 'second'"),
        ("coreference", {"splits": 0}, "Coreference.splits is 0; expected a whole number from 1"),
        ("dependency", {"from_word": "last"}, "Unknown Dependency.from_word 'last'"),
        ("dependency", {"offsets": []}, "Dependency.offsets is"),
        ("dependency", {"min_count": 0}, "Dependency.min_count is 0; expected a whole number from 1"),
        ("dependency", {"splits": 0}, "Dependency.splits is 0"),
        ("drift", {"padding": "kovalev"}, "did you mean 'kovaleva'"),
        ("features", {"absent": "zero"}, "Unknown Features.absent 'zero'"),
        ("frame_relations", {"pairs": "zipped"}, "Unknown FrameRelations.pairs 'zipped'.*did you mean 'zip'"),
        ("frame_relations", {"direction": "up"}, "Unknown FrameRelations.direction 'up'"),
        ("frame_relations", {"matching": "words"}, "Unknown FrameRelations.matching 'words'"),
        ("frame_relations", {"permutations": 0}, "FrameRelations.permutations is 0"),
        ("offsets", {"offsets": []}, r"Offsets.offsets is \[\]; expected a list"),
        ("offsets", {"offsets": [1, 1]}, "expected a list of different whole numbers"),
        ("offsets", {"offsets": "-1"}, "expected a list of different whole numbers"),
        ("offsets", {"mean_over": "token"}, "did you mean 'tokens'"),
        ("roles", {"relations": []}, r"Roles.relations is \[\]"),
        ("roles", {"relations": ["nsubj", "nsubj"]}, "expected a list of different relations"),
        ("roles", {"relations": ["local"]}, "expected a list of different relations"),
        ("roles", {"threshold": 0}, "Roles.threshold is 0; expected a number above 0"),
        ("surface", {"marks": ".,"}, "Surface.marks is .*; expected a list of tokens"),
        ("surface", {"marks": [".", ""]}, "Surface.marks is .*; expected a list of tokens"),
        ("surface", {"marks": [1]}, "Surface.marks is .*; expected a list of tokens"),
        ("token_to_token", {"far": 0}, "TokenToToken.far is 0"),
        ("voita_roles", {"relations": "nsubj"}, "VoitaRoles.relations is 'nsubj'"),
        ("voita_roles", {"relations": ["nsubj", "nsubj"]}, "VoitaRoles.relations is"),
        ("voita_roles", {"gain": 0.0}, "VoitaRoles.gain is 0.0"),
        ("voita_roles", {"min_count": 0}, "VoitaRoles.min_count is 0"),
    ],
)
def test_wrong_settings_are_reported(name: str, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        shipped_measure(name)(2, 2, **wrong)
