"""Attention between linked words against naive loops, hand-worked cases, and heads that know nothing but position."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from data.tasks import task
from hypothesis import given, settings
from hypothesis import strategies as st
from measures.naive import Plain, bert_tokenizer, maps, plain
from numpy.typing import NDArray

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.sources.demo import DemoSource
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.measures.linguistic.token_to_token import TokenToToken

CONF = Path(__file__).parents[2] / "conf"
FEATURES = yaml.safe_load((CONF / "feature" / "default.yaml").read_text())
PAIRS = yaml.safe_load((CONF / "measure" / "token_to_token.yaml").read_text())["token_to_token"]["pairs"]
EXAMPLES = DemoSource(task("demo_nli")).examples("validation")
LENGTH = 22
"""Short enough to cut many of the examples."""


def linked(example: Plain, query: int, key: int, link: str) -> bool:
    source, target = example.words[query], example.words[key]
    if source is None or target is None or source == target:
        return False
    first, second = example.word(query), example.word(key)
    return {
        "head": source[0] == target[0] and first.head == target[1],
        "dependent": source[0] == target[0] and second.head == source[1],
        "sentence": source[0] == target[0],
        "entity": first.entity == second.entity >= 0,
    }[link]


def is_of(example: Plain, token: int, section: dict[str, list[str]] | None) -> bool:
    word = example.word(token)
    return section is None or all(getattr(word, kind) in values for kind, values in section.items())


def naive_pairs(example: Plain, section: dict[str, Any]) -> list[tuple[int, int]]:
    return [
        (query, key)
        for query in range(len(example.tokens))
        for key in range(len(example.tokens))
        if linked(example, query, key, section["link"])
        and is_of(example, query, section.get("from"))
        and is_of(example, key, section.get("to"))
    ]


def naive_beyond(example: Plain, map_SS: NDArray[np.float64], pairs: list[tuple[int, int]]) -> tuple[float, float]:
    """The mean of the pairs that have others like them, looked for in the whole map, and how far it is above those."""
    weights, differences = [], []
    for query, key in pairs:
        others = [
            map_SS[i, j]
            for i in range(len(example.tokens))
            for j in range(len(example.tokens))
            if j - i == key - query
            and (i, j) != (query, key)
            and (example.sentences[i], example.sentences[j]) == (example.sentences[query], example.sentences[key])
        ]
        if others:
            weights.append(map_SS[query, key])
            differences.append(map_SS[query, key] - np.mean(others))
    return (float(np.mean(weights)), float(np.mean(differences))) if weights else (float("nan"), float("nan"))


def naive_beyond_word(example: Plain, map_SS: NDArray[np.float64], pairs: list[tuple[int, int]]) -> float:
    """How far the pairs are above what their second tokens get from the other tokens of the first ones' sentences."""
    differences = []
    for query, key in pairs:
        others = [
            map_SS[at, key]
            for at, sentence in enumerate(example.sentences)
            if sentence is not None and sentence == example.sentences[query] and at not in (query, key)
        ]
        if others:
            differences.append(map_SS[query, key] - np.mean(others))
    return float(np.mean(differences)) if differences else float("nan")


def naive_random(example: Plain, row_S: NDArray[np.float64], places: list[int], section: dict[str, Any]) -> float:
    """The pooled weight of as many random words (tokens, for special ones), summed over the ranks of the largest."""
    if "special" in section:
        units: list[list[int]] = [[at] for at in range(len(example.tokens))]
    else:
        units = [[at for at, word in enumerate(example.words) if word == each] for each in {*example.words} - {None}]
    pool = sum if section.get("pool") == "sum" else max
    weights = sorted(pool(row_S[at] for at in unit) for unit in units)
    drawn = sum(bool({*unit} & {*places}) for unit in units)
    if section.get("pool") == "sum":
        return float(np.mean(weights)) * drawn
    choices = math.comb(len(weights), drawn)
    return sum(weight * math.comb(below, drawn - 1) / choices for below, weight in enumerate(weights))


def naive(example: Plain, map_SS: NDArray[np.float64]) -> dict[str, float]:
    values: dict[str, float] = {"uniform": 1 / len(example.tokens)}
    for name, section in PAIRS.items():
        pairs = naive_pairs(example, section)
        far = [(query, key) for query, key in pairs if abs(query - key) >= 3]
        values[name] = max((map_SS[pair] for pair in pairs), default=float("nan"))
        values[f"{name}_far"] = max((map_SS[pair] for pair in far), default=float("nan"))
        values[f"{name}_beyond_received"] = naive_beyond_word(example, map_SS, pairs)
        values[f"{name}_mean"], values[f"{name}_beyond_position"] = naive_beyond(example, map_SS, pairs)
    for name, section in FEATURES.items():
        kinds = {kind: values for kind, values in section.items() if kind != "pool"}
        if "special" in section:
            places = [at for at, token in enumerate(example.tokens) if token in ("[CLS]", "[SEP]")]
            places = places[:1] if section["special"] == "first" else places[1:]
        elif name == "negation":
            places = [at for at in range(len(example.tokens)) if (word := example.word(at)) and word.negation]
        else:
            places = [at for at in range(len(example.tokens)) if example.word(at) and is_of(example, at, kinds)]
        weights = [map_SS[0, index] for index in places]
        pool = sum if section.get("pool") == "sum" else max
        values[f"cls_to_{name}"] = pool(weights) if weights else float("nan")
        random = naive_random(example, map_SS[0], places, section) if weights else float("nan")
        values[f"cls_to_{name}_random"] = random
    return values


