"""Attention between linked words, and from the classification token to linguistic features."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Matching
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import Column
from bertsecrets.measures.base import Feed, Length, MaxExamples, Measure, Need, once_per_batch
from bertsecrets.measures.linguistic.baselines import EqualDistances, RandomWords, mean_received_from_others
from bertsecrets.measures.linguistic.columns import (
    BEYOND,
    BEYOND_WORD,
    CLS_TO,
    FAR,
    MEAN,
    RANDOM,
    feature_label,
    pair_label,
)
from bertsecrets.measures.linguistic.features import Absent, pooled
from bertsecrets.measures.linguistic.matching import StringMatching, matching_of
from bertsecrets.measures.linguistic.word_features import check_occurs, features_from_config
from bertsecrets.measures.linguistic.word_pairs import (
    OffsetPairs,
    SpellingPairs,
    TokenPairs,
    WordPair,
    check_pairs_occur,
)
from bertsecrets.settings import typed

_WEIGHT = "largest attention weight"

KOVALEVA = "token_to_token_kovaleva"
"""Name of the measure with ``matching=kovaleva``."""

UNIFORM = "uniform"


@dataclass(frozen=True)
class _BatchTokens:
    """Token positions shared by all layers of a batch."""

    mask_BFS: Tensor
    random_words: RandomWords
    pairs: TokenPairs
    equal: EqualDistances
    far_N: Tensor


class TokenToToken(Measure):
    """Attention from one kind of token to another (Kovaleva et al. 2019, section 4.5; methods K6).

    Columns:
        ``cls_to_<feature>``: the largest attention from the first token ([CLS]) to a token with the feature, in 0..1;
            with ``pool: sum``, the total. The paper uses the last layer.
        ``cls_to_<feature>_random``: the exact expectation of the same if the same number of random words had the
            feature (:class:`RandomWords`).
        ``<pair>``: the largest attention from a token of the first word to a token of the second, in 0..1.
        ``<pair>_mean``: mean attention over these pairs of tokens, except those that are the only pair at their signed
            distance (between the same sentences of the same example, without special tokens); in 0..1.
        ``<pair>_beyond_position``: the mean of each pair's attention minus the mean of other pairs at its distance; 0
            is expected for a head that attends by position only; -1..1.
        ``<pair>_beyond_received``: mean over the pairs of their attention minus the mean attention to the second token
            from the other tokens in the first token's sentence; 0 is expected for a head that attends to such words
            from everywhere; -1..1.
        ``<pair>_far``: as ``<pair>``, among tokens at least ``far`` apart.
        ``uniform``: 1/L, the attention to each of the L tokens under uniform attention.

    Args:
        features: Name -> kinds, see :class:`Feature`, of the columns ``cls_to_<feature>``.
        pairs: Name -> link and ends, see :class:`WordPair`.
        far: Least distance in tokens of ``<pair>_far``.
        matching: How words are matched to tokens: by character ``offsets``, or by spelling and order like the original
            code (``kovaleva``).
        absent: Examples without the pair: ``exclude`` ignores them; ``kovaleva`` counts them as 0 in ``<pair>``, like
            the original code.
        max_examples: A random sample of this many examples; None for all. The paper takes 1000.
        max_length: Truncate to this many tokens; None for the task's. The original's is 200.

    Raises:
        UserError: If there is neither a feature nor a pair, one is not valid, two columns have the same name, or a
            setting does not exist.
    """

    name = "token_to_token"
    title = "Attention from token to token"
    presenter = "bertsecrets.present.features:PAIRS"
    tracked = ()

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        features: Mapping[str, Mapping[str, Any] | None],
        pairs: Mapping[str, Mapping[str, Any] | None],
        far: Annotated[int, Field(ge=1, description="a whole number of tokens from 1")] = 3,
        matching: Matching = "offsets",
        absent: Absent = "exclude",
        max_examples: MaxExamples = None,
        max_length: Length | None = None,
    ) -> None:
        self.features = features_from_config(features)
        self.pairs = {
            str(name): WordPair.from_config(str(name), section)
            for name, section in pairs.items()
            if section is not None
        }
        if not self.features and not self.pairs:
            raise UserError("The measure token_to_token has neither features nor pairs; give at least one.")
        if matching == "kovaleva":
            # One table can contain both definitions under different names.
            self.name = KOVALEVA
            self.title = "Attention from token to token, by the original code's definitions"
        labels = {name: pair_label(name) for name in self.pairs}
        kinds = {
            "": "",
            MEAN: ", mean",
            BEYOND: ", beyond position",
            BEYOND_WORD: ", beyond the word",
            FAR: ", far apart",
        }
        targets = {CLS_TO + name: f"[CLS] → {feature_label(name)}" for name in self.features}
        self.columns = (
            *(Column(name, label, _WEIGHT) for name, label in targets.items()),
            *(
                Column(name + RANDOM, f"{label}, same number of random words", _WEIGHT, role="baseline")
                for name, label in targets.items()
            ),
            *(
                Column(name + kind, label + text, _WEIGHT)
                for kind, text in kinds.items()
                for name, label in labels.items()
            ),
            Column(UNIFORM, "uniform attention", _WEIGHT, role="baseline"),
        )
        super().__init__(num_layers, num_heads)
        if self.pairs or any(feature.needs_annotation for feature in self.features.values()):
            self.needs = frozenset({Need.ANNOTATION})
        self.far = far
        self.matching = matching
        self.absent = absent
        self.feed = Feed(max_examples=max_examples, max_length=max_length)
        self._tokens = matching_of(matching, self.features)
        word_pairs = list(self.pairs.values())
        self._pair_tokens = (
            SpellingPairs(word_pairs, self._tokens)
            if isinstance(self._tokens, StringMatching)
            else OffsetPairs(word_pairs)
        )

    def prepare(self, split: EncodedSplit) -> None:
        check_occurs(self.name, self.features, split.examples)
        without = check_pairs_occur(self.name, self.pairs, split.examples)
        if without:
            rank_zero_warn(
                f"No word of these examples is annotated with coreference, so the columns {', '.join(without)} are "
                "empty."
            )
        self._tokens.prepare(split)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        tokens = self._find(batch)
        size, heads = attention_BHQK.shape[:2]
        first_B = batch.attention_mask_BS.argmax(-1)
        row_BHK = attention_BHQK[torch.arange(size, device=first_B.device), :, first_B]
        columns = [
            pooled(row_BHK, tokens.mask_BFS, self.features.values()),
            tokens.random_words.expected(row_BHK),
        ]
        if self.pairs:
            pairs = tokens.pairs
            values_NH = attention_BHQK[pairs.row_N, :, pairs.query_N, pairs.key_N]
            beyond_NH = values_NH - tokens.equal.mean_of_others(attention_BHQK, values_NH)
            beyond_word_NH = values_NH - mean_received_from_others(attention_BHQK, values_NH, pairs, batch)
            most_BHP = self._pooled(values_NH, pairs, size, "amax")
            columns += [
                most_BHP if self.absent == "exclude" else most_BHP.nan_to_num(0.0),
                self._pooled(values_NH.masked_fill(beyond_NH.isnan(), torch.nan), pairs, size, "mean"),
                self._pooled(beyond_NH, pairs, size, "mean"),
                self._pooled(beyond_word_NH, pairs, size, "mean"),
                self._pooled(values_NH.masked_fill(~tokens.far_N[:, None], torch.nan), pairs, size, "amax"),
            ]
        uniform_B = batch.lengths_B.to(attention_BHQK.dtype).reciprocal()
        columns.append(uniform_B[:, None, None].expand(size, heads, 1))
        return torch.cat(columns, dim=-1)

    def _pooled(self, values_NH: Tensor, pairs: TokenPairs, size: int, pool: str) -> Tensor:
        """Values pooled over the token pairs of each example and word pair, ``[B, H, P]``, ignoring NaN."""
        heads = values_NH.shape[1]
        counts_N1 = values_NH.isnan().logical_not()[:, :1]
        keep_K = counts_N1[:, 0].nonzero()[:, 0]
        # Combine example and word pair in one number, so that all token pairs are reduced at once.
        group_KH = (pairs.row_N * len(self.pairs) + pairs.pair_N)[keep_K, None].expand(-1, heads)
        # NaN remains for examples without such a pair, which do not count.
        pooled_GH = values_NH.new_full((size * len(self.pairs), heads), torch.nan)
        pooled_GH.scatter_reduce_(0, group_KH, values_NH[keep_K], pool, include_self=False)
        return pooled_GH.reshape(size, len(self.pairs), heads).transpose(1, 2)

    @once_per_batch
    def _find(self, batch: Batch) -> _BatchTokens:
        mask_BFS = self._tokens.masks(batch)
        pairs = self._pair_tokens.find(batch)
        far_N = (pairs.query_N - pairs.key_N).abs() >= self.far
        random_words = RandomWords(self.features.values(), mask_BFS, batch, by_token=self.matching == "kovaleva")
        return _BatchTokens(mask_BFS, random_words, pairs, EqualDistances.of(pairs, batch), far_N)
