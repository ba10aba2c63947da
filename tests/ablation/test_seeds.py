"""Effects over seeds, from run folders made by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ablation.analyses import JUDGED
from references import metric_value
from reporting.finished_runs import make_run
from scipy.stats import binom

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.seeds import RunSweep, effects, judge_over_seeds, over_seeds, read_sweep
from bertsecrets.ablation.significance import mcnemar_exact
from bertsecrets.data.task import task_from_config
from bertsecrets.errors import UserError
from bertsecrets.present.disabling_compared import compare_effects
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.views import Comparison, MeasureView, Replicates
from bertsecrets.statistics.intervals import paired_proportions

TASK = {
    "name": "toy",
    "metrics": ["accuracy"],
    "texts": 1,
    "labels": ["a", "b"],
    "training": {"learning_rate": 1e-5, "batch_size": 8, "max_epochs": 1, "max_length": 16},
}


def sweep(name: str, harm: list[float], seed: int, count: int = 800, **settings: Any) -> RunSweep:
    """A run whose head v harms a share ``harm[v]`` of the examples."""
    label_N = np.random.default_rng(0).integers(0, 2, count).astype(float)
    generator = np.random.default_rng(seed)
    clean_N = np.where(generator.random(count) < 0.85, label_N, 1 - label_N)
    harmed_VN = generator.random((len(harm), count)) < np.array(harm)[:, None]
    prediction_VN = np.where(harmed_VN, 1 - label_N, clean_N)
    lost_V, won_V = (
        (((clean_N == label_N) == right) & ((prediction_VN == label_N) != right)).sum(axis=1) for right in (True, False)
    )
    p_V = mcnemar_exact(lost_V, won_V)
    low_V, high_V = paired_proportions(lost_V, won_V, count)(np.full(len(harm), 0.025))
    rows: list[dict[str, Any]] = [
        {
            **JUDGED,
            "layer": 0,
            "head": v,
            "low": low_V[v],
            "high": high_V[v],
            "p_value": p_V[v],
            "verdict": "needed" if harm[v] >= 0.1 else "inconclusive",
            **settings,
        }
        for v in range(len(harm))
    ]
    return RunSweep(label_N, clean_N, prediction_VN, name=name, rows=rows, index_N=np.arange(count))


def test_what_one_seed_finds_replicates_or_not() -> None:
    harm = [[0.15, 0.2, 0.0], [0.16, 0.0, 0.0], [0.15, 0.0, 0.0], [0.14, 0.0, 0.0], [0.15, 0.0, 0.0]]
    sweeps = [sweep(f"s{i}", h, i) for i, h in enumerate(harm)]
    judged = judge_over_seeds(sweeps)
    assert judged.components == ((0, 0), (0, 1), (0, 2))
    assert judged.verdict == ("needed", "inconclusive", "dispensable")
    # All five seeds lose much without head 0, one seed without head 1, none without head 2.
    assert judged.needed_in.tolist() == [5, 1, 0]
    assert judged.spared_in.tolist() == [0, 4, 5]
    for v in range(3):
        changes = [
            metric_value("accuracy", s.label_N, s.prediction_VN[v]) - metric_value("accuracy", s.label_N, s.clean_N)
            for s in sweeps
        ]
        assert judged.effects.delta[v] == pytest.approx(np.mean(changes))
    # No prediction changes in any run: the interval keeps the width of the single runs'.
    width = np.mean([s.rows[2]["high"] - s.rows[2]["low"] for s in sweeps])
    low_V, high_V = judged.effects.limits
    assert high_V[2] - low_V[2] == pytest.approx(width, rel=1e-6)


def test_the_spread_between_seeds_counts() -> None:
    alike = judge_over_seeds([sweep(f"s{i}", [0.1], i) for i in range(4)])
    apart = judge_over_seeds([sweep(f"s{i}", [h], i) for i, h in enumerate([0.0, 0.05, 0.15, 0.2])])
    assert apart.effects.stderr[0] > 3 * alike.effects.stderr[0]
    assert alike.verdict == ("needed",)
    assert apart.verdict == ("inconclusive",)


def test_the_error_is_that_of_other_seeds_and_other_examples() -> None:
    sweeps = [sweep(f"s{i}", [0.1, h], i, count=300) for i, h in enumerate([0.0, 0.02, 0.05, 0.1, 0.2])]
    change_SVN = np.stack(
        [(s.prediction_VN == s.label_N).astype(float) - (s.clean_N == s.label_N).astype(float) for s in sweeps]
    )
    stderr_V = judge_over_seeds(sweeps).effects.stderr
    for v in range(2):
        covariance_SS = np.cov(change_SVN[:, v]) / 300
        shared = np.mean([covariance_SS[i, j] for i in range(5) for j in range(5) if i != j])
        variance = change_SVN[:, v].mean(axis=1).var(ddof=1) / 5 + max(shared, 0)
        assert stderr_V[v] == pytest.approx(np.sqrt(variance), rel=0.04)


def test_seeds_that_lose_the_same_examples_tell_no_more_than_one() -> None:
    """Two of 408 lost answers, the same in five seeds, and none: no surer than the binomial test of one seed."""
    label_N, rows = np.arange(408) % 2.0, [{**sweep("", [0.0], 0).rows[0], "head": v} for v in range(2)]
    prediction_VN = np.stack([np.where(np.arange(408) < 2, 1 - label_N, label_N), label_N])
    seeds = [
        RunSweep(label_N, label_N, prediction_VN, name=str(s), rows=rows, index_N=np.arange(408)) for s in range(5)
    ]
    p_V = judge_over_seeds(seeds).effects.p_margin
    for p, lost in zip(p_V, (2, 0), strict=True):
        assert p == pytest.approx(binom.cdf(lost, 408, 0.01), rel=0.03)


def test_no_limit_lies_beyond_the_largest_change_that_there_can_be() -> None:
    judged = judge_over_seeds([sweep("needed", [0.6], 1), sweep("not needed", [0.0], 2)])
    low, high = (float(limit[0]) for limit in judged.effects.limits)
    # Two seeds would leave an interval of several hundred points.
    assert (low, high) == (-1.0, 1.0)


def test_bad_input() -> None:
    one, other = sweep("one", [0.1], 0), sweep("other", [0.1], 1, count=700)
    with pytest.raises(UserError, match=r"Runs 'one' and 'other' disabled heads on different examples \(800 and 700\)"):
        judge_over_seeds([one, other])
    with pytest.raises(UserError, match="needs at least two seeds, but there is 1"):
        judge_over_seeds([one])


def test_seeds_that_differ_in_how_they_were_judged_are_judged_as_the_first_and_named() -> None:
    first, second = sweep("one", [0.0, 0.1], 0), sweep("other", [0.0, 0.1], 1, margin=0.2)
    judged = judge_over_seeds([first, second])
    assert judged.note == (
        "The runs differ in margin (0.01 in 'one', 0.2 in 'other'); the verdicts over seeds use the settings of 'one' "
        "for all of them."
    )
    assert judged.spared_in[1] == 0
    assert judge_over_seeds([second, first]).spared_in.tolist() == [2, 2]
    assert judge_over_seeds([first, first]).note == ""
    screened = [sweep(name, [0.0], 0, sweep="screened") for name in ("one", "other")]
    note = "Changes of prediction that a screened sweep did not evaluate are not counted over seeds."
    assert judge_over_seeds(screened).note == note
    without = judge_over_seeds(
        [sweep(name, [0.0, 0.3], seed, margin=None) for seed, name in enumerate(("a", "b", "c"))]
    )
    assert without.verdict == ("inconclusive", "needed")
    assert not without.spared_in.any()
    # The number of resamples matters for standard errors of a single run alone.
    assert judge_over_seeds([first, sweep("more", [0.0, 0.1], 1, resamples=9000)]).note == ""


@pytest.mark.parametrize("count", [2, 12, 29])
def test_few_examples_give_wide_limits_and_no_verdict(count: int) -> None:
    """Five seeds of few examples, with equal predictions and without: sane numbers, and nothing shown."""
    judged = judge_over_seeds([sweep(f"s{i}", [0.0, 0.02], i, count=count) for i in range(5)])
    assert judged.verdict == ("inconclusive", "inconclusive")
    assert not judged.needed_in.any()
    assert not judged.spared_in.any()
    low_V, high_V = judged.effects.limits_simultaneous
    assert np.isfinite([low_V, high_V]).all()
    assert (high_V >= low_V).all()


def test_a_score_that_is_undefined_in_a_seed_shows_nothing() -> None:
    """A correlation with constant predictions is undefined: of one seed, or in some resamples."""
    sweeps = []
    for seed in range(3):
        generator = np.random.default_rng(seed)
        label_N = np.random.default_rng(9).standard_normal(40)
        clean_N = label_N + 0.3 * generator.standard_normal(40)
        constant_N, once_N = np.zeros(40), np.where(np.arange(40) == 7, 1.0, 0.0)
        prediction_VN = np.stack([constant_N if seed == 1 else clean_N, once_N, clean_N])
        rows = [
            {**sweep("", [0.0], 0).rows[0], "metric": "pearson", "head": v, "low": -0.1, "high": 0.1, "p_value": p}
            for v, p in enumerate([math.nan if seed == 1 else 1.0, 0.001, 1.0])
        ]
        sweeps.append(RunSweep(label_N, clean_N, prediction_VN, name=f"s{seed}", rows=rows, index_N=np.arange(40)))
    judged = judge_over_seeds(sweeps)
    assert np.isnan(judged.effects.delta[0])
    assert judged.verdict[0] == "inconclusive"
    assert judged.needed_in[:2].tolist() == [0, 3]
    assert np.isfinite(judged.effects.stderr[1:]).all()


def test_ties_everywhere() -> None:
    """Seeds and heads that are all the same: every head has the same numbers and the same verdict."""
    judged = judge_over_seeds([sweep("same", [0.0] * 6, 0)] * 4)
    assert len(set(judged.verdict)) == 1
    assert np.ptp(judged.effects.delta) == np.ptp(judged.effects.stderr) == 0
    assert len(set(judged.spared_in.tolist())) == 1


def kept_runs(folder: Path, examples: list[int]) -> list[MeasureView]:
    """A run with each number of examples that kept its predictions: seed s loses 4 + s of them without head 0."""
    plan = Plan("uniform", 1, 2, tuple(every_head(1, 2)))
    views = []
    for seed, count in enumerate(examples):
        run = Run.open(
            make_run(
                folder / str(seed),
                seed=seed,
                delta_LH=[[-0.1, 0.0]],
                significant_LH=[[True, False]],
                task_settings=TASK,
            )
        )
        label_N = torch.tensor([0, 1] * (count // 2))
        clean_NC = torch.nn.functional.one_hot(label_N, 2).float()
        logits_NVC = clean_NC[:, None].repeat(1, 2, 1)
        logits_NVC[: 4 + seed, 0] = logits_NVC[: 4 + seed, 0].flip(-1)
        outcomes = Outcomes(plan, torch.arange(count), label_N.float(), clean_NC, logits_NVC)
        (run.folder / "ablation").mkdir()
        outcomes.write(run.folder / "ablation" / "training-00000009-uniform.safetensors", task_from_config(TASK))
        views.append(MeasureView(run, Declaration("ablation", "", "")))
    return views


def test_sweeps_are_read_from_run_folders(tmp_path: Path) -> None:
    views = kept_runs(tmp_path, [20, 20, 20])
    read = read_sweep(views[1], "head")
    assert read.label_N.tolist() == [0, 1] * 10
    assert (read.prediction_VN != read.clean_N).sum(-1).tolist() == [5, 0]
    judged = over_seeds(Replicates(views), "head")
    assert judged.effects.delta.tolist() == pytest.approx([-5 / 20, 0.0])
    assert judged.single == (("needed", "inconclusive"),) * 3
    effect = effects(Replicates(views), "head")
    assert effect.judged
    assert effect.needed_LH.tolist() == [[True, False]]
    assert over_seeds(Replicates(views[:1]), "head") is None
    assert over_seeds(Replicates(views), "layer") is None
    section = compare_effects(Comparison({"a": Replicates(views)}))
    assert section.tables[0].rows == [
        ["a", "3", "needed", "1", "1", "1", "1"],
        ["a", "3", "can be spared", "0", "0", "0", "0"],
    ]
    assert section.tables[1].rows[0][:3] == ["a", "layer 0 · head 0", "3 of 3"]


def test_seeds_with_other_examples_are_a_sentence_on_the_page(tmp_path: Path) -> None:
    views = kept_runs(tmp_path, [20, 24])
    section = compare_effects(Comparison({"a": Replicates(views)}))
    assert any("different examples (20 and 24)" in text for text in section.findings)
    effect = effects(Replicates(views), "head")
    assert not effect.judged
    assert not effect.needed_LH.any()
