"""Attention between linked words, and from the classification token to linguistic features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example, Matching
from bertsecrets.errors import UserError
from bertsecrets.measures.base import Feed, Measure, Need
from bertsecrets.measures.features import Absent, check_matching, feature_tokens, pooled
from bertsecrets.measures.matching import FeatureTokens, StringMatching
from bertsecrets.measures.position import EqualDistances
from bertsecrets.measures.word_features import check_occurs, features_from_config
from bertsecrets.measures.word_pairs import (
    OffsetPairs,
    PairTokens,
    SpellingPairs,
    TokenPairs,
    WordPair,
    check_pairs_occur,
)

KOVALEVA = "token_to_token_kovaleva"
"""Name of the measure with ``matching=kovaleva``."""

CLS_TO = "cls_to_"
MEAN, BEYOND, FAR = "_mean", "_beyond_position", "_far"
UNIFORM = "uniform"


@dataclass(frozen=True)
class _Found:
    """What is the same for every layer of a batch."""

    batch: Batch
    mask_BFS: Tensor
    pairs: TokenPairs
    equal: EqualDistances
    far_N: Tensor


class TokenToToken(Measure):
    """Attention from one kind of token to another (Kovaleva et al. 2019, section 4.5; METHODS K6).

    Columns:
        ``cls_to_<feature>``: the most that the first token ([CLS]) attends to a token with the feature, in 0..1; with
            ``pool: sum``, to all of them together. The paper looks at the last layer.
        ``<pair>``: the largest attention from a token of a first word to a token of its second word, in 0..1.
        ``<pair>_mean``: mean attention over those of these pairs of tokens that are not the only ones at their signed
            distance, between the same sentences of the same example, special tokens apart; in 0..1.
        ``<pair>_beyond_position``: how much of that mean is left once each pair's attention is taken less the mean of the
            others at its distance. 0 is expected of a head that attends by position alone; -1..1.
        ``<pair>_far``: as ``<pair>``, among tokens at least ``far`` apart.
        ``uniform``: 1/L, what uniform attention gives to each of the L tokens.

    Args:
        num_layers, num_heads: Size of the grid.
        features: Name -> kinds, see :class:`Feature`, of the columns ``cls_to_<feature>``.
        pairs: Name -> link and ends, see :class:`WordPair`.
        far: Least distance in tokens of ``<pair>_far``.
        matching: From words to tokens: by character ``offsets``, or by spelling and order as the original code does
            (``kovaleva``).
        absent: Examples without the pair: ``exclude`` disregards them; ``kovaleva`` counts them as 0 in ``<pair>``, as the
            original code does.
        max_examples: A random sample of this many examples; None for all. The paper takes 1000.
        max_length: Truncate to this many tokens; None for the task's. The original's is 200.

    Raises:
        UserError: If neither a feature nor a pair is given, one is none, two columns would have one name, or a setting
            does not exist.
    """

    name = "token_to_token"

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        features: Mapping[str, Mapping[str, Any] | None],
        pairs: Mapping[str, Mapping[str, Any] | None],
        far: int = 3,
        matching: Matching = "offsets",
        absent: Absent = "exclude",
        max_examples: int | None = None,
        max_length: int | None = None,
    ) -> None:
        self.features = features_from_config(features)
        self.pairs = {
            str(name): WordPair.from_config(str(name), each) for name, each in pairs.items() if each is not None
        }
        if not self.features and not self.pairs:
            raise UserError("The measure token_to_token was given neither features nor pairs; name at least one.")
        if type(far) is not int or far < 1:
            raise UserError(f"far is {far!r} in the measure token_to_token; expected a whole number of tokens from 1.")
        check_matching(self.name, matching, absent, self.features)
        if matching == "kovaleva":
            # So that both definitions stand side by side in one table.
            self.name = KOVALEVA  # type: ignore[misc]
        self.columns = (
            *(CLS_TO + name for name in self.features),
            *(name + kind for kind in ("", MEAN, BEYOND, FAR) for name in self.pairs),
            UNIFORM,
        )
        for column in self.columns:
            if self.columns.count(column) > 1:
                raise UserError(f"Two columns of the measure token_to_token are called '{column}'; rename a pair.")
        super().__init__(num_layers, num_heads)
        if self.pairs or any(feature.needs_annotation for feature in self.features.values()):
            self.needs = frozenset({Need.ANNOTATION})
        self.far = far
        self.matching = matching
        self.absent = absent
        self.feed = Feed(max_examples=max_examples, max_length=max_length)
        self._tokens: FeatureTokens | None = None
        self._pair_tokens: PairTokens | None = None
        self._found: _Found | None = None

    def prepare(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> None:
        check_occurs(self.features, examples)
        without = check_pairs_occur(self.pairs, examples)
        if without:
            rank_zero_warn(f"No word of these examples is annotated with coreference: {', '.join(without)} stay empty.")
        self._look_for(examples, tokenizer)

    def _look_for(self, examples: Sequence[Example] = (), tokenizer: PreTrainedTokenizerFast | None = None) -> None:
        self._tokens = feature_tokens(self.matching, list(self.features.values()), examples, tokenizer)
        self._pair_tokens = (
            SpellingPairs(list(self.pairs.values()), self._tokens)
            if isinstance(self._tokens, StringMatching)
            else OffsetPairs(list(self.pairs.values()))
        )

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        if self._found is None or self._found.batch is not batch:
            self._found = self._find(batch)
        found = self._found
        size, heads = attention_BHQK.shape[:2]
        first_B = batch.attention_mask_BS.argmax(-1)
        row_BHK = attention_BHQK[torch.arange(size, device=first_B.device), :, first_B]
        columns = [pooled(row_BHK, found.mask_BFS, self.features.values())]
        if self.pairs:
            pairs = found.pairs
            values_NH = attention_BHQK[pairs.row_N, :, pairs.query_N, pairs.key_N]
            beyond_NH = values_NH - found.equal.mean_of_others(attention_BHQK, values_NH)
            most_BHP = self._pooled(values_NH, pairs, size, "amax")
            columns += [
                most_BHP if self.absent == "exclude" else most_BHP.nan_to_num(0.0),
                self._pooled(values_NH.masked_fill(beyond_NH.isnan(), torch.nan), pairs, size, "mean"),
                self._pooled(beyond_NH, pairs, size, "mean"),
                self._pooled(values_NH.masked_fill(~found.far_N[:, None], torch.nan), pairs, size, "amax"),
            ]
        uniform_B = batch.lengths_B.to(attention_BHQK.dtype).reciprocal()
        columns.append(uniform_B[:, None, None].expand(size, heads, 1))
        return torch.cat(columns, dim=-1)

    def _pooled(self, values_NH: Tensor, pairs: TokenPairs, size: int, pool: str) -> Tensor:
        """Values pooled over the pairs of tokens of each example and pair, ``[B, H, P]``; those that are NaN left out."""
        heads = values_NH.shape[1]
        counts_N1 = values_NH.isnan().logical_not()[:, :1]
        keep_K = counts_N1[:, 0].nonzero()[:, 0]
        place_KH = (pairs.row_N * len(self.pairs) + pairs.pair_N)[keep_K, None].expand(-1, heads)
        pooled_GH = values_NH.new_full((size * len(self.pairs), heads), torch.nan)
        pooled_GH.scatter_reduce_(0, place_KH, values_NH[keep_K], pool, include_self=False)
        return pooled_GH.reshape(size, len(self.pairs), heads).transpose(1, 2)

    def _find(self, batch: Batch) -> _Found:
        if self._tokens is None or self._pair_tokens is None:
            self._look_for()
        assert self._tokens is not None
        assert self._pair_tokens is not None
        pairs = self._pair_tokens.find(batch)
        far_N = (pairs.query_N - pairs.key_N).abs() >= self.far
        return _Found(batch, self._tokens.masks(batch), pairs, EqualDistances.of(pairs, batch), far_N)

    def reset(self) -> None:
        """Back to no examples."""
        super().reset()
        self._found = None
