"""From judged rows to the grids of the head table."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from bertsecrets.ablation.judging import judged_grids, judged_rows
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every, every_head
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.data.task import Task
from bertsecrets.grid import Column
from bertsecrets.results.components import ALL_BUT_ONE


def row(kind: str, metric: str, layer: int, head: int, delta: float) -> dict[str, Any]:
    return {"kind": kind, "metric": metric, "layer": layer, "head": head, "delta": delta, "stderr": 0.1, "count": 30}


def test_single_heads_and_all_but_one_are_grids_with_a_column_for_each_metric() -> None:
    plan = Plan("zero", 2, 3, (*every_head(2, 3, [1]), *every(ALL_BUT_ONE, 2, 3, [1])))
    rows = [
        row(kind, metric, 1, head, number + head)
        for number, (kind, metric) in enumerate(
            [("head", "accuracy"), ("head", "f1"), ("all_but_one", "accuracy"), ("all_but_one", "f1")]
        )
        for head in range(3)
    ]
    alone, but_one = judged_grids(plan, [*rows, {**rows[0], "kind": "layer"}])
    assert alone.measure == but_one.measure == "ablation"
    assert alone.described == (
        Column("accuracy_zero", "change of accuracy without the head (zero)", "change of accuracy"),
        Column("f1_zero", "change of F1 without the head (zero)", "change of F1"),
    )
    assert but_one.columns == ("accuracy_zero_all_but_one", "f1_zero_all_but_one")
    for grid, first in ((alone, 0), (but_one, 2)):
        for index in range(2):
            np.testing.assert_array_equal(grid.value_LHC[1, :, index], first + index + np.arange(3.0))
        # Layer 0 was not disabled.
        assert grid.value_LHC[0].isnan().all()
        assert (grid.count_LHC[0] == 0).all()
        assert (grid.count_LHC[1] == 30).all()
        assert (grid.stderr_LHC[1] == 0.1).all()


@pytest.mark.parametrize("kind", ["layer", "group", "cumulative"])
def test_other_kinds_have_no_grid(kind: str) -> None:
    plan = Plan("uniform", 2, 3, tuple(every_head(2, 3)))
    assert judged_grids(plan, [row(kind, "accuracy", 0, 0, 0.1)]) == []


def test_changes_of_loss_and_logit_margin_have_the_limits_of_a_t_interval() -> None:
    """Against scipy's t test, by naive loops; in a screened sweep of estimates plus weighted errors."""
    generator = np.random.default_rng(0)
    label_N = generator.integers(0, 3, 20)
    clean_NC, exact_NVC, estimate_NVC = (generator.normal(size=shape) for shape in ((20, 3), (20, 2, 3), (20, 2, 3)))
    weight_NV = generator.choice([0.0, 1.0, 10.0], size=(20, 2))
    task = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))
    tensors = [torch.from_numpy(array).double() for array in (label_N, clean_NC, exact_NVC, weight_NV, estimate_NVC)]
    plan = Plan("uniform", 1, 2, tuple(every_head(1, 2)))
    identity = dict.fromkeys(("run", "model", "task", "init", "stage", "evaluation"), "") | {"step": 0}
    judging = AblationSettings(resamples=100, level=0.9).judging()
    rows = judged_rows(Outcomes(plan, torch.arange(20), *tensors), task, identity, judging)

    def loss(logits_C: Any, label: int) -> float:
        return float(np.log(np.exp(logits_C).sum()) - logits_C[label])

    def margin(logits_C: Any, label: int) -> float:
        return float(logits_C[label] - max(np.delete(logits_C, label)))

    for variant, row in enumerate(rows):
        for name, of in (("loss", loss), ("logit_margin", margin)):
            change_N = []
            for n, label in enumerate(label_N):
                estimate, exact = of(estimate_NVC[n, variant], label), of(exact_NVC[n, variant], label)
                change_N.append(estimate + weight_NV[n, variant] * (exact - estimate) - of(clean_NC[n], label))
            limits = stats.ttest_1samp(change_N, 0).confidence_interval(0.9)
            assert row[f"{name}_change"] == pytest.approx(np.mean(change_N))
            assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx(tuple(limits))


@pytest.mark.parametrize("correction", ["family_wise", "false_discovery"])
def test_rises_of_the_loss_are_judged_over_all_heads(correction: Any) -> None:
    """Against t tests of scipy and a step-down by naive loops over draws with the correlation of the changes."""
    generator = np.random.default_rng(1)
    shared_N, own_NV = generator.exponential(size=300), generator.normal(size=(300, 6))
    # Scores whose squared errors are these losses.
    label_N = generator.normal(size=300)
    loss_NV = (label_N**2)[:, None] + 2 + 0.8 * (shared_N[:, None] - 1) + own_NV + [0.0, 0.15, 0.3, -2.0, 0.1, 0.2]
    predicted_NV = label_N[:, None] + np.sqrt(loss_NV.clip(min=0))
    change_NV = loss_NV.clip(min=0) - label_N[:, None] ** 2 - 2
    clean_N = label_N + np.sqrt(label_N**2 + 2)
    task = Task(name="toy", metrics=("pearson",), texts=1, label_range=(-4.0, 4.0))
    tensors = [torch.from_numpy(array) for array in (label_N, clean_N[:, None], predicted_NV[..., None])]
    plan = Plan("uniform", 1, 6, tuple(every_head(1, 6)))
    identity = dict.fromkeys(("run", "model", "task", "init", "stage", "evaluation"), "") | {"step": 0}
    judging = AblationSettings(resamples=100, permutations=100, correction=correction).judging()
    rows = judged_rows(Outcomes(plan, torch.arange(300), *tensors), task, identity, judging)

    p_V = [stats.ttest_1samp(change_NV[:, v], 0, alternative="greater").pvalue for v in range(6)]
    draw_RV = generator.multivariate_normal(np.zeros(6), np.corrcoef(change_NV.T), size=200_000)
    adjusted, left, largest = dict.fromkeys(range(6), 0.0), list(range(6)), 0.0
    while left:
        best = min(left, key=lambda v: p_V[v])
        largest = max(largest, float((draw_RV[:, left].max(axis=1) >= stats.norm.isf(p_V[best])).mean()))
        adjusted[best] = largest
        left.remove(best)
    if correction == "false_discovery":
        adjusted = dict(enumerate(stats.false_discovery_control(p_V)))
    reach = stats.t.isf(stats.norm.sf(np.quantile(np.abs(draw_RV).max(axis=1), 0.95)), 299)
    for v, row in enumerate(rows):
        assert row["loss_baseline"] == pytest.approx(np.mean(label_N**2 + 2))
        assert row["p_loss_rise"] == pytest.approx(adjusted[v], abs=0.015, rel=0.1)
        for end, sign in (("low", -1), ("high", 1)):
            limit = change_NV[:, v].mean() + sign * reach * stats.sem(change_NV[:, v])
            assert row[f"loss_{end}_simultaneous"] == pytest.approx(
                limit, abs=0.02 * reach * stats.sem(change_NV[:, v])
            )
    assert {row["p_loss_rise"] <= 0.05 for row in rows} == {True, False}
