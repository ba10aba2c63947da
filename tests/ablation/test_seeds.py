"""Effects over seeds, from run folders made by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from references import metric_value
from reporting.finished_runs import make_run

from bertsecrets.ablation.comparison import compare_effects
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.seeds import Sweep, judge_over_seeds, over_seeds, read_sweep, stopped_early
from bertsecrets.data.task import task_from_config
from bertsecrets.errors import UserError
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.views import Comparison, MeasureView, Replicates

TASK = {
    "name": "toy",
    "metrics": ["accuracy"],
    "texts": 1,
    "labels": ["a", "b"],
    "training": {"learning_rate": 1e-5, "batch_size": 8, "max_epochs": 1, "max_length": 16},
}


def sweep(name: str, harm: list[float], seed: int, count: int = 800) -> Sweep:
    """A run whose head v harms a share ``harm[v]`` of the examples."""
    label_N = np.random.default_rng(0).integers(0, 2, count).astype(float)
    generator = np.random.default_rng(seed)
    clean_N = np.where(generator.random(count) < 0.85, label_N, 1 - label_N)
    harmed_VN = generator.random((len(harm), count)) < np.array(harm)[:, None]
    prediction_VN = np.where(harmed_VN, 1 - label_N, clean_N)
    rows: list[dict[str, Any]] = [
        {
            "metric": "accuracy",
            "level": 0.95,
            "false_discovery_rate": 0.05,
            "correction": "family_wise",
            "margin": 0.01,
            "layer": 0,
            "head": v,
            "low": -0.01,
            "high": 0.01,
            "verdict": "needed" if harm[v] >= 0.1 else "inconclusive",
        }
        for v in range(len(harm))
    ]
    return Sweep(name, rows, np.arange(count), label_N, clean_N, prediction_VN)


def test_what_one_seed_finds_replicates_or_not() -> None:
    harm = [[0.15, 0.2, 0.0], [0.16, 0.0, 0.0], [0.15, 0.0, 0.0], [0.14, 0.0, 0.0], [0.15, 0.0, 0.0]]
    sweeps = [sweep(f"s{i}", h, i) for i, h in enumerate(harm)]
    judged = judge_over_seeds(sweeps)
    assert judged.places == ((0, 0), (0, 1), (0, 2))
    assert judged.verdict == ("needed", "inconclusive", "inconclusive")
    assert judged.needed_somewhere == [0, 1]
    assert judged.replicated == judged.in_every_seed == [0]
    for v in range(3):
        changes = [
            metric_value("accuracy", s.label_N, s.prediction_VN[v]) - metric_value("accuracy", s.label_N, s.clean_N)
            for s in sweeps
        ]
        assert judged.effects.delta[v] == pytest.approx(np.mean(changes))
    # No prediction changes in any run: the interval keeps the width of the single runs'.
    assert judged.effects.high[2] - judged.effects.low[2] == pytest.approx(0.02, rel=1e-6)


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


def test_bad_input() -> None:
    one, other = sweep("one", [0.1], 0), sweep("other", [0.1], 1, count=700)
    with pytest.raises(UserError, match=r"Runs 'one' and 'other' disabled heads on different examples \(800 and 700\)"):
        judge_over_seeds([one, other])
    with pytest.raises(UserError, match="needs two seeds or more, but there is 1"):
        judge_over_seeds([one])


def test_sweeps_are_read_from_run_folders(tmp_path: Path) -> None:
    plan = Plan("uniform", 1, 2, tuple(every_head(1, 2)))
    views = []
    for seed in (0, 1):
        run = Run.open(
            make_run(
                tmp_path / str(seed),
                seed=seed,
                delta_LH=[[-0.1, 0.0]],
                significant_LH=[[True, False]],
                task_settings=TASK,
            )
        )
        label_N = torch.tensor([0, 1] * 10)
        clean_NC = torch.nn.functional.one_hot(label_N, 2).float()
        logits_NVC = clean_NC[:, None].repeat(1, 2, 1)
        logits_NVC[: 4 + seed, 0] = logits_NVC[: 4 + seed, 0].flip(-1)
        outcomes = Outcomes(plan, torch.arange(20), label_N.float(), clean_NC, logits_NVC)
        (run.folder / "ablation").mkdir()
        outcomes.write(run.folder / "ablation" / "training-00000009-uniform.safetensors", task_from_config(TASK))
        views.append(MeasureView(run, Declaration("ablation", "", "")))
    read = read_sweep(views[1], "head")
    assert read is not None
    assert read.label_N.tolist() == [0, 1] * 10
    assert (read.prediction_VN != read.clean_N).sum(-1).tolist() == [5, 0]
    judged = over_seeds(Replicates(views), "head")
    assert judged is not None
    assert judged.effects.delta.tolist() == pytest.approx([-4.5 / 20, 0.0])
    assert judged.single == (("needed", "inconclusive"),) * 2
    assert over_seeds(Replicates(views[:1]), "head") is None
    assert over_seeds(Replicates(views), "layer") is None
    section = compare_effects(Comparison({"a": Replicates(views)}))
    assert section is not None
    assert "heads that some single seed finds needed" in section.findings[-1]
    assert section.tables[-1].rows[0][:3] == ["a", "layer 0 · head 0", "2 of 2"]


def test_runs_that_stopped_early_are_named_and_left_out(tmp_path: Path) -> None:
    views = []
    for name in ("one", "other"):
        run = Run.open(make_run(tmp_path / name, delta_LH=[[-0.1, 0.0]], significant_LH=[[True, False]]))
        rows = run.ablation_table().rows()
        shares = {"one": (1.0, 1.0), "other": (0.5, 1.0)}[name]
        stopped = [{**row, "sweep": "exact", "evaluated": share} for row, share in zip(rows, shares, strict=True)]
        AblationTable.from_rows(stopped).write(run.ablation_path)
        views.append(MeasureView(run, Declaration("ablation", "", "")))
    assert stopped_early(Replicates(views)) == ["other"]
    section = compare_effects(Comparison({"a": Replicates(views)}))
    assert section is not None
    assert section.paragraphs[-1].startswith(
        "Left out of verdicts over seeds, as their heads do not share their examples"
    )
    assert section.paragraphs[-1].endswith("(ablation.looks): other.")
    without = compare_effects(Comparison({"a": Replicates(views[:1])}))
    assert without is not None
    assert not any("Left out" in text for text in without.paragraphs)
