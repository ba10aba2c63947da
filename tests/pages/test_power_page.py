"""Plans from folders of runs and from notebooks: the answer, its page, and what cannot be planned."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import bertsecrets as bs
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.planner import TIMES
from bertsecrets.ablation.rows import ABLATION, Swept
from bertsecrets.data.task import task_from_config
from bertsecrets.errors import UserError
from bertsecrets.pages.power_page import Costs, PowerPlan, plan_runs
from bertsecrets.results.run import Run
from bertsecrets.settings import CONF
from tests.reporting.finished_runs import make_run

LAYERS, HEADS, COUNT = 2, 4, 408


def disabled(folder: Path, seed: int = 1, flips: int = 3, count: int = COUNT) -> str:
    """A run whose heads each lose and win up to ``flips`` examples of ``count``."""
    task = OmegaConf.to_container(OmegaConf.load(CONF / "task" / "sst2.yaml"))
    assert isinstance(task, dict)
    make_run(folder, seed=seed, delta_LH=np.zeros((LAYERS, HEADS)), task="sst2", task_settings=task)
    generator = np.random.default_rng(seed)
    label_N = torch.arange(count) % 2
    clean_N = torch.where(torch.arange(count) < 0.8 * count, label_N, 1 - label_N)
    class_NV = clean_N[:, None].repeat(1, LAYERS * HEADS)
    for column in range(LAYERS * HEADS):
        moved = generator.choice(count, generator.integers(flips + 1), replace=False)
        class_NV[moved, column] = 1 - class_NV[moved, column]
    logits = torch.nn.functional.one_hot
    plan = Plan("uniform", LAYERS, HEADS, tuple(every_head(LAYERS, HEADS)))
    outcomes = Outcomes(plan, torch.arange(count), label_N.float(), logits(clean_N).float(), logits(class_NV).float())
    outcomes.write(folder / "ablation" / "training-00000009-uniform.safetensors", task_from_config(task))
    return str(folder)


def test_a_plan_of_a_run_answers_draws_and_is_written(tmp_path: Path) -> None:
    plan = bs.plan(disabled(tmp_path / "run"), repeats=20)
    frame = plan.to_pandas()
    settled = frame[frame["goal"] == "settled"]
    assert settled["examples"].tolist() == [round(COUNT * times) for times in TIMES]
    # What the pilot left open its own examples do not settle, so that more are promised than there are.
    assert settled["power"].iloc[0] == 0
    low, high = plan.planned.examples_range()
    assert COUNT < low <= plan.planned.examples(plan.planned.settled[1]) <= high
    assert frame["power"].between(0, 1).all()
    names = ["needed", "can be spared", "redundant", "pruning", "a rank correlation"]
    (table,) = plan.report.sections[1].tables
    assert all(row[0].startswith(name) for name, row in zip(names, table.rows, strict=True))
    (axes, _) = plan.plot().axes
    assert [text.get_text() for text in axes.texts] == [f"{100 * power:.0f} %" for power in settled["power"]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1 seed, 8 open"]
    assert "To settle 80 % of the 8 heads" in plan.write(tmp_path).read_text("utf-8")
    assert json.loads((tmp_path / "plan.json").read_text("utf-8"))["undecided"] == 8
    # Half the margin takes more.
    half = bs.plan(tmp_path / "run", margin=0.5, repeats=20)
    power, of_half = (each.planned.goals["spared"] for each in (plan, half))
    assert half.planned.examples(of_half) > plan.planned.examples(power)


def test_seeds_are_a_second_axis_and_must_differ(tmp_path: Path) -> None:
    runs = [disabled(tmp_path / f"run{seed}", seed) for seed in (1, 2, 3)]
    plan = plan_runs(runs, repeats=20)
    assert set(plan.planned.settled) == {1, 2, 3, 5, 10}
    assert "Over seeds, " in repr(plan)
    with pytest.raises(UserError, match="2 runs have 1 different seeds"):
        plan_runs([runs[0], disabled(tmp_path / "again", 1)])
    with pytest.raises(UserError, match="disabled heads on different examples"):
        plan_runs([runs[0], disabled(tmp_path / "other", 4, count=100)])


def test_the_cheaper_of_seeds_and_examples_depends_on_what_they_cost(tmp_path: Path) -> None:
    """A run of 3.5 seconds, of which its sweep took 1.5; 3 seeds need 8 times the examples that 5 need."""
    runs = [disabled(tmp_path / f"run{seed}", seed) for seed in (1, 2, 3)]
    assert "on this machine" not in repr(plan_runs(runs, repeats=20))
    for run in runs:
        Run.open(Path(run)).write_rows(
            ABLATION, "training", 9, [Swept("uniform", "the mean", seconds=1.5)], mode="uniform"
        )
    plan = plan_runs(runs, repeats=20)
    assert plan.costs == Costs(training=2.0, sweep=1.5)
    never, at_once, late = np.zeros(9), np.ones(9), np.array([0, 0, 0, 0, 0, 0.8, 1, 1, 1])
    settled = {1: late, 2: never, 3: late, 5: at_once, 10: at_once}
    planned = replace(
        plan.planned, settled=settled, single_RM=np.stack([late, late]), undecided=dict.fromkeys(settled, 4.0)
    )
    # 3 sweeps of 8 times the examples take 36 s, two trainings and 5 sweeps 11.5 s.
    cheap = repr(PowerPlan(planned, costs=plan.costs))
    assert (
        f"about 3,300 examples (3,300 to 3,300 in eight of ten simulations), including the pilot's {COUNT} (a sweep: "
        "about 12 s" in cheap
    )
    assert "on this machine)." in cheap
    assert (
        "is 5 seeds with about 410 examples each (2 more training runs and 5 sweeps: about 12 s on this machine)"
        in cheap
    )
    assert "more examples may settle less" not in " ".join(PowerPlan(planned).report.sections[0].paragraphs)
    falling = replace(planned, settled={**settled, 2: np.array([0.3, *[0.5] * 6, 0.4, 0.4])})
    assert "more examples may settle less" in " ".join(PowerPlan(falling).report.sections[0].paragraphs)
    dear = repr(PowerPlan(planned, costs=Costs(training=600.0, sweep=1.5)))
    assert "is 3 seeds with about 3,300 examples each (3 sweeps: about 36 s on this machine)" in dear


def test_what_cannot_be_planned_is_one_sentence(tmp_path: Path) -> None:
    bare = make_run(tmp_path / "bare", cosine_LH=np.ones((2, 2)))
    with pytest.raises(UserError, match="disabled no heads one by one"):
        bs.plan(bare)
    gone = disabled(tmp_path / "gone")
    (tmp_path / "gone" / "ablation" / "training-00000009-uniform.safetensors").unlink()
    with pytest.raises(UserError, match="has no predictions without its heads"):
        bs.plan(gone)
    with pytest.raises(UserError, match="on 20 examples; at least 30"):
        bs.plan(disabled(tmp_path / "few", count=20))
    with pytest.raises(UserError, match="margin is -1; expected a positive number"):
        bs.plan(gone, margin=-1)
    with pytest.raises(UserError, match="repeats is 3; expected a whole number from 20"):
        bs.plan(gone, repeats=3)
