"""The probes: parsers with few weights that predict each word's head and relation (Clark et al. 2019, section 5)."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from bertsecrets.probes.attention_file import SPECIAL
from bertsecrets.probes.batches import ProbeBatch

_HIDDEN = 256
_NEAR = (0, -1, 1, -2, 2)
"""Distances with a separate indicator, as in the paper's code."""

_POSITIONS = 2 + len(_NEAR) + 1


class Probe(nn.Module):
    """Scores every possible head of a word, and the relations of a word to a head."""

    @abstractmethod
    def scores(self, batch: ProbeBatch) -> Tensor:
        """The score of each possible head, ``[B, W, T]``: the root, then the words."""

    @abstractmethod
    def relation_scores(self, batch: ProbeBatch, head_BW: Tensor) -> Tensor:
        """The score of each relation, ``[B, W, R]``, if a word's head is ``head_BW`` (0 to W)."""


class AttentionProbe(Probe):
    """A weight for each head and direction; with word vectors, the weights depend linearly on the two words.

    The score of word j as the head of word i is ``sum_k w_k A_k[i, j] + u_k A_k[j, i]`` over all C heads k (the paper's
    attention-only probe). With word vectors v, ``w = W (v_i + v_j) + b`` with the vectors joined, and so is ``u``
    (attention and words). Attention from and to the root is a learned mixture of that of [CLS] and of [SEP], as in the
    paper's code, and the root's vector is zero. Attention is divided by each head's spread, which does not change what
    a probe can learn, but equalises the learning speed of heads with sharp and flat attention.

    Args:
        spread_C: Spread of each head's attention, positive.
        relations: Number of relations, R.
        width: Size of a word vector; 0 for none.
    """

    spread_C: Tensor

    def __init__(self, spread_C: Tensor, relations: int, width: int = 0) -> None:
        super().__init__()
        channels = len(spread_C)
        self.width = width
        self.register_buffer("spread_C", spread_C)
        # Zero, so that at first every word is equally likely as head.
        self.weight_DC = nn.Parameter(torch.zeros(2, channels))
        self.root = nn.Parameter(torch.tensor([0.5, 0.5]))
        if width:
            self.dependent = nn.Linear(width, 2 * channels, bias=False)
            self.governor = nn.Linear(width, 2 * channels, bias=False)
            nn.init.zeros_(self.dependent.weight)
            nn.init.zeros_(self.governor.weight)
        self.relation = nn.Linear(2 * channels + 1 + 2 * width, relations)

    @property
    def weights_DC(self) -> Tensor:
        """Weights of attention, to the head and from it; with word vectors, those of two words without a vector."""
        return self.weight_DC / self.spread_C

    def scores(self, batch: ProbeBatch) -> Tensor:
        attention_BNNC = _attention(batch)
        if self.width:
            vectors_BND = nn.functional.pad(_vectors(batch), (0, 0, SPECIAL, 0))
            shape = (*vectors_BND.shape[:2], *self.weight_DC.shape)
            dependent_BNDC = (self.dependent(vectors_BND).view(shape) + self.weight_DC) / self.spread_C
            governor_BNDC = self.governor(vectors_BND).view(shape) / self.spread_C
            # Rows of a map belong to the dependent when it attends to its head, and to the head when the head attends.
            row_BNCD = torch.stack([dependent_BNDC[:, :, 0], governor_BNDC[:, :, 1]], -1)
            column_BNCD = torch.stack([governor_BNDC[:, :, 0], dependent_BNDC[:, :, 1]], -1)
            by_row_BNND = attention_BNNC @ row_BNCD
            by_column_BNND = attention_BNNC.transpose(1, 2) @ column_BNCD
            both_BNND = by_row_BNND + by_column_BNND.transpose(1, 2)
        else:
            both_BNND = attention_BNNC @ self.weights_DC.T
        pair_BNN = both_BNND[..., 0] + both_BNND[..., 1].transpose(1, 2)
        words_BWN = pair_BNN[:, SPECIAL:]
        root_BW1 = (words_BWN[..., :SPECIAL] @ self.root)[..., None]
        return torch.cat([root_BW1, words_BWN[..., SPECIAL:]], -1)

    def relation_scores(self, batch: ProbeBatch, head_BW: Tensor) -> Tensor:
        attention_BNNC = _attention(batch)
        root_2 = self.root.detach()
        is_root_BW1 = (head_BW == 0)[..., None]
        unit_BW11 = (head_BW + SPECIAL - 1)[..., None, None]
        seen = []
        for direction_BNNC in (attention_BNNC, attention_BNNC.transpose(1, 2)):
            words_BWNC = direction_BNNC[:, SPECIAL:]
            index_BW1C = unit_BW11.expand(-1, -1, 1, words_BWNC.shape[-1])
            arc_BWC = words_BWNC.gather(2, index_BW1C)[:, :, 0]
            root_BWC = (words_BWNC[:, :, :SPECIAL] * root_2[:, None]).sum(2)
            seen.append(torch.where(is_root_BW1, root_BWC, arc_BWC) / self.spread_C)
        features = [*seen, is_root_BW1.to(attention_BNNC.dtype)]
        if self.width:
            features += [_vectors(batch), _of_heads(_vectors(batch), head_BW)]
        relations: Tensor = self.relation(torch.cat(features, -1))
        return relations


