"""The structural probe: a linear map of hidden states after which squared distances approximate tree distances (Hewitt
and Manning 2019).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree, shortest_path
from torch import Tensor, nn

from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast, evaluating, unwrap
from bertsecrets.probes.attention_file import SentenceFile, encoded_batches
from bertsecrets.probes.rows import HiddenState, Structural
from bertsecrets.probes.scoring import Resamples
from bertsecrets.probes.sentences import Sentence, Sentences
from bertsecrets.probes.training import Recipe, Training, fit_and_predict

RANK = 64
"""Dimensions of the probe's output, or fewer if the vectors have fewer."""

_CHOOSERS = 10
"""One in this many training sentences is held out for choosing the layer."""

Distances = NDArray[np.float64]


class HiddenStates(SentenceFile):
    """Hidden states of the words of sentences in a file, ``[W, M, D]`` each, the mean over each word's tokens.

    Args:
        path: The file.
        words: Number of words of each sentence.
        states: Hidden states of a token, M: the embeddings, then the output of each layer.
        width: D.

    Raises:
        UserError: If the disk has no room for it.
    """

    def __init__(self, path: Path, words: Sequence[int], states: int, width: int) -> None:
        super().__init__(path, [(count, states, width) for count in words], "The hidden states")
        self.width = width
        self._squares_M = torch.zeros(states, dtype=torch.float64)

    @property
    def scale_M(self) -> Tensor:
        """Root mean square of each layer's hidden states: divided by it, one learning rate suits every layer."""
        return (self._squares_M * len(self._squares_M) / len(self.values)).sqrt().float().clamp(min=1e-6)

    def write(self, number: int, value: Tensor) -> None:
        self._squares_M += value.cpu().double().square().sum((0, 2))
        super().write(number, value)


@torch.no_grad()
def store_hidden_states(
    model: nn.Module,
    sentences: Sentences,
    path: Path,
    batch_size: int,
    context: Autocast,
    progress: Callable[[int], object],
) -> HiddenStates:
    """Write the hidden states of all words of sentences to a new file, batch by batch.

    Raises:
        UserError: If the disk has no room for it.
    """
    network = unwrap(model)
    device = next(network.parameters()).device
    file: HiddenStates | None = None
    with evaluating(network):
        for numbers, batch in encoded_batches(sentences, batch_size, device):
            with context():
                layers = network(**batch.inputs(), output_hidden_states=True).hidden_states
            state_BSMD = torch.stack(layers, 2).float()
            words = max(len(sentences.rows[number]) for number in numbers)
            of_word_BWS = (batch.word_BS[:, None] == torch.arange(words, device=device)[:, None]).float()
            of_word_BWS /= of_word_BWS.sum(-1, keepdim=True).clamp(min=1)
            mean_BWMD = torch.einsum("bws,bsmd->bwmd", of_word_BWS, state_BSMD).cpu()
            if file is None:
                file = HiddenStates(path, [len(row) for row in sentences.rows], *mean_BWMD.shape[2:])
            for row, number in enumerate(numbers):
                file.write(number, mean_BWMD[row, : len(sentences.rows[number])])
            progress(len(numbers))
    assert file is not None
    return file


@dataclass(frozen=True)
class StructuralBatch:
    """B sentences of up to W words.

    Args:
        rows: The sentences.
        state_BWMD: Hidden states.
        distance_BWW: Number of edges between two words in their tree; 0 for pairs that do not count.
        pair_BWW: The word pairs that count: in the same tree, and both with a token.
    """

    rows: tuple[Sentence, ...]
    state_BWMD: Tensor
    distance_BWW: Tensor
    pair_BWW: Tensor

    def to(self, device: torch.device | str) -> "StructuralBatch":
        """The batch on another device."""
        return replace(
            self,
            state_BWMD=self.state_BWMD.to(device),
            distance_BWW=self.distance_BWW.to(device),
            pair_BWW=self.pair_BWW.to(device),
        )


