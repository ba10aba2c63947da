"""The numbers of the seed study against naive loops, scipy and planted truths."""

from collections.abc import Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reporting.finished_runs import make_run
from scipy import stats
from statsmodels.stats.multitest import multipletests

from benchmarks import seed_study
from bertsecrets.ablation.seeds import Sweep
from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.reporting.runs import find_runs


def sweep(name: str, verdicts: Sequence[str], change_V: Sequence[float] = (), count: int = 1000) -> Sweep:
    """A run of the given verdicts whose variants lose the given shares of the examples, all of which the model gets right."""
    rows: list[dict[str, Any]] = [
        {
            "metric": "accuracy",
            "margin": 0.01,
            "level": 0.95,
            "false_discovery_rate": 0.05,
            "verdict": verdict,
            "layer": 0,
            "head": v,
        }
        for v, verdict in enumerate(verdicts)
    ]
    prediction_VN = np.array([np.arange(count) < round(-change * count) for change in change_V], float)
    return Sweep(name, rows, np.arange(count), np.zeros(count), np.zeros(count), prediction_VN)


def test_the_jackknife_of_a_mean_is_students_interval() -> None:
    value_S = np.random.default_rng(0).normal(size=10)
    whole, low, high = seed_study.jackknife(lambda chosen: float(value_S[chosen].mean()), 10)
    expected = stats.t.interval(0.95, 9, value_S.mean(), stats.sem(value_S))
    assert (whole, low, high) == pytest.approx((value_S.mean(), *expected))


def test_limits_over_pairs_hold_the_truth() -> None:
    """A number of two seeds whose mean over all seeds that there could be is 1."""
    generator = np.random.default_rng(1)
    hits = []
    for _ in range(600):
        effect_S = 1 + 0.5 * generator.normal(size=10)
        mean, low, high = seed_study.over_pairs(np.outer(effect_S, effect_S))
        assert mean == pytest.approx(np.mean([a * b for a, b in permutations(effect_S, 2)]))
        hits.append(low <= 1 <= high)
    assert 0.92 <= np.mean(hits) <= 0.98


def test_agreement_of_each_pair() -> None:
    generator = np.random.default_rng(2)
    value_SV = generator.integers(0, 9, (5, 36)) + np.repeat([0.0, 3.0, 20.0], 12)
    value_SV[:, 30] = -1
    result = seed_study.agreement(value_SV, 3, high=False)
    pairs = list(permutations(range(5), 2))
    rhos = [stats.spearmanr(value_SV[a], value_SV[b]).statistic for a, b in pairs]
    assert result["spearman"][0] == pytest.approx(np.mean(rhos))
    assert result["lowest"] == pytest.approx(min(rhos))
    parts = [slice(12 * layer, 12 * layer + 12) for layer in range(3)]
    within = [stats.spearmanr(value_SV[a, part], value_SV[b, part]).statistic for a, b in pairs for part in parts]
    assert result["within_layers"][0] == pytest.approx(np.mean(within))
    top = [set(sorted(range(36), key=lambda v, seed=seed: value_SV[seed, v])[: seed_study.TOP]) for seed in range(5)]
    assert result["top_shared"][0] == pytest.approx(np.mean([len(top[a] & top[b]) for a, b in pairs]))
    assert result["top_heads"] == [((2, 6), 5)]
    assert result["top_layers"] == [(0, 5)]
    assert seed_study.agreement(value_SV, 3, high=True)["top_layers"] == [(2, 5)]


@pytest.mark.parametrize("own", [0.0, 1.0])
def test_halves_tell_seeds_that_differ_from_noise_of_the_examples(own: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_study, "HALVES", 15)
    generator = np.random.default_rng(3)
    effect_SV = generator.normal(size=40) + own * generator.normal(size=(6, 40))
    value_SNV = effect_SV[:, None] + 10 * generator.normal(size=(6, 200, 40))
    result = seed_study.over_halves(lambda half_N: value_SNV[:, half_N].mean(1), 200)
    generator = np.random.default_rng(0)
    rhos, same = np.zeros((6, 6)), []
    for _ in range(seed_study.HALVES):
        one_N = generator.permutation(200) < 100
        one_SV, other_SV = value_SNV[:, one_N].mean(1), value_SNV[:, ~one_N].mean(1)
        same += [stats.spearmanr(a, b).statistic for half in (one_SV, other_SV) for a, b in combinations(half, 2)]
        rhos += [[stats.spearmanr(a, b).statistic / seed_study.HALVES for b in other_SV] for a in one_SV]
    assert result["same_seed"][0] == pytest.approx(np.trace(rhos) / 6)
    assert result["other_seed"][0] == pytest.approx((rhos.sum() - np.trace(rhos)) / 30)
    assert result["difference"][0] == pytest.approx(result["same_seed"][0] - result["other_seed"][0])
    assert result["same_half"][0] == pytest.approx(np.mean(same))
    assert (result["difference"][1] > 0) == (own > 0)


def test_verdicts_on_the_same_examples_are_t_tests_over_seeds() -> None:
    change_SV = np.array(
        [[-0.1, 0.0, -0.004, -0.03, -0.02], [-0.12, 0.0, -0.006, 0.0, -0.02], [-0.11, 0.0, -0.005, -0.01, -0.02]]
    )
    sweeps = [sweep(str(seed), ["inconclusive"] * 5, change_V) for seed, change_V in enumerate(change_SV)]
    loss_V = stats.ttest_1samp(change_SV[:, [0, 2, 3]], 0, alternative="less").pvalue
    p_V = multipletests([*loss_V, 1, 0], method="holm")[1]
    above_V = stats.ttest_1samp(change_SV[:, [0, 2, 3]], -0.01, alternative="greater").pvalue
    above_V = multipletests([*above_V, 0, 1], method="fdr_bh")[1]
    expected = [
        "dispensable" if above <= 0.05 else "needed" if p <= 0.05 else "inconclusive"
        for p, above in zip(p_V, above_V, strict=True)
    ]
    result = seed_study.judge_on_these(sweeps)
    # Variants without any spread have the error of rounding to one prediction: no change, and a loss beyond the margin.
    assert [result[v] for v in (0, 2, 3, 1, 4)] == expected
    assert result == ("needed", "dispensable", "dispensable", "inconclusive", "needed")


