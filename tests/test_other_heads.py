"""Models with other task heads: their attention is watched and measured as that of the encoder inside them."""

import math
from typing import Any

import pytest
import torch
from data.toy import wordpiece
from families import random_model
from transformers import (
    AutoModel,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
)

import bertsecrets as bs
from bertsecrets.attention.watch import capture
from bertsecrets.errors import UserError

TEXTS = ["the dog chased the cat", "the old man sat", "a chair", "on the cat", "the dog"]


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        (AutoModelForTokenClassification, "expected a list of words"),
        (AutoModelForMultipleChoice, "has no choices, one"),
        (AutoModelForQuestionAnswering, "is not a pair of question and text"),
    ],
)
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_other_task_heads_are_watched_and_measured(kind: Any, refusal: str, family: str) -> None:
    model = random_model(kind, family, vocab_size=len(wordpiece()), num_labels=2)
    config = model.config
    plain = AutoModel.from_config(config, attn_implementation="eager").eval()
    missing = plain.load_state_dict(model.base_model.state_dict(), strict=False).missing_keys
    assert all("pooler" in key for key in missing)
    inputs = wordpiece()(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = torch.stack(plain(**inputs, output_attentions=True).attentions, 1)
    entropy_LH = torch.zeros(config.num_hidden_layers, config.num_attention_heads)
    for row, (map_LHQK, real_S) in enumerate(zip(capture(model, inputs), inputs["attention_mask"].bool(), strict=True)):
        assert torch.allclose(map_LHQK, expected[row][:, :, real_S][:, :, :, real_S], atol=1e-6)
        entropy_LH += torch.special.entr(map_LHQK).sum(-1).mean(-1) / len(TEXTS) / math.log(2)
    grid = bs.measure(model, wordpiece(), TEXTS, "entropy")
    assert torch.allclose(grid.column(grid.columns[0]).float(), entropy_LH, atol=1e-5)
    assert "3 layers x 4 heads" in repr(bs.head_view(model, wordpiece(), "the dog chased the cat"))
    with pytest.raises(UserError, match=refusal):
        bs.disable(model, wordpiece(), TEXTS, [0, 1, 0, 1, 0])


def test_choices_are_watched_side_by_side() -> None:
    model = random_model(AutoModelForMultipleChoice, "bert", vocab_size=len(wordpiece()))
    inputs = wordpiece()(TEXTS[:4], padding=True, return_tensors="pt")
    maps: list[torch.Tensor] = []
    with torch.no_grad(), bs.watch(model, lambda layer, attention_BHQK: maps.append(attention_BHQK)):
        model(**{name: tensor.unflatten(0, (2, 2)) for name, tensor in inputs.items()})
    singles = capture(model, inputs)
    for row, real_S in enumerate(inputs["attention_mask"].bool()):
        map_LHQK = torch.stack([attention_BHQK[row] for attention_BHQK in maps])
        assert torch.allclose(map_LHQK[:, :, real_S][:, :, :, real_S], singles[row], atol=1e-6)
