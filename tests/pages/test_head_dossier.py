"""The dossier of a head: what it attends to is that of naive loops, and limits are those of scipy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.toy import wordpiece
from scipy import stats
from trainings import tiny_classifier

from bertsecrets.analysis import Context, find
from bertsecrets.data.example import Example
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.measures.one_head import Attending, OneHead, TokenPair
from bertsecrets.pages.head_view import head_view

LAYER, HEAD = 1, 2
TEXTS = [
    f"the {noun} {verb} the {other}"
    for noun in ("cat", "dog")
    for verb in ("saw", "sees", "eats")
    for other in ("cat", "fish")
]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_classifier().eval()


@pytest.fixture(scope="module")
def naive(model: Any) -> list[tuple[list[int], np.ndarray]]:
    """For each text its token ids between the special tokens, and the head's weights between all tokens."""
    tokenizer, rows = wordpiece(), []
    model.set_attn_implementation("eager")
    for text in TEXTS:
        encoding = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            weight_QK = model(**encoding, output_attentions=True).attentions[LAYER][0, HEAD].double().numpy()
        rows.append((encoding["input_ids"][0].tolist(), weight_QK))
    return rows


@pytest.fixture(scope="module")
def rows(model: Any, naive: object) -> Sequence[Any]:
    # Examples and batches in another order than the indices.
    order = [7, 3, 8, 0, 11, 1, 2, 4, 5, 6, 9, 10]
    split = EncodedSplit([Example(i, (TEXTS[i],), 0) for i in order], wordpiece(), 32)
    task = Task(name="texts", metrics=(), texts=1)
    return find(OneHead(LAYER, HEAD), Context.of_split(model, task, split, batch_size=5))[0].rows


def test_shares_and_strongest_pairs_are_those_of_loops(
    naive: list[tuple[list[int], np.ndarray]], rows: Sequence[Any]
) -> None:
    tokenizer = wordpiece()
    attending = [row for row in rows if isinstance(row, Attending)]
    assert [row.index for row in attending] == [*range(len(TEXTS))]
    for row, (ids, weight_QK) in zip(attending, naive, strict=True):
        words = range(1, len(ids) - 1)
        given = [sum(weight_QK[q, k] for k in words if k != q) for q in words]
        assert row.share == pytest.approx(np.mean(given), abs=1e-6)
        weight, query, key = max((weight_QK[q, k], q, k) for q in words for k in words if k != q)
        assert [row.query, row.key] == tokenizer.convert_ids_to_tokens([ids[query], ids[key]])
        assert row.weight == pytest.approx(weight, abs=1e-6)


def test_pairs_above_chance_are_those_of_a_t_test(
    naive: list[tuple[list[int], np.ndarray]], rows: Sequence[Any]
) -> None:
    tokenizer = wordpiece()
    weights: dict[tuple[int, int], list[float]] = {}
    chances: dict[tuple[int, int], list[float]] = {}
    for ids, weight_QK in naive:
        words = range(1, len(ids) - 1)
        of_text: dict[tuple[int, int], list[float]] = {}
        for q in words:
            for k in words:
                if q != k:
                    of_text.setdefault((ids[q], ids[k]), []).append(weight_QK[q, k])
        for pair, several in of_text.items():
            weights.setdefault(pair, []).append(float(np.mean(several)))
            chances.setdefault(pair, []).append(1 / len(ids))
    tested = {pair: values for pair, values in weights.items() if len(values) >= 10}
    expected = {}
    for pair, values in tested.items():
        excess = np.array(values) - np.array(chances[pair])
        interval = stats.ttest_1samp(excess, 0, alternative="greater").confidence_interval(1 - 0.05 / len(tested))
        name = tuple(tokenizer.convert_ids_to_tokens(list(pair)))
        expected[name] = (np.mean(values), np.mean(chances[pair]), interval.low, len(values))
    pairs = [row for row in rows if isinstance(row, TokenPair)]
    found = {(pair.query, pair.key): (pair.weight, pair.chance, pair.low, pair.examples) for pair in pairs}
    assert found.keys() == expected.keys()
    assert expected
    for name, numbers in expected.items():
        assert found[name] == pytest.approx(numbers, abs=1e-6), name
    assert [pair.weight for pair in pairs] == sorted((pair.weight for pair in pairs), reverse=True)


def test_a_view_says_what_a_classifier_answers_without_each_head(model: Any, tmp_path: Path) -> None:
    import bertsecrets as bs

    tokenizer = wordpiece()
    view = head_view(model, tokenizer, TEXTS[0])
    answers = view.report.viewer.answers
    encoding = tokenizer(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        whole_C = model(**encoding).logits[0].softmax(-1)
        with bs.override(model, [bs.HeadEdit(LAYER, HEAD, "uniform")]):
            without_C = model(**encoding).logits[0].softmax(-1)
    names = model.config.id2label
    said, other = (f"“{names[int(share_C.argmax())]}” ({float(share_C.max()):.3f})" for share_C in (whole_C, without_C))
    assert answers[LAYER, HEAD] == f"The model predicts {said}, and {other} without this head."
    assert len(set(answers.values())) > 1
    classes = [answer.partition(", and ")[2].split("”")[0] for answer in answers.values()]
    changing = sum(not said.startswith(name) for name in classes)
    count = f"{changing or 'none'} of {len(answers)} heads {'change' if changing > 1 else 'changes'}"
    assert view.report.title == f"The model predicts {said}; {count} that when disabled alone"
    assert "without this head" in view.save(tmp_path / "view.html").read_text("utf-8")
