"""Sink heads: norms and effects against naive loops, kinds by hand, and the pass over a model."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from data.toy import wordpiece
from families import HEADS, LAYERS, tiny_model
from importance.toy import split
from torch import Tensor
from torch.nn import functional
from trainings import model_of_tokens
from transformers import PreTrainedModel

from bertsecrets.analysis import Context, find, record
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.importance.rows import Agreement, Limits, SinkHead
from bertsecrets.importance.sink_heads import (
    InterveneOnSinks,
    Sink,
    SinkEffects,
    SinkNorms,
    by_intervention,
    by_norms,
    output_grams,
)
from bertsecrets.models.encoder import describe
from bertsecrets.results.run import Run
from bertsecrets.results.views import MeasureView

IDS = {"sep": 3, "cls": 2}
CLASSES = Task(name="toy", metrics=("accuracy",), texts=2, labels=("a", "b", "c"))


def batches() -> list[Batch]:
    return [split()[[0, 1]], split()[[2, 3]]]


def context_of(model: PreTrainedModel, tokenizer: Any = None) -> Context:
    data = TaskData.__new__(TaskData)
    data.tokenizer, data.task = tokenizer or wordpiece(), CLASSES
    return Context.of_split(model, CLASSES, split(), 2, progress=False, source=data)


def grid_of(model: PreTrainedModel, **settings: Any) -> HeadGrid:
    (found,) = find(InterveneOnSinks(**settings), context_of(model))
    (grid,) = found.grids
    return grid


def naive_norms(
    model: PreTrainedModel, eager: PreTrainedModel, batch: Batch, row: int, layer: int, head: int
) -> list[float]:
    """Attention, value ratio, share and output change of [SEP] and [CLS], token by token."""
    site = describe(model).sites[layer]
    seen: list[Tensor] = []
    handle = site.value.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(**batch.inputs())
        maps = eager(**batch.inputs(), output_attentions=True).attentions
    handle.remove()
    length = int(batch.lengths_B[row])
    ids = batch.input_ids_BS[row].tolist()
    width = describe(model).head_dim
    columns = slice(head * width, (head + 1) * width)
    f = [site.projection.weight[:, columns] @ seen[0][row, j, columns] for j in range(length)]
    to = maps[layer][row, head]
    numbers = []
    for token in IDS.values():
        sinks = [j for j in range(length) if ids[j] == token]
        others = [j for j in range(length) if ids[j] != token]
        words = [j for j in range(length) if ids[j] not in IDS.values()]
        sums: list[tuple[float, float, float, float]] = []
        for i in range(length):
            added = sum(to[i, j] * f[j] for j in sinks)
            rest = sum(to[i, j] * f[j] for j in others)
            turned = rest / sum(to[i, j] for j in others)
            vectors = (added, rest, turned - added - rest, added + rest)
            sums.append(tuple(vector.norm().item() for vector in vectors))
        added_size, rest_size, moved_size, whole_size = np.mean(sums, 0)
        numbers += [
            float(np.mean([sum(to[i, j].item() for j in sinks) for i in range(length)])),
            float(np.mean([f[j].norm().item() for j in sinks]) / np.mean([f[j].norm().item() for j in words])),
            added_size / (added_size + rest_size),
            moved_size / whole_size,
        ]
    return numbers


def test_norms_equal_a_naive_loop() -> None:
    model, eager = model_of_tokens(), model_of_tokens("eager")
    grid = grid_of(model, attention=1.0)
    with torch.no_grad():
        for layer, head in ((0, 1), (2, 3)):
            expected = [naive_norms(model, eager, batch, row, layer, head) for batch in batches() for row in range(2)]
            columns = [
                n for t in IDS for n in (f"{t}_attention", f"{t}_value_ratio", f"{t}_norm_share", f"{t}_output_change")
            ]
            measured = [grid.column(name)[layer, head].item() for name in columns]
            assert measured == pytest.approx(np.mean(expected, 0).tolist(), rel=1e-4)
    # No head gives all of its attention to one token, so that none is a sink.
    assert not grid.count_LHC[..., grid.columns.index("sep_redirect")].any()


def test_a_text_without_the_token_does_not_count() -> None:
    model, batch = model_of_tokens(), batches()[0]
    batch.input_ids_BS[0][batch.input_ids_BS[0] == IDS["sep"]] = 5
    norms = SinkNorms(LAYERS, HEADS, IDS)
    size = batch.input_ids_BS.shape[1]
    attention, value = torch.rand(2, HEADS, size, size), torch.ones(2, HEADS, size, describe(model).head_dim)
    norms.take(0, attention, value, output_grams(model)[0], batch)
    grid = norms.compute()
    assert grid.count_LHC[0, 0].tolist() == [1, 1, 1, 1, 2, 2, 2, 2]
    assert grid.value_LHC[0, :, 1].tolist() == pytest.approx([1.0] * HEADS)


def test_effects_equal_a_run_for_each_head_and_text() -> None:
    model = model_of_tokens()
    limits = {"attention": 0.12, "tokens": ["sep", "cls"]}
    grid = grid_of(model, **limits)
    checked = 0
    for token, ids in IDS.items():
        sink_LH = grid.column(f"{token}_attention") >= 0.12
        assert (grid.count_LHC[..., grid.columns.index(f"{token}_redirect")] == torch.where(sink_LH, 4, 0)).all()
        for layer, head in sink_LH.nonzero().tolist()[:3]:
            checked += 1
            numbers: list[list[float]] = []
            for place, label in enumerate((0, 1, 2, 0)):
                single = split()[[place]]
                with torch.no_grad():
                    clean = model(**single.inputs()).logits[0]
                    answers = []
                    for mode in ("redirect", "cut"):
                        with override(model, [HeadEdit(layer, head, mode)], away_from=[ids]):
                            answers.append(model(**single.inputs()).logits[0])
                p, q, r = (logits.softmax(-1) for logits in (clean, *answers))
                loss = functional.cross_entropy(answers[0], torch.tensor(label)) - functional.cross_entropy(
                    clean, torch.tensor(label)
                )
                flip = float(answers[0].argmax() != clean.argmax())
                moved, taken = ((p - other).clamp(min=0).sum().item() for other in (q, r))
                numbers.append([moved, loss.item(), flip, taken])
            measured = [
                grid.column(token + suffix)[layer, head].item()
                for suffix in ("_redirect", "_redirect_loss", "_redirect_flips", "_cut")
            ]
            assert measured == pytest.approx(np.mean(numbers, 0).tolist(), abs=1e-5)
    assert checked >= 2
    assert not model.training


def test_the_time_is_announced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("bertsecrets.ablation.forecast._seconds", lambda *_: 2.0)
    caplog.set_level(logging.INFO, "bertsecrets.ablation.forecast")
    grid_of(model_of_tokens(), attention=1e-9)
    # Each of 12 heads is a sink of both tokens: a pass of the model and two for each of 24.
    assert caplog.messages == ["Redirecting attention away from special tokens, 24 times on 4 examples: about 98 s."]


def test_scores_change_by_their_share_of_the_range() -> None:
    effects = SinkEffects(1, 1, IDS, [Sink(0, 0, "sep")], width=5.0)
    before, after = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.5], [1.0]])
    assert effects.change(before, after).tolist() == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize(
    ("kind_of", "first", "second", "kind"),
    [
        (by_norms, 0.2, 0.9, "nop"),
        (by_norms, 0.5, 0.5, "broadcast"),
        (by_norms, 1.5, 0.4, "content"),
        (by_norms, 0.6, 0.49, "content"),
        (by_intervention, 0.001, 0.002, "nop"),
        (by_intervention, 0.02, 0.3, "broadcast"),
        (by_intervention, 0.02, 0.0, "broadcast"),
        (by_intervention, 0.0, 0.01, "content"),
    ],
)
def test_kinds_of_sinks(kind_of: Callable[..., str], first: float, second: float, kind: str) -> None:
    """By the ratio of values and the share of norms, or by the changes on cutting and on redirecting."""
    assert kind_of(first, second, Limits()) == kind


def test_the_analysis_writes_table_declaration_and_sink_heads(tmp_path: Path) -> None:
    model, built = model_of_tokens().train(), InterveneOnSinks(attention=0.12)
    run = Run(tmp_path, "run", "tiny", "toy", "pretrained")
    record(run, find(built, context_of(model)), "checkpoint", 7)
    assert model.training
    (declaration,) = run.declarations()
    view = MeasureView(run, declaration)
    assert view.step == 7
    heads, attention = view.found(SinkHead), {token: view.value(f"{token}_attention") for token in IDS}
    expected = [(token, *head) for token in IDS for head in np.argwhere(attention[token] >= 0.12).tolist()]
    assert [(row.token, row.layer, row.head) for row in heads] == expected
    assert len(expected) > 2
    row = heads[0]
    assert row.attention == attention[row.token][row.layer, row.head]
    assert row.cut == view.value(f"{row.token}_cut")[row.layer, row.head]
    assert row.redirect_loss.stderr == view.stderr(f"{row.token}_redirect_loss")[row.layer, row.head]
    assert row.by_norms == by_norms(row.value_ratio, row.norm_share, built.limits)
    for agreement in view.found(Agreement):
        change = [
            row.cut if agreement.intervention == "cutting" else row.redirect
            for row in heads
            if row.token == agreement.token
        ]
        assert agreement.changing == sum(value >= built.limits.change for value in change)
        assert agreement.changing + agreement.unchanged == len(change)


def test_a_tokenizer_without_the_token_is_refused() -> None:
    headless = context_of(tiny_model("bert"), tokenizer=SimpleNamespace(sep_token_id=3, cls_token_id=None))
    with pytest.raises(UserError, match=r"The tokenizer has no \[CLS\] token"):
        InterveneOnSinks().check(headless)
