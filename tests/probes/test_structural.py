"""The structural probe against naive loops, and on vectors in which a known projection encodes the tree."""

from contextlib import nullcontext
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from data.toy import wordpiece
from families import tiny_model
from probes.treebanks import random_sentences, sentence, sentences

from bertsecrets.data.example import Example
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.probes.sentences import Sentence, Sentences
from bertsecrets.probes.structural import (
    HiddenStates,
    StructuralDataset,
    StructuralProbe,
    gold_edges,
    spanning_edges,
    store_hidden_states,
    structural_loss,
    structural_score,
    tree_distances,
)
from bertsecrets.probes.training import Recipe

WIDTH, TREE = 20, 8
CPU = torch.device("cpu")


def single_sentences() -> Sentences:
    """A sentence with punctuation and a word without tokens, and random ones."""
    odd = sentence(0, ("the", 2, "det"), ("", 2, "case"), ("cat", 3, "x"), ("sees", -1, "root"), ("!", 3, "punct"))
    return sentences([odd, *random_sentences(6)[1:]])


def pairs() -> Sentences:
    """Pairs of sentences: two trees each."""
    both = zip(random_sentences(4), random_sentences(4, seed=7), strict=True)
    return sentences(
        [
            Example(index, (*one.texts, *other.texts), None, (*one.annotations, *other.annotations))
            for index, (one, other) in enumerate(both)
        ]
    )


def naive_distances(row: Sentence) -> list[list[float]]:
    """Steps up from both words to their first common ancestor."""

    def ancestors(word: int) -> list[int]:
        path = [word]
        while row.head_W[path[-1]]:
            path.append(int(row.head_W[path[-1]]) - 1)
        return path

    def distance(one: int, other: int) -> float:
        first, second = ancestors(one), ancestors(other)
        shared = next((word for word in first if word in second), None)
        return float("inf") if shared is None else first.index(shared) + second.index(shared)

    return [[distance(i, j) for j in range(len(row))] for i in range(len(row))]


@pytest.mark.parametrize("data", [single_sentences(), pairs()])
def test_distances_in_trees_equal_a_walk_over_ancestors(data: Sentences) -> None:
    for row in data.rows:
        assert tree_distances(row).tolist() == naive_distances(row)


def test_edges_of_a_sentence_by_hand() -> None:
    row = single_sentences().rows[0]
    assert gold_edges(row) == {(0, 2), (2, 3)}
    # "the" and "sees" coincide: a distance of 0 is an edge, too.
    distance_WW = np.abs(np.subtract.outer([0.0, 0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0, 0.0]))
    distance_WW[0, 2] = distance_WW[2, 0] = 3.0
    assert spanning_edges(row, distance_WW) == {(0, 3), (2, 3)}


@pytest.mark.parametrize("data", [single_sentences(), pairs()])
def test_spanning_edges_equal_those_of_a_naive_search(data: Sentences) -> None:
    generator = np.random.default_rng(0)
    for row in data.rows:
        distance_WW = generator.random((len(row), len(row)))
        distance_WW += distance_WW.T
        expected, parts = set(), {word: {word} for word in np.flatnonzero(row.scored_W).tolist()}
        # Kruskal: the shortest edge that joins two parts, again and again.
        for i, j in sorted(combinations(parts, 2), key=lambda edge: distance_WW[edge]):
            if row.tree_W[i] == row.tree_W[j] and parts[i] is not parts[j]:
                expected.add((i, j))
                joined = parts[i] | parts[j]
                parts |= dict.fromkeys(joined, joined)
        assert spanning_edges(row, distance_WW) == expected


