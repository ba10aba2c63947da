"""Examples that belong together: how they are named, refused, held out, and judged."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from data.toy import wordpiece
from families import CONFIGS
from transformers import BertForSequenceClassification

import bertsecrets as bs
from bertsecrets.data.example import Example
from bertsecrets.data.groups import repeats, with_groups
from bertsecrets.errors import UserError

TEXTS = ["the cat saw", "a man eats fish", "dog", "the dog sees a cat", "un happy man", "fish"]


def examples(*texts: tuple[str, ...]) -> list[Example]:
    return [Example(index, one, 0) for index, one in enumerate(texts)]


def test_rows_of_one_name_are_of_one_group_whatever_other_rows_there_are() -> None:
    rows = examples(("a",), ("b",), ("c",))
    grouped = with_groups(rows, ["x", "y", "x"], "group")
    assert grouped[0].group == grouped[2].group != grouped[1].group
    assert with_groups(rows[:2], ["y", "z"], "group")[0].group == grouped[1].group
    assert torch.tensor([one.group for one in grouped]).dtype == torch.int64


@pytest.mark.parametrize(
    ("texts", "names", "message"),
    [
        ([("a",), ("b",)], ["x", "x"], "group holds 'x' in all 2 rows, so that no two are independent"),
        ([("a",), ("b",)], ["x", None], "group is empty in row 1; give every row a group."),
        ([("a",), ("b",)], [float("nan"), "x"], "group is empty in row 0"),
        ([("a", "b"), ("c", "d"), ("a", "b")], ["x", "y", "y"], "splits a pair: 'a / b' is in the groups 'x' and 'y'"),
    ],
)  # fmt: skip
def test_wrong_groups_are_refused(texts: list[tuple[str, ...]], names: list[Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        with_groups(examples(*texts), names, "group")
    assert message in str(error.value)


def test_repeated_premises_are_named() -> None:
    rows = examples(*((f"premise {i // 3}", f"hypothesis {i}") for i in range(30)))
    assert repeats(rows, ["premise", "hypothesis"]) == (
        "Intervals may be too narrow: 30 of the 30 rows share their 'premise' with another row; set data.group=premise "
        "to judge such rows together."
    )
    assert repeats(with_groups(rows, [i // 3 for i in range(30)], "group"), ["premise", "hypothesis"]) is None
    assert repeats(examples(*((f"text {max(i, 1)}",) for i in range(100))), ["text"]) is None


def test_texts_of_a_frame_are_judged_by_its_groups() -> None:
    torch.manual_seed(0)
    model, tokenizer = BertForSequenceClassification(CONFIGS["bert"]()), wordpiece()
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    frame = pd.DataFrame({"text": TEXTS * 8, "label": np.arange(48) % 2, "review": np.arange(48) // 6})
    given = (model.eval(), tokenizer, frame["text"], frame["label"])
    alone, grouped = bs.disable(*given, resamples=200), bs.disable(*given, group=frame["review"], resamples=200)
    assert grouped.outcomes.group_N is not None
    assert len(grouped.outcomes.group_N.unique()) == 8
    # The same models, judged by eight groups in place of 48 examples.
    for first, second in zip(alone.rows, grouped.rows, strict=True):
        assert first["delta"] == second["delta"]
        assert second["high"] - second["low"] > first["high"] - first["low"]
    with pytest.raises(UserError, match="group has 3 values for 48 texts; give one for each text"):
        bs.disable(*given, group=[1, 2, 3])
