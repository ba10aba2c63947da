"""The gate of a pipeline: its conditions, and the losses that they judge."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from papers.paper_runs import chosen, point, prune_search
from present.test_shrink import SEARCH, analysis_of, attempt
from reporting.finished_runs import make_run, with_predictions
from scipy import stats

from bertsecrets.errors import UserError
from bertsecrets.pruning.rows import Pruning, Shrunk
from bertsecrets.reporting.gate import Loss, check_metrics, conditions, losses_of_later, losses_of_run, refusals
from bertsecrets.reporting.run_report import report_run
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.files import write_parquet
from bertsecrets.results.run import Run
from bertsecrets.task_heads.tokens import TokenHead


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("accuracy_loss > 1", False),
        ("accuracy_loss >= 1", True),
        ("accuracy_loss>0.99", True),
        ("f1_loss > 2", False),
        ("f1_loss > 2 or accuracy_loss > .5", True),
        # An undefined loss may be any.
        ("pearson_loss > 50", True),
    ],
)
def test_a_loss_is_compared_in_points(text: str, refused: bool) -> None:
    losses = [Loss("it", "accuracy", 0.01), Loss("it", "f1", -0.03), Loss("it", "pearson", float("nan"))]
    assert bool(refusals(text, losses)) == refused


def test_a_refusal_names_the_model_that_may_lose_most() -> None:
    losses = [Loss(f"the model of '{name}'", "accuracy", loss) for name, loss in (("a", 0.02), ("b", 0.031), ("c", 0))]
    assert refusals("accuracy_loss > 1", losses) == [
        "accuracy_loss > 1: for the model of 'b' a loss of 3.1 points of accuracy is not ruled out "
        "(2 of 3 models are rejected)."
    ]


@pytest.mark.parametrize(
    "text", ["", "accuracy > 1", "accuracy_loss < 1", "accuracy_loss > x", "_loss > 1", "a_loss > 1 and b_loss > 1",
             "__import__('os')", "accuracy_loss > -1", "accuracy_loss > 1 or"],
)  # fmt: skip
def test_other_conditions_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected <metric>_loss, > or >=, and a number of points"):
        conditions(text)


def test_an_unknown_loss_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(UserError, match=r"names 'acc_loss'.* Valid names: accuracy_loss, f1_loss"):
        check_metrics("acc_loss > 1", ("accuracy", "f1"))
    with pytest.raises(UserError, match="this run tests accuracy_loss"):
        refusals("f1_loss > 1", [Loss("it", "accuracy", 0.0)])


def test_the_smaller_model_of_a_search_is_judged(tmp_path: Path) -> None:
    smaller = attempt(True)
    run = analysis_of(tmp_path / "shrink", Shrunk(SEARCH, [smaller, attempt(False, 1, asked=3.0)]))
    assert [(loss.metric, loss.bound) for loss in losses_of_run(run)] == [
        (test.metric, test.bound) for test in smaller.tests
    ]
    # Pruned heads go before what disabling says of the whole model.
    folder = make_run(tmp_path / "prune", delta_LH=[[-0.5, 0.0]])
    pruning = Run.open(folder)
    pruning.write_rows(
        "pruning",
        "checkpoint",
        0,
        [prune_search(), chosen("exact", 6, bound=0.0184), point("exact", 6, Estimate(0, 0, 0))],
    )
    pruning.declare(Pruning().declaration())
    assert losses_of_run(pruning) == [Loss("the model with 6 heads", "accuracy", 0.0184)]


def test_disabled_heads_are_judged_by_their_joint_limits(tmp_path: Path) -> None:
    run = Run.open(make_run(tmp_path / "sweep", delta_LH=[[-0.05, 0.0], [0.02, -0.01]]))
    rows = run.ablation_table().rows()
    limits = [row["low"] if row["low_simultaneous"] is None else row["low_simultaneous"] for row in rows]
    assert [loss.bound for loss in losses_of_run(run)] == [-low for low in limits]
    assert losses_of_run(run)[1].model == "the model without layer 0 · head 1"
    assert losses_of_run(Run.open(make_run(tmp_path / "nothing"))) == []


def answered(folder: Path, right_N: np.ndarray, first: int = 0) -> Path:
    return with_predictions(make_run(folder), right_N, first)


def test_a_later_run_is_compared_answer_by_answer(tmp_path: Path) -> None:
    right_N = np.arange(200) % 10 > 0
    first, same = answered(tmp_path / "a", right_N), answered(tmp_path / "b", right_N)
    worse = answered(tmp_path / "c", right_N & (np.arange(200) % 10 > 1))
    equal, lost = losses_of_later([first, same, worse])
    # No answer differs: a share p of lost examples shows none of 200 with probability (1 - p) ** 200.
    assert equal.bound == pytest.approx(1 - 0.05 ** (1 / 200), abs=1e-4)
    # 20 of 200 are lost and none is won: the bound of that share by Clopper and Pearson.
    assert lost.bound == pytest.approx(stats.beta.ppf(0.95, 21, 180), abs=0.003)
    assert (equal.model, lost.model) == ("the model of 'b'", "the model of 'c'")
    assert refusals("accuracy_loss > 1.5", [equal]) == []
    assert refusals("accuracy_loss > 1.4", [equal])


def test_entities_are_compared_by_their_counts(tmp_path: Path) -> None:
    # An entity of each text is found by the first model; the second misses every tenth, and predicts none there.
    found_N = np.arange(200) % 10 > 0
    for name, hits_N in (("a", np.ones(200)), ("b", found_N.astype(float))):
        folder = make_run(tmp_path / name)
        scores = json.loads((folder / "scores.json").read_text())
        scores["sets"]["val"]["constant"] = {"entity_f1": 0.0}
        (folder / "scores.json").write_text(json.dumps(scores))
        (folder / "predictions").mkdir()
        zero_N, one_N = np.zeros(200), np.ones(200)
        # Loss, words tagged right, words, entities found, predicted and annotated.
        counts = dict(zip(TokenHead.statistics, (zero_N, hits_N, one_N, hits_N, hits_N, one_N), strict=True))
        columns = {"index": np.arange(200), "label": zero_N * np.nan, **counts}
        write_parquet(folder / "predictions" / "val.parquet", pa.table(columns))
    (loss,) = losses_of_later([tmp_path / "a", tmp_path / "b"])
    assert loss.metric == "entity_f1"
    # F1 is 2 · 180 / (180 + 200).
    assert 1 - 360 / 380 < loss.bound < 0.12


def test_runs_of_other_examples_are_not_compared(tmp_path: Path) -> None:
    first, other = answered(tmp_path / "a", np.ones(9, bool)), answered(tmp_path / "b", np.ones(9, bool), first=1)
    with pytest.raises(UserError, match="were scored on different examples of 'val'"):
        losses_of_later([first, other])
    with pytest.raises(UserError, match=r"has no predictions/val\.parquet"):
        losses_of_later([first, make_run(tmp_path / "c")])


def test_the_findings_of_a_page_are_json(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run", cosine_LH=[[0.5, 0.9]], delta_LH=[[-0.1, float("nan")]], significant_LH=[[True, False]]
    )
    run = Run.open(folder)
    report = report_run(run, 2)
    report.write(run)
    content = json.loads((folder / "findings.json").read_text(), parse_constant=pytest.fail)
    assert content["title"] == report.report.title
    assert content["scores"]["sets"]["val"]["model"]["accuracy"] == 0.8
    assert [entry["sentences"] for entry in content["findings"]] == [
        list(section.findings) for section in report.report.sections if section.findings
    ]
    deltas = [line for line in content["numbers"] if line["quantity"] == "delta"]
    assert [(line["layer"], line["head"], line["value"]) for line in deltas] == [(0, 0, -0.1), (0, 1, None)]
    assert {line["quantity"] for line in content["numbers"]} == {"delta"}


def test_a_loss_in_nats_is_not_called_points() -> None:
    (sentence,) = refusals("pseudo_log_likelihood_loss > 1", [Loss("model 'b'", "pseudo_log_likelihood", 0.031)])
    assert "a loss of 3.1 hundredths of a nat of pseudo-log-likelihood is not ruled out" in sentence
