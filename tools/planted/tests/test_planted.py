"""Planted heads do what they were built for, and the benchmark of scores measures what it says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.importance.head_gradient import HeadGradient
from bertsecrets.importance.integrated_gradients import IntegratedGradients
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.results.run import Run
from tools.planted.classifiers import Planted, plant
from tools.planted.scores import Score, agreement, scores_of_grid, scores_of_run, separation


def logits_of(planted: Planted, disabled: Any = ()) -> Tensor:
    batch = planted.split[list(range(len(planted.split)))]
    with torch.no_grad(), override(planted.model, [HeadEdit(layer, head, "zero") for layer, head in disabled]):
        logits_BC: Tensor = planted.model(**batch.inputs()).logits
        return logits_BC


def accuracy(planted: Planted, disabled: Any = ()) -> float:
    label_B = planted.split[list(range(len(planted.split)))].label_B
    return float((logits_of(planted, disabled).argmax(-1) == label_B).double().mean())


@pytest.mark.parametrize("seed", range(5))
def test_each_kind_of_planted_head_does_what_it_was_built_for(seed: int) -> None:
    label, duplicated, dead = (plant(kind, seed, examples=64) for kind in ("label", "duplicated", "dead"))
    assert accuracy(label) == 1.0
    assert len(label.heads) == 1
    assert accuracy(label, label.heads) < 0.75
    assert len(duplicated.heads) == 2
    for head in duplicated.heads:
        assert accuracy(duplicated, [head]) == 1.0
    assert accuracy(duplicated, duplicated.heads) < 0.75
    assert len(set(dead.heads)) == 4
    assert accuracy(dead) == 1.0
    assert torch.equal(logits_of(dead), logits_of(dead, dead.heads))
    # Ordinary heads have effects, if small ones.
    ordinary = [(layer, head) for layer in range(4) for head in range(6) if (layer, head) not in dead.heads]
    assert all((logits_of(dead) - logits_of(dead, [head])).abs().max() > 1e-4 for head in ordinary)


def test_the_same_seed_plants_the_same() -> None:
    first, second, other = plant("label", 3), plant("label", 3), plant("label", 4)
    assert first.heads == second.heads
    assert torch.equal(logits_of(first), logits_of(second))
    assert not torch.equal(logits_of(first), logits_of(other))


def test_wrong_plants_are_reported() -> None:
    with pytest.raises(UserError, match="Unknown kind of planted heads 'deaf'"):
        plant("deaf")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="A model with 1 layers of 4 heads is too small"):
        plant("dead", layers=1, heads=4)


def test_scores_find_what_their_definition_says() -> None:
    planted = plant("dead", 0, examples=32)
    measures = [HeadGradient(4, 6), IntegratedGradients(4, 6, steps=3)]
    for measure in measures:
        measure.prepare(planted.split)
    grids = measure_pass(planted.model, measures, [planted.split[list(range(32))]])
    scores = {score.name: score for grid in grids for score in scores_of_grid(grid)}
    for name in ("head_gradient/token", "head_gradient/example_normalised", "integrated_gradients/share"):
        assert separation(scores[name], planted.heads, dead=True) == 1.0, name
    # Not all columns rank heads.
    assert "head_gradient/signed" not in scores


def test_agreement_with_ties_and_directions() -> None:
    generator = np.random.default_rng(0)
    effect_LH = generator.normal(size=(6, 12))
    noisy = agreement(effect_LH + generator.normal(size=(6, 12)), effect_LH)
    assert noisy.correlation.low > 0
    assert agreement(effect_LH, effect_LH).precision == 1.0
    assert agreement(-effect_LH, effect_LH).precision == 0.0
    # A score without order has the precision of chance.
    constant = agreement(np.ones((6, 12)), effect_LH)
    assert constant.precision == pytest.approx(constant.chance) == pytest.approx(10 / 72)
    assert agreement(effect_LH[0, :4], effect_LH[0, :4]).top == 4


def test_separation_is_the_share_of_pairs_in_order() -> None:
    value_LH = np.array([[3.0, -2.0], [0.1, -0.2]])
    signed = Score("s", value_LH, signed=True)
    assert separation(signed, [(0, 0)], dead=False) == 1.0
    assert separation(signed, [(1, 0), (1, 1)], dead=True) == 1.0
    pairs = [3.0 > 0.1, 3.0 > -0.2, -2.0 > 0.1, -2.0 > -0.2]
    assert separation(signed, [(0, 0), (0, 1)], dead=False) == pytest.approx(np.mean(pairs))
    assert stats.mannwhitneyu([1.0], [1.0]).statistic == 0.5
    assert separation(Score("s", np.ones((2, 2)), signed=False), [(0, 0)], dead=True) == 0.5


def test_columns_of_a_runs_table_rank_by_their_declaration(tmp_path: Path) -> None:
    run = Run(tmp_path, "run", "toy", "demo", "pretrained")
    columns = (Column("up", "up", keep="high"), Column("down", "down", keep="low"), Column("other", "other"))
    value_LHC = torch.arange(12, dtype=torch.float64).reshape(2, 2, 3) - 5
    grid = HeadGrid("mine", columns, value_LHC, value_LHC.abs(), torch.ones(2, 2, 3))

    class Mine(HeadGradient):
        name, title = "mine", "Mine"

    measure = Mine(2, 2)
    measure.columns = columns
    run.declare(measure.declaration())
    run.add(run.rows(grid, "checkpoint", 3))
    up, down = scores_of_run(run)
    assert (up.name, down.name) == ("mine/up", "mine/down")
    assert (up.value_LH == value_LHC[..., 0].numpy()).all()
    assert (down.value_LH == -value_LHC[..., 1].numpy()).all()
    assert up.signed
