"""Words, control tasks and word vectors of probes, by hand; bad files of vectors."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from data.toy import wordpiece
from families import tiny_model
from probes.treebanks import random_sentences, sentence, sentences

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.probes.batches import ProbeDataset, epoch_batches
from bertsecrets.probes.sentences import Sentences, behaviour, relations_of
from bertsecrets.probes.vectors import embedding_vectors, glove_vectors


def test_words_without_tokens_and_those_that_depend_on_them_do_not_count() -> None:
    # "le" vanished: "cat" depends on it; "!" is punctuation.
    [row] = sentences(
        [sentence(0, ("the", 1, "det"), ("", 3, "case"), ("cat", 1, "x"), ("sees", -1, "root"), ("!", 3, "punct"))]
    ).rows
    assert row.present_W.tolist() == [True, False, True, True, True]
    assert row.head_W.tolist() == [2, 4, 2, 0, 4]
    assert row.counts_W.tolist() == [False, False, False, True, True]
    assert row.scored_W.tolist() == [False, False, False, True, False]
    assert relations_of([row]) == ("punct", "root")
    with_marks = sentences([sentence(0, ("sees", -1, "root"), ("!", 0, "punct"))], punctuation=True).rows[0]
    assert with_marks.scored_W.tolist() == [True, True]


def test_long_sentences_are_left_out_and_counted() -> None:
    words = [("the", index - 1, "x") for index in range(20)]
    split = EncodedSplit([sentence(0, *words), sentence(1, *words[:3])], wordpiece(), 8)
    kept = Sentences.of(split, punctuation=False, seed=0)
    assert ([row.position for row in kept.rows], kept.truncated) == ([1], 1)


def test_halves_share_no_sentence() -> None:
    whole = sentences(random_sentences(21))
    first, second = whole.halves(seed=3)
    positions = [[row.position for row in part.rows] for part in (first, second)]
    assert sorted(positions[0] + positions[1]) == list(range(21))
    assert abs(len(positions[0]) - len(positions[1])) == 1
    assert positions[0] == [row.position for row in whole.halves(seed=3)[0].rows]


def test_the_control_task_depends_on_the_word_type_alone() -> None:
    first, second = sentences(random_sentences(2)).rows
    for row in (first, second):
        size = len(row)
        for index, form in enumerate(row.forms):
            assert row.control_W[index] == 1 + (index, 0, size - 1)[behaviour(form, 0)]
    assert behaviour("Cat", 5) == behaviour("cat", 5)
    types = [f"word{number}" for number in range(3000)]
    counts = Counter(behaviour(form, 0) for form in types)
    assert all(900 < counts[index] < 1100 for index in range(3))
    changed = np.mean([behaviour(form, 0) != behaviour(form, 1) for form in types])
    assert 0.6 < changed < 0.73


def test_pairs_of_sentences_are_trees_of_their_own() -> None:
    words = [Annotation((Word("the", 0, 3, "X", 1, "det"), Word("cat", 4, 7, "X", -1, "root"))) for _ in range(2)]
    data = sentences([Example(0, ("the cat", "the cat"), None, tuple(words))])
    [row] = data.rows
    assert row.head_W.tolist() == [2, 0, 4, 0]
    assert set(row.control_W[:2]) <= {1, 2}
    assert set(row.control_W[2:]) <= {3, 4}
    batch = ProbeDataset(data, relations_of(data.rows), None, None)[[0]]
    # The root, then the words of the first sentence, then those of the second.
    expected = [[True, False, True, False, False], [True, True, False, False, False]]
    expected += [[True, False, False, False, True], [True, False, False, True, False]]
    assert batch.candidate_BWT[0].tolist() == expected
    assert batch.control_candidate_BWT[0, 0].tolist() == [True, True, True, False, False]


def test_batches_cover_every_sentence_once_and_bound_the_pairs() -> None:
    words = [3] * 40 + [8] * 30 + [300] * 3
    epochs = []
    for epoch in range(2):
        batches = epoch_batches(words, 16, seed=1, epoch=epoch)
        assert sorted(number for batch in batches for number in batch) == list(range(73))
        assert all(len(batch) <= 16 for batch in batches)
        assert all(len(batch) == 1 for batch in batches if words[batch[0]] == 300)
        epochs.append(batches)
    assert epochs[0] != epochs[1]


def write(folder: Path, *lines: str) -> Path:
    path = folder / "vectors.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_glove_vectors_are_scaled_and_words_without_one_are_zero(tmp_path: Path) -> None:
    data = sentences([sentence(0, ("The", 1, "det"), ("cat", -1, "root"), ("xylo9", 1, "x"), ("the", 1, "det"))])
    path = write(tmp_path, "the 3 4", "dog 9 9", "cat 0 -5 ", "the 8 8")
    vectors = glove_vectors(path, data.rows)
    scale = ((3**2 + 4**2 + 5**2) / 4) ** 0.5
    expected = torch.tensor([[3.0, 4.0], [0.0, -5.0], [0.0, 0.0], [3.0, 4.0]]) / scale
    torch.testing.assert_close(vectors.table_VD[vectors.rows(data.rows[0])], expected)
    assert vectors.missing(data.rows) == 1
    header = write(tmp_path, "3 2", "the 3 4")
    assert glove_vectors(header, data.rows).table_VD.shape == (2, 2)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("the 1 2", "cat 1 2 3"), r"vectors.txt:2: 3 numbers after the word 'cat', but 2 on earlier lines"),
        (("the 1 2", "cat 1"), r"vectors.txt:2: 1 numbers after the word 'cat', but 2"),
        (("the 1 2", "cat 1 x"), r"vectors.txt:2: 'x' is not a number"),
        (("the 1 2", "cat 1 nan"), r"vectors.txt:2: 'nan' is not a number"),
        (("the 1 2", ""), r"vectors.txt:2: 0 numbers after the word ''"),
        (("the", "cat"), r"vectors.txt:1: 0 numbers after the word 'the'"),
        (("dog 1 2",), r"has no vector for any of the 2 words"),
        ((), r"has no vector for any of the 2 words"),
    ],
)
def test_wrong_files_of_vectors_are_one_sentence(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    data = sentences([sentence(0, ("the", 1, "det"), ("cat", -1, "root"))])
    with pytest.raises(UserError, match=message):
        glove_vectors(write(tmp_path, *lines), data.rows)


def test_own_vectors_are_means_of_input_embeddings() -> None:
    data = sentences([sentence(0, ("dogs", 1, "det"), ("cat", -1, "root"), ("", 1, "x"))])
    model = tiny_model("bert")
    embeddings = model.get_input_embeddings().weight.detach()
    # The tiny model has 97 embeddings, of which the toy tokenizer's words use the first.
    vectors = embedding_vectors(model, data.rows)
    tokens = data.rows[0].tokens
    assert [len(ids) for ids in tokens] == [2, 1, 0]
    means = torch.stack([embeddings[list(ids)].mean(0) for ids in tokens[:2]])
    scaled = torch.cat([means / means.square().mean().sqrt(), torch.zeros(1, means.shape[1])])
    torch.testing.assert_close(vectors.table_VD[vectors.rows(data.rows[0])], scaled)
