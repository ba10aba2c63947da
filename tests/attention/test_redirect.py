"""Turning attention away from tokens, beside its logits in tests/contracts/test_families.py, and norms of values."""

import pytest
import torch
from families import FAMILIES, HEADS, MORE_FAMILIES, tiny_batch, tiny_model
from torch import Tensor

from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.watch import output_weights, watch_values
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe


def test_tokens_that_do_not_occur_change_nothing_and_the_inner_context_wins() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    absent = next(token for token in range(5, 97) if not (batch["input_ids"] == token).any())
    with torch.no_grad():
        clean = model(**batch).logits
        with override(model, [HeadEdit(0, 0, "redirect"), HeadEdit(2, 3, "cut")], away_from=[absent]):
            assert (model(**batch).logits - clean).abs().max() < 1e-5
        with override(model, [HeadEdit(0, 0, "zero")]):
            zeroed = model(**batch).logits
            with override(model, [HeadEdit(0, 0, "redirect")], away_from=[absent]):
                assert (model(**batch).logits - clean).abs().max() < 1e-5
            assert torch.equal(model(**batch).logits, zeroed)


@pytest.mark.parametrize("family", ["bert", "deberta"])
def test_gradients_flow_through_the_turned_attention(family: str) -> None:
    model = tiny_model(family)
    batch = tiny_batch(pad_id=model.config.pad_token_id)
    away_from = [int(batch["input_ids"][0, 4])]
    with override(model, [HeadEdit(0, head, "redirect") for head in range(HEADS)], away_from=away_from):
        model(**batch).logits.sum().backward()
    names = ("query_proj", "query", "in_proj")
    queries = [
        parameter
        for name, parameter in model.named_parameters()
        if any(f".{part}." in name for part in names) and ".0." in name
    ]
    assert any(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in queries)


def test_bad_input_is_reported() -> None:
    model, batch = tiny_model("bert"), tiny_batch()
    with (
        pytest.raises(UserError, match="Mode 'redirect' needs the tokens"),
        override(model, [HeadEdit(0, 0, "redirect")]),
    ):
        pass
    embedded = model.bert.embeddings.word_embeddings(batch["input_ids"])
    with (
        pytest.raises(UserError, match="pass input_ids to the model"),
        override(model, [HeadEdit(0, 0, "cut")], away_from=[7]),
    ):
        model(inputs_embeds=embedded, attention_mask=batch["attention_mask"])


@pytest.mark.parametrize("family", [*FAMILIES, *MORE_FAMILIES])
def test_maps_times_values_through_the_output_weights_are_what_a_layer_adds(family: str) -> None:
    model = tiny_model(family)
    batch = tiny_batch(pad_id=model.config.pad_token_id)
    encoder = describe(model)
    added: list[Tensor] = []
    inputs: list[Tensor] = []

    def observe(layer: int, attention: Tensor, value: Tensor) -> None:
        weights_HDd = output_weights(model, layer)
        added.append(torch.einsum("bhqk,bhkd,hed->bqe", attention, value, weights_HDd))

    handles = [
        site.projection.register_forward_hook(lambda module, args, output: inputs.append(output))
        for site in encoder.distinct_sites
    ]
    with torch.no_grad(), watch_values(model, observe):
        model(**batch)
    for handle in handles:
        handle.remove()
    assert len(added) == len(inputs) == encoder.num_layers
    for layer, (ours, theirs) in enumerate(zip(added, inputs, strict=True)):
        bias = encoder.sites[layer].projection.bias
        expected = theirs if bias is None else theirs - bias
        real_BS = batch["attention_mask"].bool()
        assert (ours - expected)[real_BS].abs().max() < 1e-4
