"""Inputs of an encoder as a split: the encoder gives the same numbers on them."""

from typing import Any

import pytest
import torch
from families import tiny_model

from bertsecrets.data.recorded import EncoderInputs, RecordedSplit
from bertsecrets.errors import UserError

IDS = torch.tensor([[1, 30, 31, 2, 0, 0], [1, 40, 41, 42, 43, 2], [1, 50, 2, 0, 0, 0]])
MASK = (IDS != 0).long()


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_the_encoder_gives_the_same_vectors(left: bool, positions: bool) -> None:
    """Of padding on either side and of positions of the caller's own, in batches of any examples."""
    model = tiny_model("bert").bert.double()
    inputs: dict[str, Any] = {
        "input_ids": IDS.flip(1) if left else IDS,
        "attention_mask": MASK.flip(1) if left else MASK,
    }
    inputs["token_type_ids"] = (inputs["input_ids"] > 40).long()
    if positions:
        inputs["position_ids"] = torch.arange(6).flip(0)[None]
    split = RecordedSplit(EncoderInputs.of_call(inputs).rows(), [7, 8, 9], None, 0)
    real_BS = inputs["attention_mask"].bool()
    with torch.no_grad():
        whole_BSD = model(**inputs).last_hidden_state
        for rows in ([0, 1, 2], [2, 0]):
            batch = split[rows]
            part_BSD = model(**batch.inputs()).last_hidden_state
            assert batch.index_B.tolist() == [(7, 8, 9)[row] for row in rows]
            for at, row in enumerate(rows):
                mine_SD = part_BSD[at][batch.attention_mask_BS[at].bool()]
                assert torch.allclose(mine_SD, whole_BSD[row][real_BS[row]], atol=1e-9)


def test_tokens_that_begin_or_end_every_text_are_special() -> None:
    split = RecordedSplit(EncoderInputs.of_call({"input_ids": IDS, "attention_mask": MASK}).rows(), range(3), None, 0)
    assert split[[0, 1]].special_BS.int().tolist() == [[1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1]]
    assert split.lengths == [4, 6, 3]
    words = RecordedSplit(EncoderInputs.of_call({"input_ids": IDS[:, 1:3]}).rows(), range(3), None, 0)
    assert not words[[0, 1, 2]].special_BS.any()
    assert split.part([2]).lengths == split.part([2])[[0]].lengths_B.tolist() == [3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"inputs_embeds": torch.zeros(2, 3, 4), "attention_mask": MASK},
            "without input_ids.*instead of inputs_embeds",
        ),
        ({"input_ids": IDS, "attention_mask": MASK[:, None, None]}, r"attention_mask of shape \[3, 1, 1, 6\]"),
        ({"input_ids": IDS, "bbox": torch.zeros(3, 6, 4)}, r"bbox of shape \[3, 6, 4\]"),
    ],
)
def test_inputs_that_cannot_be_replayed(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        EncoderInputs.of_call(arguments)
