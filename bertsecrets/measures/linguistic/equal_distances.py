"""Attention explained by position, or by the word attended to: what other pairs of tokens get."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.measures.linguistic.word_pairs import TokenPairs


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
        """Find the pairs at equal distance, once for all layers of a batch; ``pairs`` must not contain special tokens."""
        real_BS = batch.attention_mask_BS.bool()
        # Special tokens separate sentences: the number of preceding ones is the number of the sentence.
        sentence_BS = batch.special_BS.cumsum(-1).masked_fill(batch.special_BS | ~real_BS, -1)
        size = real_BS.shape[1]
        position_S = torch.arange(size, device=real_BS.device)
        distance_SS = position_S[None] - position_S[:, None] + size
        row_B = torch.arange(batch.size, device=real_BS.device)[:, None, None]
        label_BSS = (row_B * (size + 1) + sentence_BS[:, :, None]) * (size + 1) + sentence_BS[:, None]
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
    """The mean attention that each pair's second token gets from the other tokens of the first one's sentence, ``[N, H]``.

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
    own_NH = attention_BHQK[pairs.row_N, :, pairs.key_N, pairs.key_N] * same_N1
    others_N1 = mask_BGS.sum(-1)[pairs.row_N, group_N][:, None] - 1 - same_N1.long()
    total_NH = total_BHGS[pairs.row_N, :, group_N, pairs.key_N] - values_NH - own_NH
    return total_NH / others_N1.where(others_N1 > 0, torch.nan)