class StructuralDataset:
    """A subset of the sentences with their trees and hidden states: ``dataset[numbers]`` is a batch.

    Args:
        sentences: The sentences whose hidden states are stored.
        kept: Numbers of the sentences in the dataset.
        states: The hidden states.
    """

    def __init__(self, sentences: Sentences, kept: Sequence[int], states: HiddenStates) -> None:
        self.sentences = replace(sentences, rows=tuple(sentences.rows[number] for number in kept))
        self.kept = kept
        self.states = states
        self.distances = [torch.from_numpy(tree_distances(row)).float() for row in self.sentences.rows]

    def __getitem__(self, numbers: Sequence[int]) -> StructuralBatch:
        rows = tuple(self.sentences.rows[number] for number in numbers)
        states = [self.states.read(self.kept[number]) for number in numbers]
        width = max(len(row) for row in rows)
        distance_BWW = torch.full((len(rows), width, width), torch.inf)
        for distance_WW, number, row in zip(distance_BWW, numbers, rows, strict=True):
            absent_W = torch.from_numpy(~row.present_W)
            absent_WW = absent_W | absent_W[:, None]
            distance_WW[: len(row), : len(row)] = self.distances[number].masked_fill(absent_WW, torch.inf)
        pair_BWW = distance_BWW.isfinite()
        return StructuralBatch(
            rows,
            nn.utils.rnn.pad_sequence(states, batch_first=True),
            distance_BWW.masked_fill(~pair_BWW, 0.0),
            pair_BWW,
        )


def tree_distances(row: Sentence) -> Distances:
    """Number of edges between every two words of an example, ``[W, W]``; infinite between trees."""
    words = np.flatnonzero(row.head_W)
    edges = coo_array((np.ones(len(words)), (words, row.head_W[words] - 1)), shape=(len(row), len(row)))
    return np.asarray(shortest_path(edges.tocsr(), directed=False, unweighted=True))


def gold_edges(row: Sentence) -> set[tuple[int, int]]:
    """The edges between scored words, each as an ordered pair."""
    return {
        _edge(word, head - 1)
        for word, head in enumerate(row.head_W.tolist())
        if head and row.scored_W[word] and row.scored_W[head - 1]
    }


def spanning_edges(row: Sentence, distance_WW: Distances) -> set[tuple[int, int]]:
    """The edges of the minimum spanning tree of the scored words, for each tree of an example."""
    edges: set[tuple[int, int]] = set()
    for tree in np.unique(row.tree_W):
        words = np.flatnonzero(row.scored_W & (row.tree_W == tree))
        # scipy treats 0 as no edge; adding a constant does not change the minimum spanning tree.
        spanning = minimum_spanning_tree(distance_WW[np.ix_(words, words)] + 1.0)
        edges |= {_edge(int(words[i]), int(words[j])) for i, j in zip(*spanning.nonzero(), strict=True)}
    return edges


def _edge(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)


class StructuralProbe(nn.Module):
    """``d(i, j) = |B (h_i - h_j)|^2`` for the hidden states of every layer, with a separate B for each.

    Args:
        scale_M: Divisor of each layer's hidden states.
        width: D.
    """

    scale_M: Tensor

    def __init__(self, scale_M: Tensor, width: int) -> None:
        super().__init__()
        rank = min(RANK, width)
        self.register_buffer("scale_M", scale_M)
        # Initial distances are about one edge.
        self.map_MDR = nn.Parameter(torch.randn(len(scale_M), width, rank) / (2 * rank * width) ** 0.5)

    def forward(self, state_BWMD: Tensor) -> Tensor:
        """Squared distances between every two words, ``[B, M, W, W]``."""
        mapped_BMWR = torch.einsum("bwmd,mdr->bmwr", state_BWMD / self.scale_M[:, None], self.map_MDR)
        square_BMW = mapped_BMWR.square().sum(-1)
        inner_BMWW = mapped_BMWR @ mapped_BMWR.transpose(-1, -2)
        return square_BMW[..., None] + square_BMW[..., None, :] - 2 * inner_BMWW


