"""Attention to linguistic features: how much each head attends to nouns, subjects, [SEP] and the like."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Example, Matching
from bertsecrets.errors import UserError, choices
from bertsecrets.measures.base import Feed, Measure, Need
from bertsecrets.measures.matching import FeatureTokens, OffsetMatching, StringMatching
from bertsecrets.measures.word_features import Feature, check_occurs, features_from_config

KOVALEVA = "features_kovaleva"
"""Name of the measure with ``matching=kovaleva``."""

Absent = Literal["exclude", "kovaleva"]

UNIFORM, OVER_UNIFORM = "_uniform", "_over_uniform"
"""End the names of the columns that say what uniform attention would give, and what is beyond that."""


def attention_received(attention_BHQK: Tensor, real_BS: Tensor) -> Tensor:
    """The mean attention that each token receives from the L real tokens, ``[B, H, S]`` in 0..1; padding receives 0."""
    weight_BS = real_BS.to(attention_BHQK.dtype)
    weight_B11Q = (weight_BS / weight_BS.sum(-1, keepdim=True))[:, None, None]
    return (weight_B11Q @ attention_BHQK)[:, :, 0]


def pooled(values_BHS: Tensor, mask_BFS: Tensor, features: Iterable[Feature]) -> Tensor:
    """The largest value (or the sum) among the tokens of each feature, ``[B, H, F]``; NaN where there is no such token."""
    values_BHF = values_BHS[:, :, None].masked_fill(~mask_BFS[:, None], -torch.inf).amax(-1)
    for place, feature in enumerate(features):
        if feature.pool == "sum":
            values_BHF[:, :, place] = (values_BHS * mask_BFS[:, None, place]).sum(-1)
    return values_BHF.masked_fill(~mask_BFS.any(-1)[:, None], torch.nan)


class Features(Measure):
    """Attention to linguistic features (Kovaleva et al. 2019, section 4.4; METHODS K5).

    Columns:
        ``<feature>``: s = max over tokens j with the feature of (1/L) * sum over the L real tokens i of A_ij, special
            tokens included, in 0..1; with ``pool: sum``, the sum over j.
        ``<feature>_uniform``: what uniform attention would give on the same examples: 1/L for each token.
        ``<feature>_over_uniform``: ``<feature>`` minus that, example by example; -1..1.

    Args:
        num_layers, num_heads: Size of the grid.
        features: Name -> kinds, see :class:`Feature`.
        matching: From words to tokens: by character ``offsets``, or by spelling as the original code does (``kovaleva``).
        absent: Examples without the feature: ``exclude`` disregards them, as the paper says; ``kovaleva`` counts them
            as 0, as the original code does for all features but negation.
        max_examples: A random sample of this many examples; None for all. The paper takes 1000.
        max_length: Truncate to this many tokens; None for the task's. The original's is 200.

    Raises:
        UserError: If no feature is given, one is none, or ``matching`` or ``absent`` does not exist.
    """

    name = "features"

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        features: Mapping[str, Mapping[str, Any] | None],
        matching: Matching = "offsets",
        absent: Absent = "exclude",
        max_examples: int | None = None,
        max_length: int | None = None,
    ) -> None:
        self.features = features_from_config(features)
        if not self.features:
            raise UserError("The measure of linguistic features was given none; name at least one under features.")
        check_matching(self.name, matching, absent, self.features)
        if matching == "kovaleva":
            # So that both definitions stand side by side in one table.
            self.name = KOVALEVA  # type: ignore[misc]
        self.columns = tuple(name + kind for kind in ("", UNIFORM, OVER_UNIFORM) for name in self.features)
        super().__init__(num_layers, num_heads)
        if any(feature.needs_annotation for feature in self.features.values()):
            self.needs = frozenset({Need.ANNOTATION})
        self.matching = matching
        self.feed = Feed(max_examples=max_examples, max_length=max_length)
        as_zero = [absent == "kovaleva" and not is_negation(feature) for feature in self.features.values()]
        self._as_zero_F = torch.tensor(as_zero)
        self._tokens: FeatureTokens | None = None
        self._masked: tuple[Batch, Tensor] | None = None

    def prepare(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> None:
        check_occurs(self.features, examples)
        self._tokens = feature_tokens(self.matching, list(self.features.values()), examples, tokenizer)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        if self._masked is None or self._masked[0] is not batch:
            # The same for every layer of a batch.
            self._masked = batch, self._masks(batch)
        mask_BFS = self._masked[1]
        real_BS = batch.attention_mask_BS.to(attention_BHQK.dtype)
        uniform_B1S = (real_BS / real_BS.sum(-1, keepdim=True))[:, None]
        received_BHF, uniform_B1F = (
            pooled(values_BHS, mask_BFS, self.features.values())
            for values_BHS in (attention_received(attention_BHQK, real_BS), uniform_B1S)
        )
        uniform_BHF = uniform_B1F.expand_as(received_BHF)
        values_BHC = torch.cat((received_BHF, uniform_BHF, received_BHF - uniform_BHF), dim=-1)
        as_zero_C = self._as_zero_F.repeat(3).to(values_BHC.device)
        return values_BHC.masked_fill(values_BHC.isnan() & as_zero_C, 0.0)

    def _masks(self, batch: Batch) -> Tensor:
        if self._tokens is None:
            self._tokens = feature_tokens(self.matching, list(self.features.values()))
        return self._tokens.masks(batch)

    def reset(self) -> None:
        """Back to no examples."""
        super().reset()
        self._masked = None


def check_matching(measure: str, matching: str, absent: str, features: Mapping[str, Feature]) -> None:
    """Raises UserError if a way of matching or of counting does not exist, or does not know one of the features."""
    for key, value, valid in (("matching", matching, get_args(Matching)), ("absent", absent, get_args(Absent))):
        if value not in valid:
            raise UserError(f"Unknown {key} '{value}' of the {measure} measure; {choices(str(value), valid)}.")
    for name, feature in features.items():
        if feature.contains and matching != "kovaleva":
            raise UserError(
                f"Feature '{name}' is by contains, which matching=kovaleva alone knows; use lexicon or negation."
            )


def is_negation(feature: Feature) -> bool:
    """Whether a feature is the one that the original code disregards where it is absent."""
    return feature.negation or bool(feature.contains)


def feature_tokens(
    matching: Matching,
    features: Sequence[Feature],
    examples: Sequence[Example] = (),
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> FeatureTokens:
    """What finds the tokens of features; matching by spelling takes all examples and the tokenizer.

    Raises:
        ValueError: If it does not get them.
    """
    if matching == "offsets":
        return OffsetMatching(features)
    if tokenizer is None:
        raise ValueError("matching=kovaleva looks into texts: call prepare(examples, tokenizer) before the first batch")
    return StringMatching(features, examples, tokenizer)
