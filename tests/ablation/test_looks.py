"""Sweeps that stop early, against the exact sweep of all examples and by simulation."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ablation.two_looks import run, swept
from scipy.stats import binomtest
from torch.nn.functional import one_hot

from benchmarks.verdicts import stopping
from bertsecrets.ablation.judging import judged_rows
from bertsecrets.ablation.looks import LooksRecord, look_positions, looks_in_words, looks_of, sweep_in_looks
from bertsecrets.ablation.outcomes import Outcomes, merge
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.section import smallest_loss_in_words
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.ablation.verdicts import judge
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError

TASK = Task(name="simulated", metrics=("accuracy",), texts=1, labels=("a", "b"))
PLAN = Plan("uniform", 3, 4, tuple(every_head(3, 4)))
IDENTITY: dict[str, Any] = dict.fromkeys(("run", "model", "task", "init", "stage", "evaluation"), "") | {"step": 0}
JUDGING = AblationSettings(resamples=100).judging()


class Predictions:
    """Predictions of 12 heads: head 0 loses a third of the right answers, heads 1 to 3 nothing, the others flip at random."""

    def __init__(self, count: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.label_N = (generator.random(count) < 0.6).astype(int)
        self.clean_N = np.where(generator.random(count) < 0.85, self.label_N, 1 - self.label_N)
        right_N = self.clean_N == self.label_N
        rate_VN = np.tile(np.where(right_N, 0.05 / right_N.mean(), 0.05 / (~right_N).mean()), (12, 1))
        rate_VN[0] = np.where(right_N, 0.3, 0)
        rate_VN[1:4] = 0
        self.prediction_VN = np.where(generator.random((12, count)) < rate_VN, 1 - self.clean_N, self.clean_N)
        self.pairs = 0

    def __call__(self, part: Plan, positions: Iterable[Any]) -> Outcomes:
        index = torch.tensor(sorted(positions))
        names = [variant.name for variant in PLAN.variants]
        chosen_VN = self.prediction_VN[[names.index(variant.name) for variant in part.variants]][:, index]
        self.pairs += chosen_VN.size
        logits = [one_hot(torch.from_numpy(array), 2).float() for array in (self.clean_N[index], chosen_VN.T.copy())]
        return Outcomes(part, index, torch.from_numpy(self.label_N)[index].float(), *logits)


def looked(predictions: Predictions, looks: int = 4) -> tuple[Outcomes, LooksRecord, list[dict[str, Any]]]:
    parts = look_positions(len(predictions.label_N), looks, 0)
    sizes = [(len(part), lambda part=part: part) for part in parts]
    outcomes, record = sweep_in_looks(PLAN, sizes, predictions, TASK, JUDGING)
    return outcomes, record, judged_rows(outcomes, TASK, IDENTITY, JUDGING, record.by_count())


def test_settled_heads_stop_and_keep_their_own_examples() -> None:
    predictions = Predictions(2000, seed=1)
    outcomes, record, rows = looked(predictions)
    assert predictions.pairs == record.evaluated < record.pairs == 24_000
    assert record.needed + record.dispensable + record.futile > 4
    assert outcomes.taken_NV is not None
    by_name = {row["variant"]: row for row in rows}
    assert [row["variant"] for row in rows] == [variant.name for variant in PLAN.variants]
    assert by_name["l00h00"]["verdict"] == "needed"
    assert by_name["l00h00"]["count"] == 500
    assert {by_name[f"l00h0{head}"]["verdict"] for head in (1, 2, 3)} == {"dispensable"}
    order = look_positions(2000, 4, 0)
    for index, variant in enumerate(PLAN.variants):
        count, row = int(outcomes.taken_NV[:, index].sum()), by_name[variant.name]
        seen = np.concatenate(order)[:count]
        assert set(outcomes.index_N[outcomes.taken_NV[:, index]].tolist()) == set(seen.tolist())
        # The numbers of a head are those of its own examples, by a hand-written mean.
        right = [
            (array == predictions.label_N)[seen].mean()
            for array in (predictions.clean_N, predictions.prediction_VN[index])
        ]
        assert (row["count"], row["evaluated"]) == (count, count / len(outcomes.index_N))
        assert row["baseline"] == pytest.approx(right[0])
        assert row["delta"] == pytest.approx(right[1] - right[0])
        assert outcomes.logits_NVC[:, index].isnan().any(-1).tolist() == (~outcomes.taken_NV[:, index]).tolist()


def test_one_look_is_the_sweep_of_all_examples() -> None:
    predictions = Predictions(300, seed=2)
    outcomes, record, rows = looked(predictions, looks=1)
    assert outcomes.taken_NV is None
    assert (record.sizes, record.evaluated) == ((300,), record.pairs)
    arrays = (predictions.label_N, predictions.clean_N, predictions.prediction_VN)
    verdicts = judge("accuracy", PairedPredictions(*(array.astype(float) for array in arrays)), JUDGING)
    for name in ("p_value", "p_bh", "low", "high", "p_margin", "smallest_effect"):
        assert [row[name] for row in rows] == pytest.approx(list(getattr(verdicts, name)), nan_ok=True)


def test_looks_cost_certainty() -> None:
    """A head that has all examples has larger p-values and wider limits than without looks."""
    predictions = Predictions(400, seed=3)
    _, _, rows = looked(predictions)
    _, _, whole = looked(predictions, looks=1)
    pairs = [(row, other) for row, other in zip(rows, whole, strict=True) if row["count"] == 400 and row["p_value"] < 1]
    assert pairs
    for row, other in pairs:
        assert row["delta"] == other["delta"]
        assert row["p_value"] > other["p_value"]
        assert row["low"] < other["low"]
        assert row["high"] > other["high"]


def test_what_one_look_would_show_is_not_enough_at_the_first_of_four() -> None:
    """A head loses 22 of the first 100 examples and wins 4, and goes on in the same way."""
    predictions = Predictions(400, seed=4)
    order = np.concatenate(look_positions(400, 4, 0)).reshape(4, 100)
    predictions.label_N[:] = predictions.clean_N[:] = 1
    predictions.clean_N[order[:, 96:]] = 0
    predictions.prediction_VN[:] = predictions.clean_N
    predictions.prediction_VN[5, order[:, :22]] = 0
    predictions.prediction_VN[5, order[:, 96:]] = 1
    # Corrected for 12 heads, by Bonferroni.
    first, second = (binomtest(4 * looks, 26 * looks).pvalue * 12 for looks in (1, 2))
    assert first < 0.05
    assert second < 0.05 / 100
    head = looked(predictions)[2][5]
    assert (head["variant"], head["verdict"], head["count"]) == ("l01h01", "needed", 200)


def test_a_head_stops_as_needed_by_the_test_that_judges_it() -> None:
    """One-sided: a head that loses 17 of every 100 examples and wins 4 stops at the second look, where two sides would not do."""
    predictions = Predictions(400, seed=4)
    order = np.concatenate(look_positions(400, 4, 0)).reshape(4, 100)
    predictions.label_N[:] = predictions.clean_N[:] = 1
    predictions.clean_N[order[:, 96:]] = 0
    predictions.prediction_VN[:] = predictions.clean_N
    predictions.prediction_VN[5, order[:, :17]] = 0
    predictions.prediction_VN[5, order[:, 96:]] = 1
    two_sided = 12 * looks_of([100, 200, 300, 400])[1].two_sided(binomtest(8, 42).pvalue)
    assert two_sided / 2 < 0.05 < two_sided
    head = looked(predictions)[2][5]
    assert (head["variant"], head["verdict"], head["count"]) == ("l01h01", "needed", 200)


@pytest.mark.slow
@pytest.mark.parametrize("flips", [0.02, 0.1])
def test_the_family_wise_error_of_null_sweeps(flips: float) -> None:
    """1,000 sweeps in which no head matters: how often any is significant by the family-wise corrected p-values.

    McNemar's exact test stays far below 5 % here; ``tests/statistics/test_sequential.py`` has continuous p-values, which do not.
    """
    families, *_ = stopping(0.0, flips, 1000)
    assert families <= 0.05


@pytest.mark.slow
def test_false_findings_and_kept_verdicts_where_some_heads_matter() -> None:
    """300 sweeps in which a tenth of the heads lose 5 points."""
    families, false, spared, same, _ = stopping(0.05, 0.02, 300, count=1043)
    assert families <= 0.05
    assert false <= 0.055
    assert spared == 0
    assert same >= 0.95


def test_positions_are_split_at_random_and_whole() -> None:
    parts = look_positions(103, 4, 0)
    assert [len(part) for part in parts] == [26, 26, 26, 25]
    assert sorted(np.concatenate(parts)) == list(range(103))
    assert parts != [sorted(part) for part in parts]
    assert len(look_positions(40, 4, 0)) == 2
    assert len(look_positions(5, 4, 0)) == 1


def test_a_sweep_that_stopped_early_is_written_read_and_not_mixed_with_others(tmp_path: Path) -> None:
    outcomes, record, _ = looked(Predictions(2000, seed=1))
    outcomes.write(tmp_path / "x.safetensors", TASK)
    read = Outcomes.read(tmp_path / "x.safetensors")
    assert outcomes.taken_NV is not None
    assert read.taken_NV is not None
    assert torch.equal(read.taken_NV, outcomes.taken_NV)
    with pytest.raises(UserError, match=r"stopped early for some variants.*ablation\.looks=1"):
        read.predictions(TASK)
    with pytest.raises(UserError, match="'early' stopped early for some variants"):
        merge({"early": read, "other": read})
    assert looks_in_words(vars(record)).startswith(
        "The sweep looked at its results 4 times, after 500, 1,000, 1,500 and 2,000"
    )


def test_sentences_name_the_range_of_examples() -> None:
    """Heads that stopped early have fewer examples than others: no single number stands for all."""
    rows = looked(Predictions(2000, seed=1))[2]
    assert smallest_loss_in_words(rows).startswith("with 500 to 2,000 examples ")
    assert smallest_loss_in_words(rows[:1]).startswith("with 500 examples ")


@pytest.mark.slow
def test_two_processes_stop_as_one_does(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(run, args=(2, tmp_path), nprocs=2)
    outcomes, record = swept(0, 1)
    assert outcomes.taken_NV is not None
    assert set(outcomes.taken_NV.sum(0).tolist()) == {32, 64, 96}
    for rank in (0, 1):
        index_N, logits_NVC, taken_NV, same_record = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert same_record == asdict(record)
        assert torch.equal(index_N, outcomes.index_N)
        assert torch.equal(taken_NV, outcomes.taken_NV)
        torch.testing.assert_close(logits_NVC, outcomes.logits_NVC, atol=1e-6, rtol=1e-5, equal_nan=True)
