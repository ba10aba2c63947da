"""Physically removed heads against the gated model, and every mistake in one sentence."""

import json
from pathlib import Path

import pytest
import torch
from families import HEADS, LAYERS, tiny_batch, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

import bertsecrets as bs
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.errors import UserError
from bertsecrets.models.loading import load_folder
from bertsecrets.pruning.removal import kept_heads

HEADS_TO_REMOVE = [(0, 1), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 2)]


@torch.no_grad()
def gated_logits(model: torch.nn.Module, heads: list[tuple[int, int]], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with override(model, [HeadEdit(layer, head, "zero") for layer, head in heads]):
        logits_BC: torch.Tensor = model(**batch).logits
    return logits_BC


@pytest.mark.parametrize("family", ["bert", "mobilebert"])
def test_logits_equal_those_of_the_gated_model_which_stays(family: str, tmp_path: Path) -> None:
    model, batch = tiny_model(family), tiny_batch()
    before = model(**batch).logits.detach()
    smaller = bs.remove_heads(model, HEADS_TO_REMOVE)
    expected = gated_logits(model, HEADS_TO_REMOVE, batch)
    assert not torch.allclose(expected, before, atol=1e-3)
    torch.testing.assert_close(smaller(**batch).logits, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(model(**batch).logits, before, atol=0, rtol=0)
    bs.save_pruned(smaller, str(tmp_path))
    torch.testing.assert_close(bs.load_pruned(tmp_path)(**batch).logits, smaller(**batch).logits, atol=0, rtol=0)


@settings(max_examples=15, deadline=None)
@given(st.sets(st.tuples(st.integers(0, LAYERS - 1), st.integers(0, HEADS - 1)), max_size=LAYERS * HEADS - 1))
def test_any_set_of_heads_can_be_removed(heads: set[tuple[int, int]]) -> None:
    model, batch = tiny_model("bert").double(), tiny_batch()
    smaller = bs.remove_heads(model, heads)
    torch.testing.assert_close(smaller(**batch).logits, gated_logits(model, sorted(heads), batch), atol=1e-10, rtol=0)
    # A head has 3 d D + d D weights and 3 d biases; a removed layer keeps the output projection's bias alone.
    head_weights = 4 * 8 * 32 + 3 * 8
    assert smaller.num_parameters() == model.num_parameters() - len(heads) * head_weights


def test_a_removed_layer_keeps_the_bias_of_its_projection() -> None:
    model = tiny_model("bert")
    smaller = bs.remove_heads(model, [(1, head) for head in range(HEADS)])
    bias = model.bert.encoder.layer[1].attention.output.dense.bias
    hidden_BSD = torch.randn(2, 5, 32)
    attention = smaller.bert.encoder.layer[1].attention
    expected = attention.output.LayerNorm(bias + hidden_BSD)
    torch.testing.assert_close(attention(hidden_BSD)[0], expected, atol=1e-6, rtol=0)


def test_gradients_reach_what_is_left() -> None:
    smaller = bs.remove_heads(tiny_model("bert"), HEADS_TO_REMOVE).train()
    smaller(**tiny_batch()).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in smaller.bert.encoder.layer.parameters())


def test_bfloat16_stays_bfloat16(tmp_path: Path) -> None:
    smaller = bs.remove_heads(tiny_model("bert").bfloat16(), [(0, 0)])
    bs.save_pruned(smaller, tmp_path)
    assert bs.load_pruned(tmp_path).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([(0, 9)], r"The list of heads to remove contains head 9 of layer 0, but the model has heads 0 to 3"),
        ([(5, 0)], r"contains layer 5, but the model has layers 0 to 2"),
        ([(0, 1), (0, 1)], r"contains head 1 of layer 0 twice"),
        ([(layer, head) for layer in range(LAYERS) for head in range(HEADS)], r"All 12 heads would be removed; keep"),
    ],
)
def test_heads_that_cannot_go(heads: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        bs.remove_heads(tiny_model("bert"), heads)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("albert", "share one set of weights, so removing a head from one layer would remove it from all"),
        ("deberta", "Heads of model type 'deberta' cannot be removed"),
    ],
)
def test_families_without_removable_heads(family: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        bs.remove_heads(tiny_model(family), [(0, 0)])


def test_a_pruned_model_is_not_analysed_by_head(tmp_path: Path) -> None:
    smaller = bs.remove_heads(tiny_model("bert"), [(0, 0)])
    with pytest.raises(UserError, match=r"Heads of this model were removed"), override(smaller, [HeadEdit(0, 1)]):
        pass
    bs.save_pruned(smaller, tmp_path)
    with pytest.raises(UserError, match=r"is a model with heads removed \(heads\.json\)"):
        load_folder(tmp_path)
    with pytest.raises(UserError, match=r"No head of this BertForSequenceClassification was removed"):
        bs.save_pruned(tiny_model("bert"), tmp_path)


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    smaller = bs.remove_heads(tiny_model("bert"), [(0, 0)])
    bs.save_pruned(smaller, tmp_path)
    path = tmp_path / "heads.json"
    content = json.loads(path.read_text())
    assert content == {"format": 1, "num_heads": HEADS, "kept": [[1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]}
    cases = {
        r"cannot be read as a list of kept heads \('kept'\)": {"num_heads": 4},
        r"cannot be read as a list of kept heads \(true is not a whole number\)": {**content, "num_heads": True},
        r"Layer 0 keeps the heads \[3, 1\]; expected distinct numbers": {**content, "kept": [[3, 1], [0], [0]]},
        r"has 2 layers of 4 heads, but config\.json has 3 layers of 4": {**content, "kept": [[0], [0]]},
        r"do not fit '.*heads\.json'": {**content, "kept": [[1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]},
        r"All 12 heads would be removed": {**content, "kept": [[], [], []]},
    }
    for message, wrong in cases.items():
        path.write_text(json.dumps(wrong))
        with pytest.raises(UserError, match=message):
            bs.load_pruned(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=r"has no heads\.json, which lists the kept heads of a pruned model"):
        bs.load_pruned(tmp_path)


def test_kept_and_removed_heads_are_complementary() -> None:
    kept = kept_heads(LAYERS, HEADS, HEADS_TO_REMOVE)
    assert kept.removed == tuple(HEADS_TO_REMOVE)
    assert kept.count == LAYERS * HEADS - len(HEADS_TO_REMOVE)
