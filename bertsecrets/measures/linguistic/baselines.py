"""Baselines for linguistic features: attention to random words, and to other pairs of tokens at the same distances or
with the same words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.float64 import float64_device
from bertsecrets.measures.linguistic.word_features import Feature
from bertsecrets.measures.linguistic.word_pairs import TokenPairs


def chance_of_rank(size_B: Tensor, drawn_BF: Tensor, ranks: int) -> Tensor:
    """Probability that the largest of k numbers drawn from n without replacement is the r-th largest of all.

    p(r) = C(n - 1 - r, k - 1) / C(n, k) for r = 0..n - k, else 0. Float64 ``[B, F, ranks]``; all 0 for k = 0.

    Args:
        size_B: n, int64.
        drawn_BF: k, int64, 0..n.
        ranks: Number of ranks.
    """
    size_B11, drawn_BF1 = size_B[:, None, None].double(), drawn_BF[:, :, None].double()
    rank_R = torch.arange(ranks, device=size_B.device, dtype=torch.float64)
    possible_BFR = (drawn_BF1 > 0) & (rank_R <= size_B11 - drawn_BF1)
    # In logarithms: binomial coefficients of texts beyond a thousand tokens exceed float64.
    log_BFR = _log_binomial((size_B11 - 1 - rank_R).clamp(min=0), drawn_BF1 - 1) - _log_binomial(size_B11, drawn_BF1)
    return torch.where(possible_BFR, log_BFR, -torch.inf).exp()


def _log_binomial(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma((n - k).clamp(min=0) + 1)


@dataclass(frozen=True)
class _Draw:
    """Random units of tokens, as many as have each feature.

    Args:
        columns: The features' indices among all features.
        unit_BS: Unit of each token, int64; S for tokens outside.
        chance_BFS: Weight of the r-th largest unit in the expectation, for features pooled by their maximum.
        share_BF: Share of units drawn, for features pooled by sum; NaN for the others.
    """

    columns: tuple[int, ...]
    unit_BS: Tensor
    chance_BFS: Tensor
    share_BF: Tensor

    @classmethod
    def of(cls, columns: Sequence[int], features: Sequence[Feature], unit_BS: Tensor, mask_BFS: Tensor) -> "_Draw":
        size, length = unit_BS.shape
        inside_BS = unit_BS < length
        number_B = torch.where(inside_BS, unit_BS + 1, 0).amax(-1)
        unit_BFS = unit_BS[:, None].expand_as(mask_BFS)
        has_BFU = torch.zeros((size, mask_BFS.shape[1], length + 1), dtype=torch.int64, device=unit_BS.device)
        drawn_BF = has_BFU.scatter_reduce(2, unit_BFS, mask_BFS.long(), "amax")[..., :length].sum(-1)
        # Computed on the CPU, then converted to single precision if the device has no float64.
        number_B, drawn_BF = number_B.cpu(), drawn_BF.cpu()
        chance_BFS = chance_of_rank(number_B, drawn_BF, length)
        share_BF = drawn_BF.double() / number_B.clamp(min=1)[:, None]
        share_BF[:, [feature.pool != "sum" for feature in features]] = torch.nan
        kind = (unit_BS.device, torch.float64 if float64_device(unit_BS.device) == unit_BS.device else torch.float32)
        return cls(tuple(columns), unit_BS, chance_BFS.to(*kind), share_BF.to(*kind))

    def expected(self, values_BHS: Tensor) -> Tensor:
        """Expected pooled value, ``[B, H, F]``."""
        size, heads, length = values_BHS.shape
        unit_BHS = self.unit_BS[:, None].expand_as(values_BHS)
        # Attention is at least 0, so -1 sorts after all units.
        most_BHU = values_BHS.new_full((size, heads, length + 1), -1.0).scatter_reduce(
            2, unit_BHS, values_BHS, "amax", include_self=False
        )[..., :length]
        sorted_BHS = most_BHU.sort(-1, descending=True).values
        largest_BHF = torch.einsum("bhs,bfs->bhf", sorted_BHS, self.chance_BFS.to(values_BHS.dtype))
        total_BH1 = (values_BHS * (self.unit_BS < length)[:, None]).sum(-1, keepdim=True)
        share_B1F = self.share_BF[:, None].to(values_BHS.dtype)
        return torch.where(share_B1F.isnan(), largest_BHF, total_BH1 * share_B1F)


class RandomWords:
    """The expected value of each feature if the same number of random words had it.

    For words, the units drawn are words without special tokens (a maximum uses the word's highest token). For special
    tokens, and with matching by spelling, which ignores words, they are tokens. One special token among L tokens thus
    gives 1/L, because the attention received adds up to 1.

    Args:
        features: The F features.
        mask_BFS: Mask of the tokens with each feature.
        batch: The batch.
        by_token: Whether words' features are matched by spelling.
    """

    def __init__(self, features: Iterable[Feature], mask_BFS: Tensor, batch: Batch, by_token: bool) -> None:
        features = list(features)
        real_BS = batch.attention_mask_BS.bool()
        special = [column for column, feature in enumerate(features) if feature.special is not None]
        words = [column for column, feature in enumerate(features) if feature.special is None]
        text_BS = real_BS & ~batch.special_BS
        self._draws = [
            _Draw.of(columns, [features[column] for column in columns], unit_BS, mask_BFS[:, columns])
            for columns, unit_BS in (
                (special, _numbered(real_BS)),
                (words, _numbered(text_BS) if by_token else _words(batch.word_BS, text_BS)),
            )
            if columns
        ]
        self._absent_B1F = ~mask_BFS.any(-1)[:, None]

    def expected(self, values_BHS: Tensor) -> Tensor:
        """The expectations, ``[B, H, F]``; NaN where no token of the example has the feature.

        Args:
            values_BHS: Attention received by each token, at least 0.
        """
        expected_BHF = values_BHS.new_empty((*values_BHS.shape[:2], self._absent_B1F.shape[-1]))
        for draw in self._draws:
            expected_BHF[:, :, list(draw.columns)] = draw.expected(values_BHS)
        return expected_BHF.masked_fill(self._absent_B1F, torch.nan)


def _numbered(inside_BS: Tensor) -> Tensor:
    """Each token as a separate unit; S outside."""
    return (inside_BS.cumsum(-1) - 1).masked_fill(~inside_BS, inside_BS.shape[-1])


def _words(word_BS: Tensor, text_BS: Tensor) -> Tensor:
    """The number of each token's word among those of the example with a token, from 0; S outside."""
    inside_BS = text_BS & (word_BS >= 0)
    before_BS = torch.cat((torch.full_like(word_BS[:, :1], -1), word_BS[:, :-1]), -1)
    starts_BS = inside_BS & (word_BS != before_BS)
    return (starts_BS.cumsum(-1) - 1).masked_fill(~inside_BS, word_BS.shape[-1])


@dataclass(frozen=True)
class EqualDistances:
    """For each of N pairs of tokens, the pairs at the same signed distance, M in all.

    They are in the same example and between the same sentences, without special tokens.

    Args:
        row_M, query_M, key_M: Position of each pair.
        class_M: Class of equal example, sentences and distance, from 0.
        class_N: Class of each of the N pairs.
        others_N: Number of other pairs in that class.
        classes: Number of classes.
    """

    row_M: Tensor
    query_M: Tensor
    key_M: Tensor
    class_M: Tensor
    class_N: Tensor
    others_N: Tensor
    classes: int

    @classmethod
    def of(cls, pairs: TokenPairs, batch: Batch) -> "EqualDistances":
        """Find the pairs at equal distances, once for all layers of a batch; ``pairs`` must not have special tokens."""
        real_BS = batch.attention_mask_BS.bool()
        # Special tokens separate sentences, so the number of preceding special tokens identifies the sentence.
        sentence_BS = batch.special_BS.cumsum(-1).masked_fill(batch.special_BS | ~real_BS, -1)
        size = real_BS.shape[1]
        position_S = torch.arange(size, device=real_BS.device)
        distance_SS = position_S[None] - position_S[:, None] + size
        row_B = torch.arange(batch.size, device=real_BS.device)[:, None, None]
        label_BSS = (row_B * (size + 1) + sentence_BS[:, :, None]) * (size + 1) + sentence_BS[:, None]
        # Encode example, both sentences and distance in one whole number: equal numbers mean the same class.
        label_BSS = label_BSS * (2 * size) + distance_SS
        inside_BSS = (sentence_BS[:, :, None] >= 0) & (sentence_BS[:, None] >= 0)
        wanted_C, class_N = label_BSS[pairs.row_N, pairs.query_N, pairs.key_N].unique(return_inverse=True)
        if not len(wanted_C):
            none = pairs.row_N
            return cls(none, none, none, none, class_N, none, 0)
        class_BSS = torch.searchsorted(wanted_C, label_BSS).clamp(max=len(wanted_C) - 1)
        row_M, query_M, key_M = ((wanted_C[class_BSS] == label_BSS) & inside_BSS).nonzero(as_tuple=True)
        class_M = class_BSS[row_M, query_M, key_M]
        others_N = torch.bincount(class_M, minlength=len(wanted_C))[class_N] - 1
        return cls(row_M, query_M, key_M, class_M, class_N, others_N, len(wanted_C))

    def mean_of_others(self, attention_BHQK: Tensor, values_NH: Tensor) -> Tensor:
        """The mean attention of the other pairs at each pair's distance, ``[N, H]``; NaN if there is none.

        Args:
            attention_BHQK: The maps.
            values_NH: Attention of the N pairs.
        """
        total_CH = attention_BHQK.new_zeros((self.classes, values_NH.shape[1]))
        total_CH.index_add_(0, self.class_M, attention_BHQK[self.row_M, :, self.query_M, self.key_M])
        return (total_CH[self.class_N] - values_NH) / self.others_N[:, None].where(
            self.others_N[:, None] > 0, torch.nan
        )


def mean_received_from_others(attention_BHQK: Tensor, values_NH: Tensor, pairs: TokenPairs, batch: Batch) -> Tensor:
    """The mean attention that each pair's second token gets from the other tokens of the first one's sentence, ``[N,
    H]``.

    Special tokens and the second token itself do not count; NaN if no other token is left.

    Args:
        attention_BHQK: The maps.
        values_NH: Attention of the N pairs.
        pairs: The pairs; they must not contain special tokens.
        batch: The batch.
    """
    real_BS = batch.attention_mask_BS.bool()
    number_BS = batch.special_BS.cumsum(-1)
    inside_BS = real_BS & ~batch.special_BS
    sentences = int(number_BS.max()) + 1 if number_BS.numel() else 1
    sentence_G = torch.arange(sentences, device=number_BS.device)[:, None]
    mask_BGS = inside_BS[:, None] & (number_BS[:, None] == sentence_G)
    # One product per batch and layer: a gather for each pair would need the pairs times the tokens.
    total_BHGS = mask_BGS[:, None].to(attention_BHQK.dtype) @ attention_BHQK
    group_N = number_BS[pairs.row_N, pairs.query_N]
    same_N1 = (number_BS[pairs.row_N, pairs.key_N] == group_N)[:, None]
    itself_NH = attention_BHQK[pairs.row_N, :, pairs.key_N, pairs.key_N] * same_N1
    others_N1 = mask_BGS.sum(-1)[pairs.row_N, group_N][:, None] - 1 - same_N1.long()
    total_NH = total_BHGS[pairs.row_N, :, group_N, pairs.key_N] - values_NH - itself_NH
    return total_NH / others_N1.where(others_N1 > 0, torch.nan)
