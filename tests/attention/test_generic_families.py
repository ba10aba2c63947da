"""Families without an adapter, whose attention has more to it than a mask of padding: maps are those of the library's
eager code.
"""

import copy

import pytest
import torch
import transformers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    BertModel,
    EuroBertConfig,
    EuroBertModel,
    GPT2Config,
    GPT2Model,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

import bertsecrets as bs
from bertsecrets.attention import hooks
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe

_TRANSFORMERS = tuple(int(part) for part in transformers.__version__.split(".")[:2])
_SIZE = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
_T5 = {
    "vocab_size": 60,
    "d_model": 24,
    "num_layers": 2,
    "num_heads": 4,
    "d_kv": 6,
    "d_ff": 32,
    "initializer_factor": 3.0,
}


def _model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if name == "splinter":
        return AutoModel.from_config(AutoConfig.for_model(name, **_SIZE, pad_token_id=0, initializer_range=0.3)).eval()
    if name == "grouped":
        config = EuroBertConfig(**_SIZE, num_key_value_heads=2, pad_token_id=0, initializer_range=0.3)
        return EuroBertModel(config).eval()
    if name == "causal":
        return GPT2Model(GPT2Config(vocab_size=60, n_embd=24, n_layer=2, n_head=4, initializer_range=0.3)).eval()
    kinds = {"t5": (T5EncoderModel, T5Config), "umt5": (UMT5EncoderModel, UMT5Config)}
    model, config = kinds[name]
    return model(config(**_T5)).eval()


def _inputs(padded: bool) -> dict[str, Tensor]:
    ids_BS = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    mask_BS = torch.ones_like(ids_BS)
    if padded:
        mask_BS[1, 6:] = 0
    return {"input_ids": ids_BS, "attention_mask": mask_BS}


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(
    "name",
    [
        "t5",
        # The library's own fault before.
        pytest.param("umt5", marks=pytest.mark.skipif(_TRANSFORMERS < (5, 20), reason="needs transformers 5.20")),
        "splinter",
        "grouped",
        "causal",
    ],
)
def test_watched_maps_are_the_eager_ones_and_watching_changes_nothing(name: str, padded: bool) -> None:
    model, inputs = _model(name), _inputs(padded)
    maps: list[Tensor] = []
    with torch.no_grad():
        unwatched_BSD = model(**inputs)[0]
        with bs.watch(model, lambda _, attention_BHQK: maps.append(attention_BHQK)):
            watched_BSD = model(**inputs)[0]
        eager = copy.deepcopy(model)
        eager.set_attn_implementation("eager")
        expected = eager(**inputs, output_attentions=True).attentions
    real_BS = inputs["attention_mask"].bool()
    assert torch.allclose(watched_BSD[real_BS], unwatched_BSD[real_BS], atol=1e-5)
    assert len(maps) == len(expected) == 2
    for map_BHQK, expected_BHQK in zip(maps, expected, strict=True):
        rows = real_BS[:, None, :].expand(-1, 4, -1)
        assert torch.allclose(map_BHQK[rows], expected_BHQK[rows], atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "grouped"])
def test_turning_attention_away_from_a_token_that_is_absent_changes_nothing(name: str) -> None:
    model, inputs = _model(name), _inputs(True)
    with torch.no_grad():
        clean_BSD = model(**inputs)[0]
        with bs.override(model, [bs.HeadEdit(0, 1, "redirect")], away_from=[3]):
            turned_BSD = model(**inputs)[0]
    assert torch.allclose(turned_BSD, clean_BSD, atol=1e-4)


@pytest.mark.parametrize(("name", "width"), [("t5", 5), ("grouped", 8)])
def test_a_head_has_its_own_width_whatever_the_hidden_size(name: str, width: int) -> None:
    torch.manual_seed(0)
    if name == "t5":
        model = T5EncoderModel(T5Config(**{**_T5, "d_kv": width})).eval()
        projection = model.encoder.block[1].layer[0].SelfAttention.o
    else:
        config = EuroBertConfig(**_SIZE, num_key_value_heads=2, head_dim=width, pad_token_id=0, initializer_range=0.3)
        model = EuroBertModel(config).eval()
        projection = model.layers[1].self_attn.o_proj
    encoder = describe(model)
    # Neither is 24 / 4.
    assert (encoder.num_heads, encoder.head_dim, encoder.num_layers) == (4, width, 2)
    assert projection.in_features == 4 * width
    inputs = _inputs(False)
    with torch.no_grad():
        clean_BSD = model(**inputs)[0]
        with bs.override(model, [bs.HeadEdit(1, 2, "zero")]):
            disabled_BSD = model(**inputs)[0]
        # Zero columns of the projection are what mode zero makes of a head.
        projection.weight[:, 2 * width : 3 * width] = 0
        torch.testing.assert_close(disabled_BSD, model(**inputs)[0])
        assert (disabled_BSD - clean_BSD).abs().max() > 1e-4


def test_attention_that_a_map_does_not_show_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = BertModel(BertConfig(**_SIZE)).eval()
    plain = hooks.sdpa_attention_forward

    def with_a_sink(module: torch.nn.Module, *args: Tensor, **settings: object) -> tuple[Tensor, None]:
        return plain(module, *args, **settings)[0] * 0.9, None

    monkeypatch.setattr(hooks, "sdpa_attention_forward", with_a_sink)
    with (
        pytest.raises(UserError, match="computes attention in a way that its map does not reflect"),
        bs.watch(model, lambda *_: None),
    ):
        model(**_inputs(False))