class DistanceProbe(Probe):
    """Distances and words, without any attention: the paper's baseline, with one hidden layer of 256 units.

    A pair's features are its distance over the sentence's length to the right and to the left, indicators of the
    distances 0, -1, +1, -2, +2 and of the root, and both word vectors, zero for the root.

    Args:
        relations: Number of relations, R.
        width: Size of a word vector.
    """

    def __init__(self, relations: int, width: int) -> None:
        super().__init__()
        self.position = nn.Linear(_POSITIONS, _HIDDEN)
        self.dependent = nn.Linear(width, _HIDDEN, bias=False)
        self.governor = nn.Linear(width, _HIDDEN, bias=False)
        self.score = nn.Linear(_HIDDEN, 1)
        self.relation = nn.Sequential(
            nn.Linear(_POSITIONS + 2 * width, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, relations)
        )

    def scores(self, batch: ProbeBatch) -> Tensor:
        vectors_BWD = _vectors(batch)
        head_BTD = nn.functional.pad(vectors_BWD, (0, 0, 1, 0))
        # In place: this is by far the largest tensor of all probes.
        hidden_BWTd = self.position(_positions(batch))
        hidden_BWTd += self.dependent(vectors_BWD)[:, :, None]
        hidden_BWTd += self.governor(head_BTD)[:, None]
        hidden_BWTd.tanh_()
        score_BWT: Tensor = self.score(hidden_BWTd)[..., 0]
        return score_BWT

    def relation_scores(self, batch: ProbeBatch, head_BW: Tensor) -> Tensor:
        positions_BWTP = _positions(batch)
        index_BW1P = head_BW[..., None, None].expand(-1, -1, 1, positions_BWTP.shape[-1])
        distance_BWP = positions_BWTP.gather(2, index_BW1P)[:, :, 0]
        vectors_BWD = _vectors(batch)
        relations: Tensor = self.relation(torch.cat([distance_BWP, vectors_BWD, _of_heads(vectors_BWD, head_BW)], -1))
        return relations


def _positions(batch: ProbeBatch) -> Tensor:
    """The features of distance of each word and possible head, ``[B, W, T, P]``."""
    width = batch.head_BW.shape[1]
    word_W = torch.arange(width, device=batch.head_BW.device)
    distance_WW = word_W - word_W[:, None]
    share_BWW = distance_WW.to(_vectors(batch)) / batch.words_B[:, None, None]
    near_WWO = torch.stack([distance_WW == distance for distance in _NEAR], -1).to(share_BWW)
    features_BWWP = torch.cat(
        [
            share_BWW.clamp(min=0)[..., None],
            (-share_BWW).clamp(min=0)[..., None],
            near_WWO.expand(len(share_BWW), -1, -1, -1),
            torch.zeros_like(share_BWW)[..., None],
        ],
        -1,
    )
    root_P = torch.zeros(_POSITIONS).to(share_BWW)
    root_P[-1] = 1.0
    return torch.cat([root_P.expand(len(share_BWW), width, 1, -1), features_BWWP], 2)


def _attention(batch: ProbeBatch) -> Tensor:
    assert batch.attention_BNNC is not None
    return batch.attention_BNNC


def _vectors(batch: ProbeBatch) -> Tensor:
    assert batch.vectors_BWD is not None
    return batch.vectors_BWD


def _of_heads(vectors_BWD: Tensor, head_BW: Tensor) -> Tensor:
    """The vector of each word's head, zero for the root."""
    head_BTD = nn.functional.pad(vectors_BWD, (0, 0, 1, 0))
    return head_BTD.gather(1, head_BW[..., None].expand(-1, -1, vectors_BWD.shape[-1]))
