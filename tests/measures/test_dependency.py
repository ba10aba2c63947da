"""Dependency heads against a naive loop over words, by hand, and from a treebank to the report."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from data.toy import wordpiece
from measures.naive import batches_with_maps, bert_tokenizer, demo, maps
from numpy.typing import NDArray

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.measures.base import Passed
from bertsecrets.measures.dependency.measure import Dependency
from bertsecrets.measures.dependency.rows import Relation
from bertsecrets.measures.dependency.words import word_maps
from bertsecrets.statistics.splits import choose_and_score, choosing_units, combined_p

Array = NDArray[np.float64]
OFFSETS = (-3, -2, -1, 1, 2, 3)


def sentence(text: str, *words: tuple[str, int, str]) -> Example:
    """A sentence from its words, their heads (from 0, -1 for the root) and relations, found from left to right."""
    annotated, end = [], 0
    for form, head, relation in words:
        start = text.index(form, end)
        end = start + len(form)
        annotated.append(Word(form, start, end, "X", head, relation))
    return Example(0, (text,), None, (Annotation(tuple(annotated)),))


def test_words_attend_from_their_first_token_or_from_all() -> None:
    # Tokens: [CLS] a b1 b2 c [SEP]; words: a, b, c.
    token = torch.zeros(1, 1, 6, 6)
    token[0, 0, 2] = torch.tensor([0.0, 0.6, 0.1, 0.1, 0.2, 0.0])
    token[0, 0, 3] = torch.tensor([0.2, 0.2, 0.1, 0.1, 0.4, 0.0])
    for from_word, expected in (("mean", [0.4, 0.2, 0.3]), ("first", [0.6, 0.2, 0.2])):
        word_WW = word_maps(token, torch.tensor([[-1, 0, 1, 1, 2, -1]]), 3, from_word)[0, 0]
        torch.testing.assert_close(word_WW[1], torch.tensor(expected))


def naive_words(token: Array, word_of: list[int], words: int) -> Array:
    """One map, word by word: the sum of the columns of each word, then the mean of the rows of each word."""
    tokens_of = [[index for index, word in enumerate(word_of) if word == i] for i in range(words)]
    into = np.stack([token[:, places].sum(1) for places in tokens_of], 1)
    return np.stack([into[places].mean(0) if places else np.zeros(words) for places in tokens_of])


def naive(
    split: EncodedSplit, positions: list[int], map_of: list[Array], possessive: bool = True
) -> dict[tuple[str, int], list[tuple[Array, int, Array]]]:
    """(relation, direction) -> for each sentence, right answers by head ``[N]``, words, and right answers by offset."""
    rows: dict[tuple[str, int], list[tuple[Array, int, Array]]] = {}
    for position, map_NTT in zip(positions, map_of, strict=True):
        [annotation] = split.examples[position].annotations
        words = annotation.words
        word_of = list(split.rows[position].words)
        present = [i in word_of for i in range(len(words))]
        per_head = [naive_words(token, word_of, len(words)) for token in map_NTT]
        for direction in (0, 1):
            right: dict[str, list[tuple[Array, Array]]] = {}
            for i, word in enumerate(words):
                asks = i
                after = words[i + 1].form if i + 1 < len(words) else ""
                if possessive and word.relation in ("poss", "nmod:poss") and after in ("'s", "s'", "’s"):
                    asks = i + 1
                if not present[asks] or (word.head >= 0 and not present[word.head]):
                    continue
                answers = []
                for attention in per_head:
                    scores = (attention[asks] if direction == 0 else attention[:, asks]).tolist()
                    others = [j for j in range(len(words)) if j != asks and present[j]]
                    answers.append(max(others, key=lambda j: scores[j]) if others else asks)
                by_offset = [min(max(asks + offset, 0), len(words) - 1) for offset in OFFSETS]
                pair = np.array(answers) == word.head, np.array(by_offset) == word.head
                for name in ("all", word.relation):
                    right.setdefault(name, []).append(pair)
            for name, pairs in right.items():
                heads = np.sum([pair[0] for pair in pairs], axis=0)
                offsets = np.sum([pair[1] for pair in pairs], axis=0)
                rows.setdefault((name, direction), []).append((heads, len(pairs), offsets))
    return rows


def test_two_hundred_sentences_equal_a_naive_implementation() -> None:
    split = EncodedSplit(demo("demo_sentiment", 200), bert_tokenizer(), 64)
    measure = Dependency(2, 2, min_count=20)
    measure.prepare(split)
    everything: list[Array] = []
    for batch, attention_LBHQK in batches_with_maps(split, (50,) * 4, 2, 2):
        for layer in range(2):
            measure.update(Passed(layer, batch, attention_LBHQK[layer]))
        for row, length in enumerate(batch.lengths_B.tolist()):
            everything.append(attention_LBHQK[:, row, :, :length, :length].flatten(0, 1).numpy())
    grid = measure.compute()
    assert len(measure.columns) > 10
    for (relation, direction), sentences in naive(split, [*range(200)], everything).items():
        name = relation.replace(":", "_") + ("_from_head" if direction else "")
        if name not in grid.columns:
            continue
        correct_SN = np.stack([heads for heads, _, _ in sentences])
        words_S = np.array([words for _, words, _ in sentences])
        share_N = correct_SN.sum(0) / words_S.sum()
        number = grid.columns.index(name)
        assert grid.value_LHC[:, :, number].flatten().numpy() == pytest.approx(share_N, abs=1e-12)
        assert grid.count_LHC[0, 0, number] == words_S.sum()
        # The ratio estimator over all sentences, those without such words included.
        squares = ((correct_SN - share_N * words_S[:, None]) ** 2).sum(0)
        error_N = np.sqrt(200 / 199 * squares) / words_S.sum()
        assert grid.stderr_LHC[:, :, number].flatten().numpy() == pytest.approx(error_N, abs=1e-9)


def test_possessors_punctuation_and_roots_by_hand() -> None:
    words = (("the", 1, "det"), ("man", 3, "nmod:poss"), ("'s", 1, "case"), ("dog", -1, "root"), (".", 3, "punct"))
    split = EncodedSplit([sentence("the man's dog.", *words)], wordpiece(), 32)
    batch = split[[0]]
    # "'s" is two tokens. Everyone attends to the word right of it; the last to itself.
    word_of = split.rows[0].words
    attention = torch.zeros(1, 1, len(word_of), len(word_of))
    for query, word in enumerate(word_of):
        target = min(word + 1, 4) if word >= 0 else 0
        attention[0, 0, query, word_of.index(target) if word >= 0 else 0] = 1.0
    expected = {
        # The 's attends to dog, the possessor's head; without the rule, man attends to 's.
        (True, True, True): {"nmod_poss": 1.0, "det": 1.0, "all": 2 / 5},
        (False, True, True): {"nmod_poss": 0.0, "det": 1.0, "all": 1 / 5},
        (True, False, True): {"all": 2 / 4},
        (True, True, False): {"all": 2 / 4},
        (True, False, False): {"all": 2 / 3},
    }
    for (possessive, punctuation, root), shares in expected.items():
        settings = {"possessive": possessive, "punctuation": punctuation, "root": root}
        measure = Dependency(1, 1, relations=["nmod:poss", "det"], **settings)
        measure.prepare(split)
        measure.update(Passed(0, batch, attention))
        grid = measure.compute()
        for name, share in shares.items():
            assert grid.column(name).item() == pytest.approx(share), (possessive, punctuation, root, name)


def test_truncated_sentences_and_words_without_tokens_do_not_count() -> None:
    whole = sentence("the cat sees", ("the", 1, "det"), ("cat", 2, "nsubj"), ("sees", -1, "root"))
    # The second word of a contraction has no characters; a word may depend on it.
    contracted = (Word("the", 0, 3, "X", 1, "det"), Word("x", 3, 3, "X", 2, "det"), Word("cat", 4, 7, "X", -1, "root"))
    vanished = Example(1, ("the cat",), None, (Annotation(contracted),))
    long = replace(sentence("the " * 20, *[("the", i - 1, "det") for i in range(20)]), index=2)
    split = EncodedSplit([whole, vanished, long], wordpiece(), 8)
    measure = Dependency(1, 1, relations=["det"])
    with pytest.warns(UserWarning, match="skips 1 truncated sentences of 3"):
        measure.prepare(split)
    batch = split[[0, 1, 2]]
    measure.update(Passed(0, batch, maps(batch, 1, seed=0)))
    grid = measure.compute()
    assert grid.count_LHC[0, 0].tolist() == [4, 1, 4, 1]
    assert int(measure.vanished) == 1
    assert int((measure.words_NR[:, 0] > 0).sum()) == 2
    short = EncodedSplit([long], wordpiece(), 8)
    with pytest.raises(UserError, match=r"All 1 sentences are longer than 8 tokens; raise task.training.max_length"):
        Dependency(1, 1).prepare(short)


def test_heads_are_chosen_on_some_sentences_and_scored_on_the_others() -> None:
    split = EncodedSplit(demo("demo_sentiment", 120), bert_tokenizer(), 64)
    measures = [Dependency(1, 2, min_count=20, splits=7, seed=3) for _ in range(2)]
    for measure, sizes in zip(measures, ((120,), (7, 50, 63)), strict=True):
        measure.prepare(split)
        for batch, attention_LBHQK in batches_with_maps(split, sizes, 1, 2):
            measure.update(Passed(0, batch, attention_LBHQK[0]))
    found = [measure.findings(measure.compute(), torch.nn.Identity()) for measure in measures]
    # Neither the counts nor the splits depend on batches.
    assert found[0] == found[1]
    relations = {row.relation: row for row in found[0] if isinstance(row, Relation)}
    det = relations["det"]
    map_of = [attention_LBHQK[0, 0].numpy() for _, attention_LBHQK in batches_with_maps(split, (1,) * 120, 1, 2)]
    rows = [naive(split, [index], [map_of[index]]) for index in range(120)]
    nothing = ((0, 0), 0, [0] * len(OFFSETS))
    cells = [
        [row["det", direction][0] if ("det", direction) in row else nothing for direction in (0, 1)] for row in rows
    ]
    right_NC = np.array([[of_sentence[way][0][head] for head in (0, 1) for way in (0, 1)] for of_sentence in cells])
    words_N, offset_NO = (np.array([of_sentence[0][part] for of_sentence in cells]) for part in (1, 2))
    best = int(offset_NO.sum(0).argmax())
    # Choosing and scoring are compared with loops in tests/statistics/test_splits.py.
    chosen = choose_and_score(right_NC.astype(float), offset_NO, words_N, choosing_units(120, 7, 3))
    assert (det.head, int(det.from_head)) == divmod(chosen.candidate, 2)
    assert (det.chosen, det.words) == (chosen.share, words_N.sum())
    assert (det.accuracy.value, det.accuracy.low, det.accuracy.high) == pytest.approx(chosen.accuracy.over_splits())
    assert (det.gain.value, det.gain.low, det.gain.high) == pytest.approx(chosen.gains.over_splits(best))
    assert (det.offset, det.baseline) == (OFFSETS[best], pytest.approx(offset_NO[:, best].sum() / words_N.sum()))
    # Holm over the relations that are scored: at least the p-value itself, at most Bonferroni's.
    combined = combined_p(chosen.gains.exceeds_zero().max(1))
    assert combined <= det.p_gain + 1e-12 <= min(1, combined * (len(relations) - 1)) + 1e-9
    assert "root" not in relations
    assert "punct" not in relations


def test_a_relation_that_nobody_has_is_reported() -> None:
    split = EncodedSplit(demo("demo_sentiment", 20), bert_tokenizer(), 64)
    with pytest.raises(
        UserError, match=r"Relation 'dett' of measure.dependency.relations does not occur in the 20 .*'det'"
    ):
        Dependency(1, 1, relations=["dett"]).prepare(split)
