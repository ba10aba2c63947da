"""Blocked attention: against the library's own masks, judged by hand, and refused where it makes no sense."""

import numpy as np
import pytest
import torch
from data.tasks import task
from data.toy import pairs, wordpiece
from families import tiny_model

from bertsecrets.ablation.blocking import BlockAttention, blocked_answers, judged, over_seeds
from bertsecrets.ablation.predictions import PairedPredictions
from bertsecrets.ablation.rows import Blocked
from bertsecrets.ablation.verdicts import Judging
from bertsecrets.analysis import Context, find
from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.models.encoder import describe
from bertsecrets.results.estimate import Estimate
from bertsecrets.task_heads.sequence import ACCURACY

SEP = 3
TEXTS = [("The cat, a dog.", "He sat."), ("No marks here", "none"), ("the", "dog")]


def batch_of_pairs() -> Batch:
    return EncodedSplit([Example(i, text, i % 2) for i, text in enumerate(TEXTS)], wordpiece(), 64)[[0, 1, 2]]


@pytest.mark.parametrize("direction", ["to", "from"])
def test_blocked_attention_equals_the_librarys_own_mask(direction: str) -> None:
    batch = batch_of_pairs()
    torch.manual_seed(1)
    model = tiny_model("bert", attention="eager")
    model.resize_token_embeddings(len(wordpiece()))
    separator_BS, real_BS = batch.input_ids_BS == SEP, batch.attention_mask_BS.bool()
    size = real_BS.shape[1]
    if direction == "to":
        allowed_BQK = (real_BS & ~separator_BS)[:, None].expand(-1, size, -1)
    else:
        own_QK = torch.eye(size, dtype=torch.bool)
        allowed_BQK = torch.where(separator_BS[..., None], own_QK, real_BS[:, None])
    mask_B1QK = torch.zeros(allowed_BQK.shape).masked_fill(~allowed_BQK, torch.finfo(torch.float32).min)[:, None]
    with torch.no_grad():
        inputs = {**batch.inputs(), "attention_mask": mask_B1QK}
        expected_BC = model(**inputs).logits
        clean_BC = model(**batch.inputs()).logits
    logits_BC = blocked_answers(describe(model), batch, SEP, direction)
    assert (logits_BC - expected_BC).abs().max() < 1e-5
    assert (logits_BC - clean_BC).abs().max() > 1e-4


def test_effects_are_changes_of_the_score_with_verdicts_by_hand() -> None:
    label_N = np.arange(400) % 2
    clean_N = label_N.copy()
    clean_N[:40] = 1 - clean_N[:40]
    worse_N = clean_N.copy()
    worse_N[200:300] = 1 - worse_N[200:300]
    to, unchanged = judged(
        ACCURACY,
        PairedPredictions(label_N, clean_N, np.stack([worse_N, clean_N])),
        [("sep", "to"), ("sep", "from")],
        Judging(),
    )
    assert (to.baseline, to.change.value, to.flips) == pytest.approx((0.9, -0.25, 0.25))
    assert to.change.low < -0.25 < to.change.high < 0
    assert (to.verdict, unchanged.verdict) == ("needed", "dispensable")
    assert (unchanged.change.value, unchanged.change.n) == (0, 400)


def test_the_analysis_scores_every_example_once() -> None:
    data = TaskData(task("demo_nli"), SourceConfig(source="demo"), wordpiece())
    data._examples["validation"] = pairs(30)
    torch.manual_seed(1)
    model = tiny_model("bert").eval()
    model.resize_token_embeddings(len(wordpiece()))
    (found,) = find(BlockAttention(tokens=["sep", "cls"]), Context.of_data(model, data, progress=False))
    rows = found.rows
    batches = list(data.evaluation_loader("val"))
    with torch.no_grad():
        right = sum((model(**batch.inputs()).logits.argmax(-1) == batch.label_B).sum().item() for batch in batches)
        blocked = sum(
            (blocked_answers(describe(model), batch, 2, "from").argmax(-1) == batch.label_B).sum().item()
            for batch in batches
        )
    assert [(row.token, row.direction) for row in rows] == [
        (token, direction) for token in ("sep", "cls") for direction in ("to", "from")
    ]
    assert (rows[0].change.n, rows[0].baseline) == (30, pytest.approx(right / 30))
    assert rows[3].score == pytest.approx(blocked / 30)


def blocked(*deltas: float, width: float = 0.02) -> list[Blocked]:
    return [
        Blocked(
            token="sep",
            direction=direction,
            metric="accuracy",
            baseline=0.8,
            score=0.8 + delta,
            change=Estimate(delta, delta - width / 2, delta + width / 2, n=500),
            level=0.95,
            margin=0.01,
            p_loss=0.5,
            flips=0.1,
            verdict="inconclusive",
        )
        for direction, delta in zip(("to", "from"), deltas, strict=False)
    ]


def test_seeds_are_judged_together_and_not_counted() -> None:
    assert over_seeds([blocked(-0.3, 0.0)]) == blocked(-0.3, 0.0)
    together = over_seeds([blocked(-0.3 - 0.01 * seed, 0.001 * seed, width=0.002) for seed in range(4)])
    assert [row.verdict for row in together] == ["needed", "dispensable"]
    assert [row.change.value for row in together] == pytest.approx([-0.315, 0.0015])
    # Where seeds differ a lot, their mean may be anything, whatever most of them find.
    apart, _ = over_seeds([blocked(delta, 0.0) for delta in (-0.1, -0.1, -0.1, 0.25)])
    assert apart.verdict == "inconclusive"
    values = np.array([-0.1, -0.1, -0.1, 0.25])
    error = (values.var(ddof=1) / 4 + (0.02 / (2 * 1.959964)) ** 2) ** 0.5
    assert apart.change.high - apart.change.low > 2 * 1.96 * error


def test_rows_that_a_seed_lacks_are_left_out() -> None:
    together = over_seeds([blocked(-0.3, 0.0), blocked(-0.31), blocked(-0.29, 0.01)])
    assert [(row.token, row.direction) for row in together] == [("sep", "to")]