@pytest.mark.parametrize("data", [single_sentences(), pairs()])
def test_the_loss_equals_a_naive_loop(data: Sentences, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    file = HiddenStates(tmp_path / "states", [len(row) for row in data.rows], 2, WIDTH)
    for number, row in enumerate(data.rows):
        file.write(number, torch.randn(len(row), 2, WIDTH, generator=generator))
    batch = StructuralDataset(data, [0, 1, 3], file)[[2, 0, 1]]
    assert [row.position for row in batch.rows] == [3, 0, 1]
    probe = StructuralProbe(file.scale_M, WIDTH)
    expected = 0.0
    for number in (3, 0, 1):
        row, state_WMD = data.rows[number], file.read(number)
        words = np.flatnonzero(row.present_W).tolist()
        for state in range(2):
            scale = np.concatenate([file.read(row)[:, state].double().numpy() for row in range(len(data.rows))])
            mapped = state_WMD[:, state] / np.sqrt((scale**2).mean()) @ probe.map_MDR[state]
            for i in words:
                for j in words:
                    if row.tree_W[i] == row.tree_W[j]:
                        distance = float((mapped[i] - mapped[j]).square().sum())
                        expected += abs(naive_distances(row)[i][j] - distance) / len(words) ** 2
    assert structural_loss(probe(batch.state_BWMD), batch).item() == pytest.approx(expected, rel=1e-3)


def planted(data: Sentences, path: Path, mixing_DD: torch.Tensor) -> HiddenStates:
    """Noise as state 0; as state 1, mixed with louder noise, vectors in which every edge has a dimension of its own."""
    generator = torch.Generator().manual_seed(len(data.rows))
    file = HiddenStates(path, [len(row) for row in data.rows], 2, WIDTH)
    for number, row in enumerate(data.rows):
        state_W2D = torch.randn(len(row), 2, WIDTH, generator=generator)
        for word in range(len(row)):
            path_up = [word]
            while row.head_W[path_up[-1]]:
                path_up.append(int(row.head_W[path_up[-1]]) - 1)
            state_W2D[word, 1, :TREE] = torch.zeros(TREE).index_fill(0, torch.tensor(path_up), 1.0)
        state_W2D[:, 1] = state_W2D[:, 1] @ mixing_DD
        file.write(number, state_W2D)
    return file


def test_a_planted_tree_is_found_in_its_state_alone(tmp_path: Path) -> None:
    mixing_DD = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)))[0]
    train, scored = sentences(random_sentences(200)), sentences(random_sentences(60, seed=1))
    states = [planted(part, tmp_path / str(size), mixing_DD) for size, part in enumerate((train, scored))]
    # The projection on the dimensions of the edges is exact.
    known = StructuralProbe(torch.ones(2), WIDTH)
    with torch.no_grad():
        known.map_MDR[:] = mixing_DD.T @ torch.diag((torch.arange(WIDTH) < TREE).float())
        batch = StructuralDataset(scored, range(60), states[1])[list(range(60))]
        distance_BMWW = known(batch.state_BWMD)
    wrong_BWW = (distance_BMWW[:, 1] - batch.distance_BWW).masked_select(batch.pair_BWW)
    assert wrong_BWW.abs().max() < 0.05
    score, found = structural_score(
        train,
        states[0],
        scored,
        states[1],
        Recipe(12, 0.03, 16, 0),
        replicates=50,
    )
    edges = sum(len(row) - 1 for row in scored.rows)
    assert (score.edges, score.rank, score.chosen_on) == (edges, WIDTH, 20)
    assert [row.chosen for row in found] == [False, True]
    embeddings, chosen = (row.uuas.value for row in found)
    assert chosen > 0.97
    # Of random spanning trees of n words each edge has a chance of 2 / n.
    assert embeddings < 0.55
    assert score.gain.value == pytest.approx(chosen - embeddings)
    near = sum(abs(word - head + 1) == 1 for row in scored.rows for word, head in enumerate(row.head_W) if head)
    assert score.neighbours.value == pytest.approx(near / edges)


def test_too_few_training_sentences_are_reported(tmp_path: Path) -> None:
    data = sentences(random_sentences(9))
    file = HiddenStates(tmp_path / "states", [len(row) for row in data.rows], 2, WIDTH)
    with pytest.raises(
        UserError, match=r"needs at least 10 training sentences, but there are 9; give more, or remove it"
    ):
        structural_score(data, file, data, file, Recipe(1, 0.01, 16, 0), replicates=5)


def test_stored_states_are_means_over_the_tokens_of_a_word(tmp_path: Path) -> None:
    examples = [sentence(0, ("dogs", 1, "x"), ("eats", -1, "root"), ("", 1, "x"), ("unhappy", 1, "x"))]
    split = EncodedSplit([*examples, *random_sentences(4)[1:]], wordpiece(), 64)
    data = Sentences.of(split, punctuation=False, seed=0)
    model = tiny_model("bert").eval()
    counts: list[int] = []
    file = store_hidden_states(model, data, tmp_path / "states", 3, nullcontext, counts.append)
    assert sum(counts) == len(data.rows)
    for number, row in enumerate(data.rows):
        states = model(**split[[row.position]].inputs(), output_hidden_states=True).hidden_states
        words = split.rows[row.position].words
        for word in range(len(row)):
            tokens = [place for place, other in enumerate(words) if other == word]
            for state, state_1SD in enumerate(states):
                expected = state_1SD[0, tokens].mean(0) if tokens else torch.zeros(state_1SD.shape[-1])
                torch.testing.assert_close(file.read(number)[word, state], expected, atol=2e-3, rtol=0)
    states_NMD = torch.cat([file.read(number) for number in range(len(data.rows))])
    squares = np.square(states_NMD.double().numpy()).mean((0, 2))
    torch.testing.assert_close(file.scale_M.double(), torch.from_numpy(np.sqrt(squares)), rtol=1e-3, atol=0)
