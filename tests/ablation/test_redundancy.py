"""Redundancy: interactions against a loop over resamples, the rule, and simulated groups."""

from typing import Any

import numpy as np
import pytest
from references import metric_value

from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.redundancy import groups_of, interactions, is_redundant, p_of_controls, redundancy
from bertsecrets.ablation.verdicts import Judging, judge
from bertsecrets.task_heads import METRICS


def test_an_interaction_is_the_joint_effect_beyond_the_sum() -> None:
    generator = np.random.default_rng(0)
    label_N = generator.integers(0, 2, 60).astype(float)
    prediction_VN = np.where(generator.random((6, 60)) < 0.2, 1 - label_N, label_N)
    clean_N, together_N, *alone = prediction_VN
    for metric in ("accuracy", "f1"):
        change = [
            metric_value(metric, label_N, p) - metric_value(metric, label_N, clean_N) for p in (together_N, *alone)
        ]
        paired = PairedPredictions(label_N, clean_N, np.stack([together_N, *alone]))
        estimate_G, *limits, p_G = interactions(
            METRICS[metric], paired, [len(alone)], Judging(level=0.9, resamples=300)
        )
        assert estimate_G[0] == pytest.approx(change[0] - sum(change[1:]), abs=1e-12)
        drawn_RN = np.random.default_rng([0, 0]).multinomial(60, np.full(60, 1 / 60), size=250)
        drawn_RN = np.concatenate([drawn_RN, _second_chunk(60)])
        resampled = []
        for weight_N in drawn_RN:
            at = np.repeat(np.arange(60), weight_N)
            scores = [metric_value(metric, label_N[at], p[at]) for p in (clean_N, together_N, *alone)]
            resampled.append(scores[1] - scores[0] - sum(score - scores[0] for score in scores[2:]))
        assert [limit_G[0] for limit_G in limits] == pytest.approx(list(np.quantile(resampled, [0.05, 0.95])), abs=1e-9)
        assert p_G[0] == pytest.approx((sum(i >= -1e-12 for i in resampled) + 1) / 301)


def _second_chunk(count: int) -> Any:
    generator = np.random.default_rng([0, 0])
    generator.multinomial(count, np.full(count, 1 / count), size=250)
    return generator.multinomial(count, np.full(count, 1 / count), size=50)


@pytest.mark.parametrize(
    ("together", "but_one", "p_interaction", "p_controls", "expected"),
    [
        ("needed", ["dispensable"] * 3, 0.01, 0.05, True),
        ("inconclusive", ["dispensable"] * 3, 0.01, 0.05, False),
        ("needed", ["dispensable", "inconclusive"], 0.01, 0.05, False),
        ("needed", [], 0.01, 0.05, False),
        ("needed", ["dispensable"] * 2, 0.2, 0.05, False),
        ("needed", ["dispensable"] * 2, 0.01, 0.1, False),
        ("needed", ["dispensable"] * 2, 0.01, float("nan"), False),
        ("needed", ["dispensable"] * 2, float("nan"), 0.05, False),
    ],
)
def test_redundant_needs_everything(
    together: str, but_one: list[str], p_interaction: float, p_controls: float, expected: bool
) -> None:
    assert is_redundant(together, but_one, p_interaction, p_controls, 0.05) is expected


def test_controls_are_judged_only_if_there_are_enough() -> None:
    assert np.isnan(p_of_controls(-0.5, [0.0] * 18))
    assert p_of_controls(-0.5, [0.0] * 19) == pytest.approx(0.05)
    assert p_of_controls(-0.5, [0.0] * 18 + [-0.6]) == pytest.approx(0.1)


def row(variant: str, kind: str, heads: str, **other: Any) -> dict[str, Any]:
    return {"variant": variant, "kind": kind, "heads": heads, "num_heads": heads.count(" ") + 1, **other}