def test_findings_survive_by_the_verdict_of_the_other_seeds_only() -> None:
    needed, dispensable, unclear = "needed", "dispensable", "inconclusive"
    single = [
        [needed, dispensable, dispensable, unclear],
        [needed, dispensable, unclear, unclear],
        [needed, unclear, needed, needed],
        [unclear, dispensable, unclear, needed],
    ]
    sweeps = [sweep(str(seed), verdicts) for seed, verdicts in enumerate(single)]

    def majority(chosen: Sequence[Sweep]) -> tuple[str, ...]:
        columns = zip(*([row["verdict"] for row in one.rows] for one in chosen), strict=True)
        return tuple(next((v for v in set(column) if column.count(v) > len(chosen) / 2), unclear) for column in columns)

    result = seed_study.survival(sweeps, majority)
    rest = [majority([other for other in sweeps if other is not one]) for one in sweeps]
    assert rest[0] == (needed, dispensable, unclear, needed)
    for verdict in (needed, dispensable):
        pairs = [
            (a == verdict, b == verdict)
            for one, others in zip(single, rest, strict=True)
            for a, b in zip(one, others, strict=True)
        ]
        assert result[verdict]["survives"][0] == pytest.approx(np.mean([b for a, b in pairs if a]))
        assert result[verdict]["without"] == pytest.approx(np.mean([b for a, b in pairs if not a]))
        assert result[verdict]["missed"] == pytest.approx(np.mean([not a for a, b in pairs if b]))
    assert result["met"][needed] == {needed: 3, dispensable: 0, unclear: 3}
    assert sum(sum(others.values()) for others in result["met"].values()) == 16
    for verdict in (needed, dispensable):
        again = [
            single[b][v] == verdict for a, b in permutations(range(4), 2) for v in range(4) if single[a][v] == verdict
        ]
        assert seed_study.found_again(sweeps, verdict)[0] == pytest.approx(np.mean(again))  # type: ignore[index]
    assert seed_study.found_again([sweep("a", [unclear]), sweep("b", [unclear])], needed) is None


def test_main_patterns_of_seeds(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    share_SPH = generator.dirichlet(np.ones(5), (4, 12)).transpose(0, 2, 1)
    before_PH = generator.dirichlet(np.ones(5), 12).T
    folders = []
    for seed in range(4):
        stages = {"training": share_SPH[seed]} | ({"initial": before_PH} if seed == 2 else {})
        measured = [
            (stage, "patterns", {name: share_H.reshape(2, 6) for name, share_H in zip(PATTERNS, share_PH, strict=True)})
            for stage, share_PH in stages.items()
        ]
        folders.append(make_run(tmp_path / str(seed), seed=9 - seed, measured=measured))
    seeds = seed_study.by_task(find_runs([str(folder) for folder in folders])[0])["mrpc"]
    assert list(seeds) == [6, 7, 8, 9]
    result = seed_study.patterns([views["patterns"] for views in seeds.values()])
    main_SH, before_H = share_SPH.argmax(1), before_PH.argmax(0)
    pairs = list(permutations(range(4), 2))
    assert result["same"][0] == pytest.approx(np.mean([(main_SH[a] == main_SH[b]).mean() for a, b in pairs]))
    assert result["same_in_all"] == pytest.approx(np.mean([len(set(main_S)) == 1 for main_S in main_SH.T]))
    assert result["new"][0] == pytest.approx(np.mean([(main_H != before_H).sum() for main_H in main_SH]))
    again = [main_SH[b, h] == main_SH[a, h] for a, b in pairs for h in range(12) if main_SH[a, h] != before_H[h]]
    assert result["new_again"][0] == pytest.approx(np.mean(again))
    kappas = []
    for a, b in pairs:
        share_aP, share_bP = ([(main_SH[one] == p).mean() for p in range(5)] for one in (a, b))
        chance = np.dot(share_aP, share_bP)
        kappas.append(((main_SH[a] == main_SH[b]).mean() - chance) / (1 - chance))
    assert result["kappa"][0] == pytest.approx(np.mean(kappas))
    assert result["shares"]["block"]["share"][0] == pytest.approx(share_SPH[:, PATTERNS.index("block")].mean())


def test_runs_that_cannot_be_studied_are_refused(tmp_path: Path) -> None:
    folders = [str(make_run(tmp_path / str(seed), seed=seed)) for seed in range(4)]
    with pytest.raises(UserError, match="mrpc has runs of 3 seeds, but 4 or more are needed"):
        seed_study.by_task(find_runs(folders[:3])[0])
    other = str(make_run(tmp_path / "random", seed=5, init="random_normal"))
    with pytest.raises(UserError, match="The runs of mrpc are of different models"):
        seed_study.by_task(find_runs([*folders, other])[0])
    again = str(make_run(tmp_path / "again", seed=2))
    with pytest.raises(UserError, match="Two trainings on mrpc have seed 2"):
        seed_study.by_task(find_runs([*folders, again])[0])
    with pytest.raises(UserError, match="Seed 0 has no ablation; give a run with it"):
        seed_study.of_task(seed_study.by_task(find_runs(folders)[0])["mrpc"])
