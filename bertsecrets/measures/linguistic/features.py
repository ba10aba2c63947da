"""Attention to linguistic features such as nouns, subjects and [SEP]."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Matching
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import Column
from bertsecrets.measures.base import Feed, Length, MaxExamples, Measure, Need, once_per_batch
from bertsecrets.measures.linguistic.baselines import RandomWords
from bertsecrets.measures.linguistic.columns import OVER_RANDOM, RANDOM, UNIFORM, feature_label
from bertsecrets.measures.linguistic.matching import matching_of
from bertsecrets.measures.linguistic.word_features import Feature, check_occurs, features_from_config
from bertsecrets.settings import typed

KOVALEVA = "features_kovaleva"
"""Name of the measure with ``matching=kovaleva``."""

_RECEIVED = "largest mean attention received by a token"

Absent = Literal["exclude", "kovaleva"]


def attention_received(attention_BHQK: Tensor, real_BS: Tensor) -> Tensor:
    """The mean attention that each token receives from the L real tokens, ``[B, H, S]`` in 0..1; padding receives 0."""
    weight_BS = real_BS.to(attention_BHQK.dtype)
    weight_B11Q = (weight_BS / weight_BS.sum(-1, keepdim=True))[:, None, None]
    return (weight_B11Q @ attention_BHQK)[:, :, 0]


def pooled(values_BHS: Tensor, mask_BFS: Tensor, features: Iterable[Feature]) -> Tensor:
    """The largest value (or the sum) among the tokens of each feature, ``[B, H, F]``; NaN if there is no such token."""
    # -inf, not 0, distinguishes an absent feature from one without attention.
    values_BHF = values_BHS[:, :, None].masked_fill(~mask_BFS[:, None], -torch.inf).amax(-1)
    for column, feature in enumerate(features):
        if feature.pool == "sum":
            values_BHF[:, :, column] = (values_BHS * mask_BFS[:, None, column]).sum(-1)
    return values_BHF.masked_fill(~mask_BFS.any(-1)[:, None], torch.nan)


class Features(Measure):
    """Attention to linguistic features (Kovaleva et al. 2019, section 4.4; methods K5).

    Columns:
        ``<feature>``: s = max over tokens j with the feature of (1/L) * sum over the L real tokens i of A_ij, special
            tokens included, in 0..1; with ``pool: sum``, the sum over j.
        ``<feature>_uniform``: the value under uniform attention on the same examples: 1/L for each token.
        ``<feature>_random``: the exact expectation of the head's number if the same number of random words had the
            feature (:class:`RandomWords`); the largest of several words exceeds 1/L in any head.
        ``<feature>_over_random``: ``<feature>`` minus that, example by example; -1..1.

    Args:
        features: Name -> kinds, see :class:`Feature`.
        matching: How words are matched to tokens: by character ``offsets``, or by spelling like the original code
            (``kovaleva``).
        absent: Examples without the feature: ``exclude`` ignores them, as in the paper; ``kovaleva`` counts them as 0,
            like the original code for all features except negation.
        max_examples: A random sample of this many examples; None for all. The paper takes 1000.
        max_length: Truncate to this many tokens; None for the task's limit. The original uses 200.

    Raises:
        UserError: If there is no feature, a feature is not valid, or ``matching`` or ``absent`` does not exist.
    """

    name = "features"
    title = "Attention to linguistic features"
    presenter = "bertsecrets.present.features:FEATURES"
    tracked = ()

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        features: Mapping[str, Mapping[str, Any] | None],
        matching: Matching = "offsets",
        absent: Absent = "exclude",
        max_examples: MaxExamples = None,
        max_length: Length | None = None,
    ) -> None:
        self.features = features_from_config(features)
        if not self.features:
            raise UserError("The measure of linguistic features has no features; give at least one under features.")
        if matching == "kovaleva":
            # One table can contain both definitions under different names.
            self.name = KOVALEVA
            self.title = "Attention to linguistic features, by the original code's definitions"
        kinds = {
            "": "",
            UNIFORM: ", uniform attention",
            RANDOM: ", same number of random words",
            OVER_RANDOM: ", beyond random words",
        }
        self.columns = tuple(
            Column(name + kind, feature_label(name) + text, _RECEIVED, role="baseline" if kind else "value")
            for kind, text in kinds.items()
            for name in self.features
        )
        super().__init__(num_layers, num_heads)
        if any(feature.needs_annotation for feature in self.features.values()):
            self.needs = frozenset({Need.ANNOTATION})
        self.matching = matching
        self.feed = Feed(max_examples=max_examples, max_length=max_length)
        # The original code ignores examples without negation.
        as_zero = [
            absent == "kovaleva" and not (feature.negation or feature.contains) for feature in self.features.values()
        ]
        self._as_zero_F = torch.tensor(as_zero)
        self._tokens = matching_of(matching, self.features)

    def prepare(self, split: EncodedSplit) -> None:
        check_occurs(self.name, self.features, split.examples)
        self._tokens.prepare(split)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        mask_BFS, random_words = self._find(batch)
        real_BS = batch.attention_mask_BS.to(attention_BHQK.dtype)
        uniform_B1S = (real_BS / real_BS.sum(-1, keepdim=True))[:, None]
        received_BHS = attention_received(attention_BHQK, real_BS)
        received_BHF, uniform_B1F = (
            pooled(values_BHS, mask_BFS, self.features.values()) for values_BHS in (received_BHS, uniform_B1S)
        )
        uniform_BHF = uniform_B1F.expand_as(received_BHF)
        random_BHF = random_words.expected(received_BHS)
        values_BHC = torch.cat((received_BHF, uniform_BHF, random_BHF, received_BHF - random_BHF), dim=-1)
        # Each feature has four columns.
        as_zero_C = self._as_zero_F.repeat(4).to(values_BHC.device)
        return values_BHC.masked_fill(values_BHC.isnan() & as_zero_C, 0.0)

    @once_per_batch
    def _find(self, batch: Batch) -> tuple[Tensor, RandomWords]:
        mask_BFS = self._tokens.masks(batch)
        return mask_BFS, RandomWords(self.features.values(), mask_BFS, batch, by_token=self.matching == "kovaleva")