@given(st.integers(0, 380), st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_the_measure_equals_a_naive_loop(start: int, seed: int) -> None:
    examples = EXAMPLES[start : start + 5]
    split = EncodedSplit(examples, bert_tokenizer(), LENGTH)
    batch = split[[0, 1, 2, 3, 4]]
    attention_BHQK = maps(batch, 2, seed)
    measure = TokenToToken(1, 2, FEATURES, PAIRS)
    values_BHC = measure.per_example(attention_BHQK, batch, None)
    for row, each in enumerate(examples):
        example = plain(each, bert_tokenizer(), LENGTH)
        length = len(example.tokens)
        for head in range(2):
            expected = naive(example, attention_BHQK[row, head, :length, :length].numpy())
            for index, column in enumerate(measure.columns):
                result = values_BHC[row, head, index].item()
                assert result == pytest.approx(expected[column.name], abs=1e-12, nan_ok=True), (row, column.name)


def test_the_examples_of_the_naive_loop_hold_every_case() -> None:
    result = [plain(example, bert_tokenizer(), LENGTH) for example in EXAMPLES[:100]]
    for name, section in PAIRS.items():
        pairs = [(example, *pair) for example in result for pair in naive_pairs(example, section)]
        assert pairs, name
        assert any(abs(query - key) >= 3 for _, query, key in pairs), name
    coreferent = [(each, *pair) for each in result for pair in naive_pairs(each, PAIRS["coreferent"])]
    assert any(each.sentences[query] != each.sentences[key] for each, query, key in coreferent)
    whole = [plain(example, bert_tokenizer(), 64) for example in EXAMPLES[:100]]
    assert any(len(long.tokens) > LENGTH for long in whole)
    assert any(len(set(each.words)) < len(each.words) - 2 for each in result)


def sentence_of(*words: tuple[str, str, int, str]) -> Example:
    """A sentence of (form, tag, head, relation)."""
    text, annotated = "", []
    for form, pos, head, relation in words:
        annotated.append(Word(form, len(text), len(text) + len(form), pos, head, relation))
        text += form + " "
    return Example(0, (text,), None, (Annotation(tuple(annotated)),))


LONG = sentence_of(
    ("dogs", "NOUN", 1, "nsubj"),
    ("bark", "VERB", -1, "root"),
    ("and", "CCONJ", 5, "cc"),
    ("the", "DET", 4, "det"),
    ("cat", "NOUN", 5, "nsubj"),
    ("sees", "VERB", 1, "conj"),
    ("fish", "NOUN", 5, "obj"),
)


def test_an_example_without_pairs() -> None:
    split = EncodedSplit([LONG, Example(1, ("no",), None, (Annotation(()),))], bert_tokenizer(), 32)
    batch = split[[0, 1]]
    measure = TokenToToken(1, 2, FEATURES, PAIRS)
    columns = [column.name for column in measure.columns]
    values_BHC = measure.per_example(maps(batch, 2, 0), batch, None)
    assert values_BHC[1, :, columns.index("verb_to_subject")].isnan().all()
    assert values_BHC[1, :, columns.index("cls_to_cls")].isfinite().all()
    absent = TokenToToken(1, 2, {}, PAIRS, absent="kovaleva").per_example(maps(batch, 2, 0), batch, None)
    assert (absent[1, :, 0] == 0).all()


def test_what_does_not_fit_is_an_error_before_the_first_batch(recwarn: pytest.WarningsRecorder) -> None:
    adverbs = {"adverb_to_object": {"link": "dependent", "from": {"pos": ["ADV"]}, "to": {"relation": ["obj"]}}}
    with pytest.raises(
        UserError,
        match=r"Pair 'adverb_to_object' matches nothing in the 400 "
        r"examples.*measure\.token_to_token\.pairs\.adverb_to_object=null",
    ):
        TokenToToken(1, 1, {}, adverbs).prepare(EncodedSplit(EXAMPLES, bert_tokenizer(), 64))
    with pytest.raises(UserError, match="neither features nor pairs"):
        TokenToToken(1, 1, {}, {})
    with pytest.raises(UserError, match="Measure token_to_token has two columns called 'a_far'"):
        TokenToToken(1, 1, {}, {"a": {"link": "head"}, "a_far": {"link": "head"}})
    pairs = {"verb_to_subject": PAIRS["verb_to_subject"], "coreferent": PAIRS["coreferent"]}
    TokenToToken(1, 1, {}, pairs).prepare(EncodedSplit([LONG], bert_tokenizer(), 64))
    assert any("coreferent are empty" in str(each.message) for each in recwarn)
