"""Relevance: conservation in all families, rules layer by layer by hand, and mistakes."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from ablation.analyses import analysed
from ablation.test_replacements import split_of
from ablation.test_shapley import three_heads
from families import HEADS, LAYERS, tiny_batch, tiny_model
from torch import Tensor, nn
from trainings import model_of_tokens

import bertsecrets.importance.relevance as relevance_module
from bertsecrets.analysis import Context
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.importance.relevance import RelevanceOfHeads, head_relevance
from bertsecrets.importance.rows import Propagation
from bertsecrets.models.encoder import Encoder


def down(linear: nn.Linear, argument: Tensor, relevance: Tensor) -> Tensor:
    """The z-rule: an output's relevance, to its inputs in proportion to weight times input; the bias keeps its
    share.
    """
    contribution = linear.weight * argument[..., None, :]
    return (contribution / linear(argument)[..., None] * relevance[..., None]).sum(-2)


def through_norm(norm: nn.LayerNorm, argument: Tensor, relevance: Tensor) -> Tensor:
    """A layer normalisation as a matrix: minus the mean, over a fixed standard deviation, times the weight."""
    size = argument.shape[-1]
    deviation = (argument.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    matrix = norm.weight[:, None] * (torch.eye(size) - 1 / size) / deviation[..., None]
    return (matrix * argument[..., None, :] / norm(argument)[..., None] * relevance[..., None]).sum(-2)


@torch.no_grad()
def test_relevance_of_a_one_layer_model_equals_the_rules_by_hand() -> None:
    model: Any = three_heads().double()
    torch.set_default_dtype(torch.float64)
    try:
        batch = split_of([3, 9, 4])[[0, 1, 2]].inputs()
        layer = model.bert.encoder.layer[0]
        kept: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        handles = [
            module.register_forward_hook(lambda m, args, output: kept.__setitem__(m, (args[0], output)))
            for module in model.modules()
            if isinstance(module, (nn.Linear, nn.LayerNorm))
        ]
        logits_BC = model(**batch).logits
        for handle in handles:
            handle.remove()
        top_BC = torch.nn.functional.one_hot(logits_BC.argmax(-1), 3) * logits_BC
        pooled_BD = down(model.classifier, kept[model.classifier][0], top_BC)
        first_BD = down(model.bert.pooler.dense, kept[model.bert.pooler.dense][0], pooled_BD)
        norms = layer.output.LayerNorm, layer.attention.output.LayerNorm
        after_BD = through_norm(norms[0], kept[norms[0]][0][:, 0], first_BD)
        sum_BD = kept[norms[0]][0][:, 0]
        written_BD, middle_BD = kept[layer.output.dense][1][:, 0], kept[norms[1]][1][:, 0]
        network_BD = down(layer.output.dense, kept[layer.output.dense][0][:, 0], written_BD / sum_BD * after_BD)
        network_BD = down(layer.intermediate.dense, middle_BD, network_BD)
        middle_relevance_BD = through_norm(
            norms[1], kept[norms[1]][0][:, 0], middle_BD / sum_BD * after_BD + network_BD
        )
        dense = layer.attention.output.dense
        share_BD = kept[dense][1][:, 0] / kept[norms[1]][0][:, 0]
        heads_BD = down(dense, kept[dense][0][:, 0], share_BD * middle_relevance_BD)
        expected_BH = heads_BD.unflatten(-1, (3, -1)).sum(-1)
        torch.testing.assert_close(head_relevance(model, batch)[:, 0], expected_BH, atol=1e-9, rtol=1e-7)
        assert expected_BH.abs().min() > 1e-5
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("consider_attention", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "mpnet", "albert", "modernbert"])
def test_relevance_is_conserved(family: str, consider_attention: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those of the biases, the relevances of the first layer's input add up to each example's logit of the
    predicted class.
    """
    seen: list[tuple[Tensor, Tensor]] = []

    def check(encoder: Encoder, answer_B: Tensor, share_BP: Tensor) -> None:
        seen.append((answer_B, share_BP))

    monkeypatch.setattr(relevance_module, "_check_conserved", check)
    model = tiny_model(family)
    batch = tiny_batch(pad=2, pad_id=model.config.pad_token_id)
    state = [(parameter.requires_grad, parameter.clone()) for parameter in model.parameters()]
    relevance_BLH = head_relevance(model, batch, consider_attention)
    assert relevance_BLH.shape == (3, LAYERS, HEADS)
    ((answer_B, share_BP),) = seen
    with torch.no_grad():
        torch.testing.assert_close(answer_B, model(**batch).logits.max(-1).values, atol=1e-5, rtol=0)
    torch.testing.assert_close(share_BP.sum(-1), answer_B, atol=2e-5, rtol=0)
    assert share_BP.abs().sum(-1).min() > 1e-3
    for (required, before), parameter in zip(state, model.parameters(), strict=True):
        assert parameter.requires_grad == required
        assert torch.equal(parameter, before)
        assert parameter.grad is None


@pytest.mark.parametrize(("first", "second"), list(combinations(range(5), 2)))
def test_opposite_errors_of_two_examples_do_not_cancel(first: int, second: int) -> None:
    """A part that propagation does not know adds 0.5 to the answers of one example and takes it from another's."""
    model = tiny_model("bert")
    batch = tiny_batch((11, 7, 4, 9, 5), pad_id=model.config.pad_token_id)
    head_relevance(model, batch)
    unknown_B1 = torch.zeros(5, 1)
    unknown_B1[[first, second], 0] = torch.tensor([0.5, -0.5])
    model.classifier.register_forward_hook(lambda _, args, logits_BC: logits_BC + unknown_B1)
    with pytest.raises(UserError, match="add up to the logit only within"):
        head_relevance(model, batch)


def test_padding_and_neighbours_change_nothing() -> None:
    model = tiny_model("bert").double()
    whole_BLH = head_relevance(model, tiny_batch(pad=5))
    torch.testing.assert_close(whole_BLH, head_relevance(model, tiny_batch()), atol=1e-9, rtol=0)
    batch = tiny_batch()
    alone_BLH = head_relevance(model, {name: tensor[1:2, :7] for name, tensor in batch.items()})
    torch.testing.assert_close(alone_BLH[0], whole_BLH[1], atol=1e-9, rtol=0)


class Exponential(nn.Module):
    def forward(self, argument: Tensor) -> Tensor:
        return argument.exp()


def test_an_unknown_part_is_an_error() -> None:
    model = tiny_model("bert")
    intermediate: Any = model.bert.encoder.layer[0].intermediate
    intermediate.intermediate_act_fn = Exponential()
    with pytest.raises(UserError, match="Relevances of model type 'bert' add up to the logit only within"):
        head_relevance(model, tiny_batch())


def test_the_analysis_writes_shares_and_how_they_were_propagated(tmp_path: Path) -> None:
    view = analysed(RelevanceOfHeads(), model_of_tokens(), split_of([3, 9, 4, 4, 12, 7]), tmp_path)
    assert view.value("relevance").sum(-1) == pytest.approx([1.0] * LAYERS, abs=1e-6)
    assert view.fact(Propagation) == Propagation(False)


def test_relevance_needs_no_labels() -> None:
    """It starts from the model's own answer."""
    bare = Context.of_split(tiny_model("bert"), Task(name="bare", metrics=(), texts=1), split_of([3]), 1)
    RelevanceOfHeads().check(bare)