def test_parts_of_a_group() -> None:
    group, pair = row("g", "group", "0-1 1-0 1-2"), row("p", "group", "0-1 1-0")
    singles = [row(head, "head", head) for head in ("0-1", "1-0", "1-2")]
    rest = [row(f"but{i}", "group_but_one", heads) for i, heads in enumerate(["1-0 1-2", "0-1 1-2", "0-1 1-0"])]
    controls = [row("r0", "random", "0-0 1-1 1-2"), row("r1", "random", "0-0 1-1"), row("r2", "random", "0-1 1-0 1-2")]
    three, two = groups_of([group, pair, *singles, *rest, *controls])
    assert [r["variant"] for r in three.alone] == ["0-1", "1-0", "1-2"]
    assert [r["variant"] for r in three.but_one] == ["but0", "but1", "but2"]
    assert [r["variant"] for r in three.controls] == ["r0"]
    assert [r["variant"] for r in two.but_one] == ["1-0", "0-1"]
    assert [r["variant"] for r in two.controls] == ["r1"]
    assert groups_of([group, *singles[:2], *rest]) == []
    (incomplete,) = groups_of([group, *singles, *rest[1:]])
    assert incomplete.but_one == []


def test_a_pair_that_can_replace_each_other_is_redundant() -> None:
    generator = np.random.default_rng(0)
    label_N = generator.integers(0, 2, 1000).astype(float)
    harmed_N = np.where(generator.random(1000) < 0.1, 1 - label_N, label_N)
    judged = {"delta": 0.0, "verdict": "dispensable"}
    rows = [
        row("a", "head", "0-0", **judged),
        row("b", "head", "0-1", **judged),
        row("g", "group", "0-0 0-1", delta=-0.1, verdict="needed"),
        *(row(f"r{i}", "random", f"0-{i + 2} 0-{i + 3}", **judged) for i in range(20)),
    ]
    paired = PairedPredictions(label_N, label_N, np.stack([label_N, label_N, harmed_N]))
    columns = redundancy(rows, METRICS["accuracy"], paired, ["a", "b", "g"], Judging(resamples=200))
    assert columns.keys() == {"g"}
    assert columns["g"]["redundant"] is True
    assert columns["g"]["interaction"] == pytest.approx((harmed_N == label_N).mean() - 1)
    assert columns["g"]["p_controls"] == pytest.approx(1 / 21)
    assert redundancy(rows[:2], METRICS["accuracy"], paired, ["a", "b", "g"], Judging(resamples=200)) == {}


def called_redundant(simulations: int, replaceable: bool, count: int = 1000, heads: int = 3) -> float:
    """Share of groups called redundant whose heads can replace each other, so that all must be disabled for harm, or
    whose harms add up.

    The margin is wide and random groups are harmless, so that nothing but the interaction can speak against redundancy.
    """
    called = 0
    generator = np.random.default_rng(5)
    everyone = list(range(heads))
    subsets = [everyone, *([head] for head in everyone), *([o for o in everyone if o != head] for head in everyone)]
    for _ in range(simulations):
        label_N = (generator.random(count) < 0.6).astype(float)
        clean_N = np.where(generator.random(count) < 0.85, label_N, 1 - label_N)
        fragile_N = (clean_N == label_N) & (generator.random(count) < 0.05)
        owner_N = generator.integers(0, heads, count)
        harmed_VN = np.stack(
            [
                fragile_N & (len(disabled) == heads if replaceable else np.isin(owner_N, disabled))
                for disabled in subsets
            ]
        )
        # Every variant flips some predictions at random, too.
        flipped_VN = harmed_VN ^ (generator.random(harmed_VN.shape) < 0.005)
        paired = PairedPredictions(label_N, clean_N, np.where(flipped_VN, 1 - clean_N, clean_N))
        judged = judge(METRICS["accuracy"], paired, Judging(margin=0.05, resamples=100))
        *_, p_G = interactions(METRICS["accuracy"], paired.of(range(heads + 1)), [heads], Judging(resamples=500))
        called += is_redundant(
            "needed" if judged.significant[0] and judged.delta[0] < 0 else judged.verdict[0],
            judged.verdict[heads + 1 :],
            float(p_G[0]),
            p_of_controls(float(judged.delta[0]), list(generator.normal(0, 0.002, 20))),
            0.05,
        )
    return called / simulations


def test_added_harm_is_rarely_called_redundant() -> None:
    assert called_redundant(12, replaceable=False) <= 0.09


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_added_harm_is_not_redundant_and_replaceable_heads_are() -> None:
    assert called_redundant(500, replaceable=False) <= 0.05
    assert called_redundant(100, replaceable=True) >= 0.8
