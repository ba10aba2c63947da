"""Roles of heads by sieve bias scores and hypothesis tests (Pande et al. 2021, *The heads hypothesis*)."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import MaxExamples, Measure, once_per_batch
from bertsecrets.measures.dependency.words import SYNTACTIC_RELATIONS
from bertsecrets.measures.role_rows import BLOCK, DELIMITER, LOCAL, SIEVE_ROLES, SYNTACTIC, Threshold
from bertsecrets.settings import typed

NEIGHBOURS = 2
"""Largest distance in the local sieve, to either side."""

_UNIT = "sieve bias score"
_RELATIONS = "a list of different relations, e.g. [nsubj, obj]"
_PARTS = {"cls": "first special token", "sep": "other special tokens"}

Above = Annotated[float, Field(gt=0, description="a number above 0")]


class Roles(Measure):
    """How much more attention a head gives to tokens in a role's sieve than to an average token.

    A token's score is its mean attention to the tokens of its sieve over its mean attention to all n tokens; it is 1
    under uniform attention. An example's score is the mean over its tokens that have a sieve.

    Columns:
        ``local``: sieve of the tokens at most two positions away, including the token itself.
        ``delimiter``: of all special tokens; ``cls``, ``sep``: of the first one, and of the others.
        ``block``: of the words of the token's sentence, in an input of two sentences, times the entropy of the token's
            row over log n, which excludes narrow heads (the authors' code multiplies by the entropy in nats, so that
            uniform attention scores log n). Other inputs do not count.
        ``syntactic``: of the tokens of the other word of a syntactic relation; both directions, averaged over the pairs
            of words. ``<relation>``: the same for one relation. Examples without such a pair or annotation do not
            count.

    A head has a role if the mean score over examples is significantly above the threshold: a one-sided t test, with
    the false discovery rate controlled over all heads and roles.

    Args:
        threshold: Threshold for local, delimiter and syntactic heads; the strictest in the paper.
        block_threshold: Threshold for block heads; with two sentences of equal length, the score is at most 2.
        relations: Relations of the syntactic role.

    Raises:
        UserError: If ``relations`` is empty or has duplicates, or a threshold is not positive.
    """

    name = "roles"
    title = "Roles of heads"
    presenter = "bertsecrets.present.roles:SIEVE"
    tracked = SIEVE_ROLES

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        threshold: Above = 3.0,
        block_threshold: Above = 1.5,
        relations: Annotated[Sequence[str], Field(min_length=1, description=_RELATIONS)] = SYNTACTIC_RELATIONS,
        max_examples: MaxExamples = None,
    ) -> None:
        self.relations = tuple(map(str, relations))
        taken = {*SIEVE_ROLES, *_PARTS}
        if len({*self.relations, *taken}) < len(self.relations) + len(taken):
            raise UserError(f"Roles.relations is {list(relations)!r}; expected {_RELATIONS}.")
        self.columns = tuple(
            Column(name, label, _UNIT)
            for name, label in {
                **{role: role for role in SIEVE_ROLES},
                **_PARTS,
                **{relation: relation for relation in self.relations},
            }.items()
        )
        super().__init__(num_layers, num_heads, max_examples)
        self.threshold, self.block_threshold = float(threshold), float(block_threshold)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        weights_BCN = self._sieves(batch, attention_BHQK)
        score_BHC = attention_BHQK.flatten(2) @ weights_BCN.transpose(1, 2)
        score_BHC = score_BHC.masked_fill((weights_BCN == 0).all(-1)[:, None], torch.nan)
        score_BHC[..., SIEVE_ROLES.index(BLOCK)] = _block_scores(attention_BHQK, batch)
        return score_BHC

    @once_per_batch
    def _sieves(self, batch: Batch, attention_BHQK: Tensor) -> Tensor:
        # Converted on the CPU: MPS has no float64.
        weights_BCQK = sieves(batch, self.relations).to(attention_BHQK.dtype)
        return weights_BCQK.to(attention_BHQK.device).flatten(2)

    def findings(self, grid: HeadGrid, model: nn.Module) -> Sequence[Threshold]:
        return [Threshold(name, self.block_threshold if name == BLOCK else self.threshold) for name in grid.columns]


def sieves(batch: Batch, relations: Sequence[str]) -> Tensor:
    """The weights ``[B, C, Q, K]`` float64, on the CPU, whose product with a map sums to the score, in order of the
    columns.

    They are zero for the role ``block``, and for a role without a sieve in an example.
    """
    real_BS = batch.attention_mask_BS.bool().cpu()
    special_BS = batch.special_BS.cpu() & real_BS
    first_BS = special_BS & (special_BS.cumsum(-1) == 1)
    position_S = torch.arange(real_BS.shape[1])
    near_BQK = ((position_S[:, None] - position_S).abs() <= NEIGHBOURS) & real_BS[:, :, None] & real_BS[:, None]
    pairs_BRQK = _pairs(batch, relations)
    sieve_of = {
        LOCAL: near_BQK,
        SYNTACTIC: _mean(pairs_BRQK.sum(1)),
        BLOCK: torch.zeros_like(near_BQK),
        **{
            name: real_BS[:, :, None] & keys_BS[:, None]
            for name, keys_BS in ((DELIMITER, special_BS), ("cls", first_BS), ("sep", special_BS & ~first_BS))
        },
        **{relation: _mean(pairs_BRQK[:, number]) for number, relation in enumerate(relations)},
    }
    length_B11 = real_BS.sum(-1)[:, None, None].double()
    weights = []
    for name in (*SIEVE_ROLES, *_PARTS, *relations):
        sieve_BQK = sieve_of[name]
        if sieve_BQK.dtype == torch.bool:
            # The mean over rows of the mean over each row's sieve.
            size_BQ1 = sieve_BQK.sum(-1, keepdim=True).double()
            sieve_BQK = sieve_BQK / size_BQ1.clamp(min=1) / length_B11
        weights.append(sieve_BQK * length_B11)
    return torch.stack(weights, 1)


def _pairs(batch: Batch, relations: Sequence[str]) -> Tensor:
    """For each relation the sum over its pairs of words of one mean over both directions, ``[B, R, Q, K]`` float64."""
    size, length = batch.word_BS.shape
    pairs_BRQK = torch.zeros(size, len(relations), length, length, dtype=torch.float64)
    number = {relation: index for index, relation in enumerate(relations)}
    word_BS = batch.word_BS.cpu()
    for row, sentences in enumerate(batch.annotations):
        first = 0
        for sentence in sentences:
            for i, word in enumerate(sentence.words):
                if word.relation in number and word.head >= 0:
                    dependent_S = (word_BS[row] == first + i).double()
                    head_S = (word_BS[row] == first + word.head).double()
                    tokens = dependent_S.sum() * head_S.sum()
                    # Words that vanished in tokenisation, or were truncated, have no tokens.
                    if tokens > 0:
                        forward_QK = dependent_S[:, None] * head_S / tokens
                        pairs_BRQK[row, number[word.relation]] += (forward_QK + forward_QK.T) / 2
            first += len(sentence.words)
    return pairs_BRQK


def _mean(sum_BQK: Tensor) -> Tensor:
    """A mean over pairs of words: the weights of one pair sum to one."""
    count_B11: Tensor = sum_BQK.sum((-1, -2), keepdim=True)
    return sum_BQK / count_B11.clamp(min=1)


def _block_scores(attention_BHQK: Tensor, batch: Batch) -> Tensor:
    """The scores ``[B, H]`` of the block role; NaN for inputs that are not two sentences with words."""
    real_BS = batch.attention_mask_BS.bool()
    special_BS = batch.special_BS & real_BS
    # [CLS] belongs to the first sentence and each separator to the second, as in the authors' code.
    separators_BS = (special_BS.cumsum(-1) - 1).clamp(min=0)
    second_BS = (separators_BS > 0) & real_BS
    word_BS = real_BS & ~special_BS
    words_B2S = torch.stack((word_BS & ~second_BS, word_BS & second_BS), 1)
    sizes_B2 = words_B2S.sum(-1)
    received_BHQ2 = attention_BHQK @ words_B2S.to(attention_BHQK.dtype).transpose(1, 2)[:, None]
    length_B1 = real_BS.sum(-1, keepdim=True).to(attention_BHQK.dtype)
    bias_BHQ2 = received_BHQ2 / sizes_B2.clamp(min=1)[:, None, None] * length_B1[:, None, None]
    within_BHQ = torch.where(second_BS[:, None], bias_BHQ2[..., 1], bias_BHQ2[..., 0])
    spread_BHQ = -torch.xlogy(attention_BHQK, attention_BHQK).sum(-1) / length_B1.clamp(min=2).log()[:, None]
    score_BH = (within_BHQ * spread_BHQ * real_BS[:, None]).sum(-1) / length_B1
    return score_BH.masked_fill((sizes_B2 == 0).any(-1, keepdim=True), torch.nan)
