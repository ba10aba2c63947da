"""Sweeps over batches: gathered in order, merged from parts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from families import HEADS, batch_of, tiny_batch, tiny_model

from bertsecrets.ablation.exact import exact_sweep
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.data.batch import Batch
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError

CLASSES = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))


def batches(labelled: bool = True) -> Iterator[Batch]:
    """Nine examples in three batches, not in order of their index."""
    for start, lengths in ((6, (5, 4, 9)), (0, (3, 8, 6)), (3, (7, 7, 4))):
        inputs = tiny_batch(lengths)
        inputs["input_ids"] = (inputs["input_ids"] + start) % 90
        yield batch_of(inputs, [0, 1, 2] if labelled else None, start)


def plan(mode: str = "uniform") -> Plan:
    return Plan(mode, 3, HEADS, (*every_head(3, HEADS), *every_layer(3, HEADS)))


def test_examples_come_in_order_and_losses_are_those_of_torch() -> None:
    model = tiny_model("bert")
    seen: list[int] = []
    outcomes = exact_sweep(model, plan(), batches(), progress=seen.append)
    assert outcomes.index_N.tolist() == list(range(9))
    assert sum(seen) == 9 * 15
    for batch in batches():
        with torch.no_grad():
            logits_BC = model(**batch.inputs()).logits
        torch.testing.assert_close(outcomes.clean_NC[batch.index_B], logits_BC, atol=1e-6, rtol=0)
    clean_N, loss_NV = outcomes.losses(CLASSES)
    assert loss_NV.shape == (9, 15)
    one = torch.nn.functional.cross_entropy(outcomes.logits_NVC[4, 7], outcomes.label_N[4].long())
    assert loss_NV[4, 7].item() == pytest.approx(one.item())
    assert clean_N.shape == (9,)


def test_a_sweep_of_one_example() -> None:
    model = tiny_model("bert")
    whole = exact_sweep(model, plan(), batches())
    _, batch, _ = batches()
    one = exact_sweep(model, plan(), [batch.rows(torch.tensor([1]))])
    assert (one.index_N.tolist(), one.label_N.tolist()) == ([1], [1])
    torch.testing.assert_close(one.logits_NVC, whole.logits_NVC[1:2], atol=1e-6, rtol=0)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    for name in ("x.safetensors", "none.safetensors"):
        with pytest.raises(UserError, match="cannot be read as the outcomes of a sweep"):
            Outcomes.read(tmp_path / name)


def test_examples_need_labels() -> None:
    with pytest.raises(UserError, match="needs labelled examples"):
        exact_sweep(tiny_model("bert"), plan(), batches(labelled=False))
