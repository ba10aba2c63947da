"""Positional, syntactic and rare-word heads by the published thresholds (Voita et al. 2019, section 5; methods V4)."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import TRAIN
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Count, MaxExamples, once_per_batch
from bertsecrets.measures.dependency.words import SYNTACTIC_RELATIONS, Counting, Gold, word_maps
from bertsecrets.measures.ratio import RatioMeasure
from bertsecrets.measures.role_rows import FROM_HEAD, NEXT, PREVIOUS, RAREST, TWO_RAREST, Distance, Limits
from bertsecrets.settings import typed

_TOKENS = "share of tokens"
_PAIRS = "share of pairs of words"
_RELATIONS = "a list of different relations, e.g. [nsubj, obj]"

Share = Annotated[float, Field(gt=0, le=1, description="a number above 0 and at most 1")]


class VoitaRoles(RatioMeasure):
    """Position of the largest weight in each row, ignoring attention to [SEP].

    Columns:
        ``previous``, ``next``: share of the tokens (without special tokens) whose largest weight is on the token before
            or after them.
        ``<relation>``, ``<relation>_from_head``: share of the pairs of words in the relation where the dependent
            attends most to its head, or the head to its dependent, among the words of the sentence, itself included.
            Attention between words is summed over the tokens attended to and averaged over those that attend.
        ``rarest``, ``two_rarest``: share of the tokens whose largest weight is on the text's token that is rarest in
            the training set, or on one of the two rarest; only for texts whose rarest token is not among the
            ``frequent`` most frequent.

    A head is positional if ``previous`` or ``next`` reaches ``positional``, syntactic if a relation with ``min_count``
    pairs reaches the share of the most frequent distance between the two words plus ``gain``, and a rare-word head if
    ``two_rarest`` reaches ``rare``. The paper gives the first two thresholds; the third is the lowest share that it
    reports.

    Args:
        relations: Syntactic relations; by default the paper's, with Universal and Stanford Dependencies names.
        positional, gain, rare: Thresholds.
        frequent: Number of most frequent tokens that do not count as rare.
        min_count: Least number of pairs for a relation to be used.

    Raises:
        UserError: If ``relations`` is not a list of distinct names, or a number is out of range.
    """

    name = "voita_roles"
    title = "Positional, syntactic and rare-word heads"
    presenter = "bertsecrets.present.roles:VOITA"
    tracked = (PREVIOUS, NEXT)

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        relations: Annotated[Sequence[str], Field(description=_RELATIONS)] = SYNTACTIC_RELATIONS,
        positional: Share = 0.9,
        gain: Share = 0.1,
        rare: Share = 0.5,
        frequent: Count = 500,
        min_count: Count = 100,
        max_examples: MaxExamples = None,
    ) -> None:
        taken = (PREVIOUS, NEXT, RAREST, TWO_RAREST)
        if len({*relations, *taken}) < len(relations) + len(taken):
            raise UserError(f"VoitaRoles.relations is {relations!r}; expected {_RELATIONS}.")
        self.relations = tuple(map(str, relations))
        self.columns = (
            Column(PREVIOUS, "to the previous token", _TOKENS, (0.0, 1.0)),
            Column(NEXT, "to the next token", _TOKENS, (0.0, 1.0)),
            *(Column(name, f"{name}, to the head", _PAIRS, (0.0, 1.0)) for name in self.relations),
            *(Column(name + FROM_HEAD, f"{name}, from the head", _PAIRS, (0.0, 1.0)) for name in self.relations),
            Column(RAREST, "to the rarest token", _TOKENS, (0.0, 1.0)),
            Column(TWO_RAREST, "to the two rarest tokens", _TOKENS, (0.0, 1.0)),
        )
        super().__init__(num_layers, num_heads, max_examples)
        self.limits = Limits(float(positional), float(gain), float(rare), min_count)
        self.frequent = frequent
        self._frequencies: Counter[int] | None = None
        self._distances: dict[str, Counter[int]] = {}

    def dataset(self, data: TaskData, progress: bool = False) -> EncodedSplit | None:
        """None, for the evaluation set; records token frequencies in the training set, if there is one."""
        if self._frequencies is None and data.source.has(TRAIN):
            self._frequencies = frequencies(data.encoded(TRAIN))
        return None

    def prepare(self, split: EncodedSplit) -> None:
        if self._frequencies is None:
            self._frequencies = frequencies(split)
        self._distances = {relation: Counter() for relation in self.relations}
        for example in split.examples:
            for sentence in example.annotations:
                for at, word in enumerate(sentence.words):
                    if word.relation in self._distances and word.head >= 0:
                        self._distances[word.relation][word.head - at] += 1

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        things_BC, gold, rarest_B2S, target_B2S = self._of(batch)
        real_BS = batch.attention_mask_BS.bool()
        # -1 is below any weight, also below the exact 0 of padding.
        pointed_BHQ = attention_BHQK.masked_fill((~real_BS | batch.separators_BS)[:, None, None], -1.0).argmax(-1)
        position_S = torch.arange(real_BS.shape[1], device=pointed_BHQ.device)
        hits = [
            ((pointed_BHQ == position_S + offset) & target_BS[:, None]).sum(-1)
            for offset, target_BS in zip((-1, 1), target_B2S.unbind(1), strict=True)
        ]
        if gold is None:
            empty_BH = torch.zeros_like(hits[0])
            hits += [empty_BH] * (2 * len(self.relations))
        else:
            hits += self._syntactic(attention_BHQK, batch, gold)
        word_BS = real_BS & ~batch.special_BS
        for rarest_BS in rarest_B2S.unbind(1):
            at_BHQ = rarest_BS[:, None].expand_as(pointed_BHQ).gather(-1, pointed_BHQ)
            hits.append((at_BHQ & word_BS[:, None]).sum(-1))
        hits_BHC = torch.stack(hits, -1).to(attention_BHQK.dtype)
        # 0 / 0 is NaN, so an example without such pairs does not count.
        return hits_BHC / things_BC[:, None].to(attention_BHQK.dtype)

    def weights(self, batch: Batch) -> Tensor:
        return self._of(batch)[0]

    def _syntactic(self, attention_BHQK: Tensor, batch: Batch, gold: Gold) -> list[Tensor]:
        """Numbers of hits ``[B, H]`` of each relation, to the head and then from it."""
        words = gold.head_BW.shape[1]
        maps_BHWW = word_maps(attention_BHQK, batch.word_BS, words)
        candidate_BWW = gold.candidate_BWW | torch.eye(words, dtype=torch.bool, device=maps_BHWW.device)
        pointed_BHW = maps_BHWW.masked_fill(~candidate_BWW[:, None], -1.0).argmax(-1)
        head_BHW = gold.head_BW.clamp(min=0)[:, None].expand_as(pointed_BHW)
        word_W = torch.arange(words, device=pointed_BHW.device)
        relations = gold.counts_BWR[..., 1:].unbind(-1)
        return [
            (correct_BHW & counts_BW[:, None]).sum(-1)
            for correct_BHW in (pointed_BHW == head_BHW, pointed_BHW.gather(-1, head_BHW) == word_W)
            for counts_BW in relations
        ]

    @once_per_batch
    def _of(self, batch: Batch) -> tuple[Tensor, Gold | None, Tensor, Tensor]:
        """Counts, gold relations, rarest tokens, and tokens with neighbours."""
        if self._frequencies is None:
            raise ValueError("rare tokens are found by their frequency: call prepare(split) before the first batch")
        real_BS = batch.attention_mask_BS.bool()
        special_BS = batch.special_BS & real_BS
        word_BS = real_BS & ~special_BS
        allowed_BS = real_BS & ~batch.separators_BS
        before_BS, after_BS = torch.zeros_like(word_BS), torch.zeros_like(word_BS)
        before_BS[:, 1:], after_BS[:, :-1] = allowed_BS[:, :-1], allowed_BS[:, 1:]
        target_B2S = torch.stack((word_BS & before_BS, word_BS & after_BS), 1)
        rarest_B2S = self._rarest(batch, word_BS)
        things = [target_B2S.sum(-1)]
        gold = None
        if any(batch.annotations):
            gold = Gold.of(batch, Counting(self.relations, possessive=False))
            # A root has no head to attend to.
            gold.counts_BWR[..., 1:] &= (gold.head_BW >= 0)[..., None]
            pairs_BR = gold.counts_BWR[..., 1:].sum(1)
            things += [pairs_BR, pairs_BR]
        else:
            things.append(torch.zeros(batch.size, 2 * len(self.relations), dtype=torch.int64, device=real_BS.device))
        rare_B1 = word_BS.sum(-1, keepdim=True) * rarest_B2S[:, 0].any(-1, keepdim=True)
        things.append(rare_B1.expand(-1, 2))
        return torch.cat(things, -1), gold, rarest_B2S, target_B2S

    def _rarest(self, batch: Batch, word_BS: Tensor) -> Tensor:
        """Masks of the rarest token, and of the two rarest tokens with ties, ``[B, 2, S]``; empty in texts of frequent
        tokens.
        """
        assert self._frequencies is not None
        ranked = self._frequencies.most_common(self.frequent)
        frequent = {token for token, _ in ranked}
        rarest_B2S = torch.zeros(batch.size, 2, word_BS.shape[1], dtype=torch.bool)
        for row, (ids, words) in enumerate(zip(batch.input_ids_BS.tolist(), word_BS.tolist(), strict=True)):
            positions = [position for position, is_word in enumerate(words) if is_word]
            # A Counter, so that tokens missing from the training set count 0 and are the rarest.
            counts = {position: self._frequencies[ids[position]] for position in positions}
            order = sorted(counts.values())
            if not order or all(ids[position] in frequent for position in positions if counts[position] == order[0]):
                continue
            for at, limit in enumerate((order[0], order[min(1, len(order) - 1)])):
                rarest_B2S[row, at, [position for position in positions if counts[position] <= limit]] = True
        return rarest_B2S.to(word_BS.device)

    def findings(self, grid: HeadGrid, model: nn.Module) -> Sequence[Limits | Distance]:
        distances = [
            Distance(relation, distance, count)
            for relation, counts in self._distances.items()
            for distance, count in sorted(counts.items())
        ]
        return [self.limits, *distances]


def frequencies(split: EncodedSplit) -> Counter[int]:
    """How often each token id occurs, without special tokens."""
    return Counter(
        token for row in split.rows for token, special in zip(row.ids, row.special, strict=True) if not special
    )
