"""Attention to special tokens and punctuation against a naive loop over tokens, and its section."""

from pathlib import Path

import numpy as np
import pytest
import torch
from data.toy import byte_level, wordpiece
from measures.naive import bert_tokenizer, maps
from measures.toy import view_of
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.grid import HeadGrid
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


def test_the_section_names_the_layers_and_heads(tmp_path: Path) -> None:
    measure = Surface(2, 2)
    value_LHC = torch.zeros(2, 2, 10, dtype=torch.float64)
    value_LHC[1, :, 1] = torch.tensor([0.9, 0.5])
    value_LHC[0, 0, 0] = 0.25
    value_LHC[..., 6:] = 0.1
    error_LHC, count_LHC = torch.full_like(value_LHC, 0.01), torch.full_like(value_LHC, 7).long()
    grid = HeadGrid("surface", measure.columns, value_LHC, error_LHC, count_LHC)
    section = Surface.describe(view_of(tmp_path, measure, grid))
    assert section is not None
    assert section.findings[0] == (
        "[SEP] gets most attention in layer 1 (0.700 on average over heads; uniform attention gives 0.100), most of all in "
        "layer 1 · head 0 (0.900). The top head is significantly higher than every other (standard errors, Holm-corrected)."
    )
    assert section.findings[-1] == "More than half of all attention goes to [SEP] in layer 1."
    assert [block.name for block in section.figures] == ["surface", "surface_heads"]
    dots = section.figures[0].figure.axes[0].lines[2]
    assert dots.get_ydata().tolist() == pytest.approx([0.0, 0.0, 0.9, 0.5])