class StructuralTraining(Training):
    """Trains the probes of all layers side by side, without shared weights."""

    def __init__(self, probe: StructuralProbe, batch_size: int) -> None:
        super().__init__()
        self.probe, self.batch_size = probe, batch_size

    def loss(self, batch: StructuralBatch) -> Tensor:
        return structural_loss(self.probe(batch.state_BWMD), batch) / self.batch_size

    def right(self, batch: StructuralBatch) -> dict[str, Tensor]:
        """The number of correct edges of each sentence in each hidden state, ``[B, M]``."""
        distance_BMWW = self.probe(batch.state_BWMD).cpu().double().numpy()
        right_BM = torch.zeros(distance_BMWW.shape[:2], dtype=torch.long)
        for right_M, distance_MWW, row in zip(right_BM, distance_BMWW, batch.rows, strict=True):
            gold = gold_edges(row)
            for state, distance_WW in enumerate(distance_MWW):
                right_M[state] = len(gold & spanning_edges(row, distance_WW))
        return {"edges": right_BM}


def structural_loss(distance_BMWW: Tensor, batch: StructuralBatch) -> Tensor:
    """Absolute differences of distances divided by the squared number of words, summed over sentences and states
    (section 3.2).
    """
    wrong_BMWW = (distance_BMWW - batch.distance_BWW[:, None]).abs() * batch.pair_BWW[:, None]
    words_B = batch.pair_BWW.diagonal(dim1=1, dim2=2).sum(-1)
    return (wrong_BMWW.sum((1, 2, 3)) / words_B.square()).sum()


def structural_score(
    train: Sentences,
    learned: HiddenStates,
    evaluation: Sentences,
    scored: HiddenStates,
    recipe: Recipe,
    replicates: int,
) -> tuple[Structural, list[HiddenState]]:
    """Train a structural probe of every hidden state; a tenth of the training sentences is held out for choosing the
    state.

    Args:
        train, learned: Sentences to train on, and their hidden states.
        evaluation, scored: Sentences to score, and their hidden states.
        recipe: How to train.
        replicates: Bootstrap samples of sentences.

    Raises:
        UserError: If there are too few training sentences.
    """
    started = time.monotonic()
    count, width = len(train.rows), learned.width
    if count < _CHOOSERS:
        raise UserError(
            f"The structural probe needs at least {_CHOOSERS} training sentences, but there are {count}; give more, "
            "or remove it from analysis.probes.probes."
        )
    order = np.random.default_rng(recipe.seed).permutation(count).tolist()
    choosers, trainers = order[: count // _CHOOSERS], order[count // _CHOOSERS :]
    _, [chosen, final] = fit_and_predict(
        lambda _: StructuralTraining(StructuralProbe(learned.scale_M, width), recipe.batch_size),
        StructuralDataset(train, trainers, learned),
        [
            StructuralDataset(train, choosers, learned),
            StructuralDataset(evaluation, range(len(evaluation.rows)), scored),
        ],
        recipe,
    )
    state = int(chosen["edges"].sum(0).argmax())
    right_NM = final["edges"]
    gold = [gold_edges(row) for row in evaluation.rows]
    edges_N = np.array([len(edges) for edges in gold])
    share = Resamples(edges_N, replicates, recipe.seed).share
    states = [HiddenState(number, share(right_N), number == state) for number, right_N in enumerate(right_NM.T)]
    structural = Structural(
        edges=int(edges_N.sum()),
        rank=min(RANK, width),
        chosen_on=len(choosers),
        gain=share(right_NM[:, state] - right_NM[:, 0]),
        neighbours=share(np.array([sum(j - i == 1 for i, j in edges) for edges in gold])),
        seconds=time.monotonic() - started,
    )
    return structural, states
