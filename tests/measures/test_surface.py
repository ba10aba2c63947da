"""Attention to special tokens and punctuation against a naive loop over tokens."""

import numpy as np
import pytest
from data.toy import byte_level, wordpiece
from measures.naive import bert_tokenizer, maps
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.measures.surface import Surface, mark_ids

TEXTS = [
    ("The cat, a dog. And 3.14!", "He sat."),
    ("No marks here", "none there either"),
    (". . , ,", "a"),
]


def test_every_column_equals_a_naive_loop() -> None:
    tokenizer = wordpiece()
    split = EncodedSplit([Example(i, text, None) for i, text in enumerate(TEXTS)], tokenizer, 64)
    batch = split[[0, 1, 2]]
    attention = maps(batch, 2, seed=3)
    measure = Surface(1, 2)
    measure.prepare(split)
    measured = measure.per_example(attention, batch, None)
    for row in range(3):
        tokens = tokenizer.convert_ids_to_tokens(batch.input_ids_BS[row].tolist())
        real = [place for place, token in enumerate(tokens) if token != "[PAD]"]

        def kind(place: int, tokens: list[str] = tokens) -> int:
            return {"[CLS]": 0, "[SEP]": 1, ".": 2, ",": 2}.get(tokens[place], 3)

        for head in range(2):
            to = np.zeros((len(real), 4))
            for query, i in enumerate(real):
                for j in real:
                    to[query, kind(j)] += attention[row, head, i, j].item()
            separators = [query for query, i in enumerate(real) if kind(i) == 1]
            others = [query for query, i in enumerate(real) if kind(i) != 1]
            uniform = [sum(kind(j) == number for j in real) / len(real) for number in range(4)]
            expected = [*to.mean(0), to[separators, 1].mean(), to[others, 1].mean(), *uniform]
            assert measured[row, head].tolist() == pytest.approx(expected, abs=1e-12)
            assert to.mean(0).sum() == pytest.approx(1)


def test_texts_without_a_separator_do_not_count_in_attention_from_it() -> None:
    tokenizer = wordpiece()
    split = EncodedSplit([Example(0, ("the cat",), None)], tokenizer, 16)
    batch = split[[0]]
    batch.special_BS[0, -1] = False
    measure = Surface(1, 2)
    measure.prepare(split)
    values = measure.per_example(maps(batch, 2, seed=0), batch, None)
    assert values[..., 4:6].isnan().all()
    assert values[..., 1].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("tokenizer", "tokens"),
    [(wordpiece(), {".", ","}), (byte_level(), {".", ","}), (bert_tokenizer(), {".", ","})],
    ids=["wordpiece", "bytes", "bert"],
)
def test_marks_are_found_in_any_tokenizer(tokenizer: PreTrainedTokenizerFast, tokens: set[str]) -> None:
    assert set(tokenizer.convert_ids_to_tokens(mark_ids(tokenizer, (".", ",")))) == tokens
