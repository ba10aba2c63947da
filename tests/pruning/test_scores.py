"""Orders of removal against naive loops, and their costs against counted FLOPs."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from families import HEADS, LAYERS, batch_of, tiny_batch, tiny_model
from torch.utils.flop_counter import FlopCounterMode

import bertsecrets as bs
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.pruning.scores import SCORES, columns_of, exact, find_score, removal_sets, table_of, with_controls
from bertsecrets.pruning.sets import Situation, cost, evaluate_sets
from bertsecrets.results.run import CHECKPOINT, TRAINING, Declaration, Run
from bertsecrets.task_heads.sequence import ACCURACY

TASK = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))


def batches() -> Iterable[Batch]:
    for start, lengths in ((0, (11, 7, 4)), (3, (6, 5, 9))):
        inputs = tiny_batch(lengths)
        yield batch_of({**inputs, "input_ids": (inputs["input_ids"] + start) % 90}, [0, 1, 2], start)


def naive_loss(model: torch.nn.Module, heads: Iterable[tuple[int, int]]) -> float:
    total = 0.0
    with torch.no_grad(), override(model, [HeadEdit(layer, head, "zero") for layer, head in heads]):
        for batch in batches():
            logits_BC = model(**batch.inputs()).logits
            total += torch.nn.functional.cross_entropy(logits_BC, batch.label_B, reduction="sum").item()
    return total / 6


def situation(removed: frozenset[tuple[int, int]] = frozenset()) -> Situation:
    return Situation(tiny_model("bert").double(), TASK, batches, removed=removed)


def test_exact_score_is_the_rise_of_the_loss() -> None:
    removed = frozenset({(0, 1), (2, 2)})
    here = situation(removed)
    score_LH = exact(here)
    before = naive_loss(here.model, removed)
    for layer, head in ((0, 0), (1, 3), (2, 1)):
        expected = naive_loss(here.model, removed | {(layer, head)}) - before
        assert score_LH[layer, head].item() == pytest.approx(expected, abs=1e-5)


def test_iterative_pruning_is_a_greedy_loop() -> None:
    here = situation()
    sizes = [2, 5, 8]
    expected: list[frozenset[tuple[int, int]]] = []
    removed: frozenset[tuple[int, int]] = frozenset()
    for size in sizes:
        places = [(layer, head) for layer in range(LAYERS) for head in range(HEADS) if (layer, head) not in removed]
        losses = {place: naive_loss(here.model, removed | {place}) for place in places}
        removed = removed | frozenset(sorted(places, key=losses.__getitem__)[: size - len(removed)])
        expected.append(removed)
    assert removal_sets(SCORES["exact"], here, sizes, iterative=True) == expected


def test_one_shot_pruning_ranks_once_and_its_reverse_is_the_control() -> None:
    here = situation()
    score_LH = exact(here)
    order = sorted(
        ((layer, head) for layer in range(LAYERS) for head in range(HEADS)), key=lambda p: float(score_LH[p])
    )
    sizes = [3, 7, 11]
    assert removal_sets(SCORES["exact"], here, sizes, iterative=False) == [frozenset(order[:size]) for size in sizes]
    for name in ("reversed", "-exact"):
        backwards = removal_sets(find_score(name, {}), here, sizes, iterative=False)
        assert backwards == [frozenset(order[-size:]) for size in sizes]


def test_random_orders_differ_by_seed_and_nest() -> None:
    first, second = (
        removal_sets(
            SCORES["random"], Situation(tiny_model("bert"), TASK, batches, seed=seed), [2, 6, 11], iterative=True
        )
        for seed in (0, 1)
    )
    assert first != second
    assert [len(heads) for heads in first] == [2, 6, 11]
    assert first[0] < first[1] < first[2]


def test_scores_come_from_a_table_or_a_function() -> None:
    grid_LH = np.arange(LAYERS * HEADS, dtype=np.float64).reshape(LAYERS, HEADS)
    score = find_score("drift/cosine", {"drift/cosine": grid_LH})
    assert removal_sets(score, situation(), [3], iterative=False) == [frozenset({(0, 0), (0, 1), (0, 2)})]
    columns = {"drift/cosine": grid_LH, "drift/distance": -grid_LH, "other/mine": grid_LH, "first_order/zero": grid_LH}
    for name in ("cosine", "other", "-distance", "first_order/zero"):
        assert removal_sets(find_score(name, columns), situation(), [3], iterative=False) == [
            frozenset({(0, 0), (0, 1), (0, 2)})
        ]
    last = removal_sets(find_score("reversed", columns, "cosine"), situation(), [2], iterative=False)
    assert last == [frozenset({(2, 2), (2, 3)})]
    with pytest.raises(UserError, match=r"'drift' fits several columns; choose one of drift/cosine, drift/distance"):
        find_score("drift", columns)
    assert find_score("bertsecrets.pruning.scores:exact", {}) is exact
    with pytest.raises(UserError, match=r"Unknown pruning score 'exakt'; did you mean 'exact'"):
        find_score("exakt", {})
    with pytest.raises(UserError, match=r"'no_such:score' cannot be imported"):
        find_score("no_such:score", {})
    with pytest.raises(UserError, match=r"has shape \[2, 2\]; this model needs \[3, 4\]"):
        removal_sets(lambda _: torch.zeros(2, 2), situation(), [1], iterative=False)
    with pytest.raises(UserError, match=r"not a number for head 0 of layer 0"):
        removal_sets(lambda _: torch.full((3, 4), torch.nan), situation(), [1], iterative=False)


def test_columns_are_turned_as_their_measure_says(tmp_path: Path) -> None:
    run = Run(tmp_path, "run", "toy", "demo", "pretrained")
    columns = (Column("up", "up", keep="high"), Column("down", "down", keep="low"), Column("other", "other"))
    value_LHC = torch.arange(12, dtype=torch.float64).reshape(2, 2, 3)
    run.declare(Declaration("mine", "Mine", "nowhere:Mine", columns))
    # The last validation of a training; then the finished checkpoint, whatever its step.
    for factor, stage, step in ((3, TRAINING, 2), (2, TRAINING, 4), (1, CHECKPOINT, 3)):
        grid = HeadGrid("mine", columns, factor * value_LHC, value_LHC, torch.ones(2, 2, 3))
        run.add(run.rows(grid, stage, step))
        if factor == 3:
            continue
        scores = columns_of(run)
        for place, (name, sign) in enumerate((("up", 1), ("down", -1), ("other", 1))):
            assert (scores[f"mine/{name}"] == sign * factor * value_LHC[..., place].numpy()).all()


def test_tables_without_a_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"prune\.tables lists '.*nothing', which is not a run folder"):
        table_of(str(tmp_path / "nothing"))


def test_no_curve_is_without_controls() -> None:
    assert with_controls(["exact", "exact"]) == ["exact", "random", "reversed"]
    with pytest.raises(UserError, match=r"prune\.scores is \[random, reversed\], which are controls"):
        with_controls(["random", "reversed"])


def test_results_of_sets_are_those_of_single_passes() -> None:
    model = tiny_model("bert").double()
    sets = [frozenset({(0, 1)}), frozenset(), frozenset({(0, 1), (1, 2)}), frozenset({(0, 1)})]
    results = evaluate_sets(model, sets, batches(), TASK)
    assert results.loss_V == pytest.approx([naive_loss(model, heads) for heads in sets], abs=1e-5)
    baseline, _ = results.scores(ACCURACY)
    accuracy_V = (results.prediction_VN == results.label_N).mean(-1)
    assert baseline == (results.clean_N == results.label_N).mean()
    changes = results.estimates(ACCURACY, 0.95)
    assert [change.value for change in changes] == pytest.approx(accuracy_V - baseline)
    assert all(change.low <= change.value <= change.high for change in changes)


@pytest.mark.parametrize("family", ["bert", "distilbert", "mpnet", "modernbert"])
def test_cost_of_a_head_is_what_its_removal_saves(family: str) -> None:
    model = tiny_model(family, attention="eager")
    costs = cost(model, length=9)
    smaller = bs.remove_heads(model, [(0, 1), (1, 0), (1, 1), (2, 3)])
    inputs = {"input_ids": torch.full((1, 9), 5), "attention_mask": torch.ones(1, 9, dtype=torch.long)}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        smaller(**inputs)
    parameters = sum(parameter.numel() for parameter in smaller.parameters())
    assert costs.without(4) == (parameters, counter.get_total_flops())
