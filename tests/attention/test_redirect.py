"""Turning attention away from tokens: against eager maps and values, put together by hand."""

import pytest
import torch
from families import FAMILIES, HEADS, tiny_batch, tiny_model
from torch import Tensor, nn

from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.attention.watch import output_weights, watch_values
from bertsecrets.errors import UserError
from bertsecrets.models import families as adapters
from bertsecrets.models.encoder import describe

HEAD = 1


def sunk_batch(pad_id: int) -> tuple[dict[str, Tensor], list[int]]:
    """Rows in which two tokens take part, and one row of nothing else."""
    batch = tiny_batch((9, 6, 3), pad_id=pad_id)
    ids_BS = batch["input_ids"]
    ids_BS[0, [0, 4]] = torch.tensor([50, 51])
    ids_BS[1, 2] = 51
    ids_BS[2, :3] = torch.tensor([50, 51, 50])
    return batch, [50, 51]


def by_hand(model: nn.Module, batch: dict[str, Tensor], ids: list[int], layer: int, mode: str) -> Tensor:
    """The logits with one head's output made from the library's eager map of that layer, row by row."""
    encoder = describe(model)
    site = encoder.sites[layer]
    eager = tiny_model(model.family_name, attention="eager")
    with torch.no_grad():
        map_BHQK = eager(**batch, output_attentions=True).attentions[layer]
    wanted = [position for position, other in enumerate(encoder.sites) if other.module is site.module].index(layer)
    calls = 0
    seen: dict[str, Tensor] = {}

    def keep(module: nn.Module, args: object, output: Tensor) -> None:
        seen["values"] = encoder.family.values(site, output, encoder.num_heads)

    def replace(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        nonlocal calls
        calls += 1
        if calls - 1 != wanted:
            return None
        heads = args[0].clone().unflatten(-1, (encoder.num_heads, -1))
        for row in range(len(heads)):
            length = int(batch["attention_mask"][row].sum())
            for query in range(length):
                if mode == "isolate":
                    if int(batch["input_ids"][row, query]) in ids:
                        heads[row, query, HEAD] = seen["values"][row, query, HEAD]
                    continue
                total, weights = torch.zeros(heads.shape[-1]), 0.0
                for key in range(length):
                    if int(batch["input_ids"][row, key]) not in ids:
                        weight = map_BHQK[row, HEAD, query, key].item()
                        total += weight * seen["values"][row, key, HEAD]
                        weights += weight
                heads[row, query, HEAD] = total / weights if mode == "redirect" and weights else total
        return (heads.flatten(2),)

    with (
        torch.no_grad(),
        site.value.register_forward_hook(keep),
        site.projection.register_forward_pre_hook(replace),
    ):
        return model(**batch).logits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["redirect", "cut", "isolate"])
def test_attention_is_turned_away_from_the_named_tokens(family: str, mode: str) -> None:
    model = tiny_model(family)
    model.family_name = family
    batch, ids = sunk_batch(model.config.pad_token_id)
    for layer in (0, describe(model).num_layers - 1):
        with torch.no_grad(), override(model, [HeadEdit(layer, HEAD, mode)], away_from=ids):
            logits = model(**batch).logits
        assert (logits - by_hand(model, batch, ids, layer, mode)).abs().max() < 2e-5


def test_a_family_without_adapter_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("bert")
    batch, ids = sunk_batch(0)

    def turned(mode: str) -> Tensor:
        with torch.no_grad(), override(model, [HeadEdit(1, HEAD, mode)], away_from=ids):
            return model(**batch).logits

    modes = ("redirect", "cut", "isolate")
    expected = [turned(mode) for mode in modes]
    monkeypatch.delitem(adapters.FAMILIES, "bert")
    for mode, logits in zip(modes, expected, strict=True):
        assert (turned(mode) - logits).abs().max() < 1e-5
    with pytest.raises(UserError, match="Norms of values need an adapter, and model type 'bert' has none"):
        output_weights(model, 0)


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
    batch, ids = sunk_batch(model.config.pad_token_id)
    with override(model, [HeadEdit(0, head, "redirect") for head in range(HEADS)], away_from=ids):
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


@pytest.mark.parametrize("family", FAMILIES)
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
