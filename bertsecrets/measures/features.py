"""Attention to linguistic features: how much each head attends to nouns, subjects, [SEP] and the like."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Word
from bertsecrets.errors import UserError, choices
from bertsecrets.measures.base import Feed, Measure, Need

SPECIAL = ("first", "separator")
_ABSENT = ("exclude", "kovaleva")


@dataclass(frozen=True)
class Feature:
    """Which tokens have a feature: those of a word that fits every kind that is given, or special tokens.

    Args:
        pos: Universal POS tags.
        relation: Universal Dependencies labels.
        lexicon: Word forms; case does not count.
        negation: Only words that negate.
        special: ``first`` (the classification token) or ``separator`` (every other special token); alone.

    Raises:
        UserError: If nothing is given, ``special`` stands with another kind, or there is no such special token.
    """

    pos: tuple[str, ...] = ()
    relation: tuple[str, ...] = ()
    lexicon: tuple[str, ...] = ()
    negation: bool = False
    special: str | None = None

    def __post_init__(self) -> None:
        of_words = bool(self.pos or self.relation or self.lexicon or self.negation)
        if self.special is not None and self.special not in SPECIAL:
            raise UserError(f"Unknown special token '{self.special}' of a feature; {choices(self.special, SPECIAL)}.")
        if of_words == (self.special is not None):
            raise UserError(
                "A feature names either special tokens, or words by pos, relation, lexicon or negation; give one of the two."
            )

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> "Feature":
        """A feature as ``conf/measure/features.yaml`` writes it.

        Raises:
            UserError: If a kind does not exist, or the feature is not one.
        """
        valid = {field.name for field in fields(cls)}
        for key in section:
            if key not in valid:
                raise UserError(f"Unknown kind '{key}' of feature '{name}'; {choices(str(key), valid)}.")
        lists = {key: tuple(map(str, section.get(key, ()))) for key in ("pos", "relation", "lexicon")}
        return cls(**lists, negation=bool(section.get("negation", False)), special=section.get("special"))

    def fits(self, word: Word) -> bool:
        """Whether a word has the feature."""
        return (
            (not self.pos or word.pos in self.pos)
            and (not self.relation or word.relation in self.relation)
            and (not self.lexicon or word.form.lower() in {form.lower() for form in self.lexicon})
            and (not self.negation or word.negation)
        )


def feature_masks(features: Sequence[Feature], batch: Batch) -> Tensor:
    """Which tokens have which feature, bool ``[B, F, S]``; words in pieces have it in every piece."""
    mask_BFS = torch.zeros((batch.size, len(features), batch.input_ids_BS.shape[1]), dtype=torch.bool)
    special_BS = (batch.special_BS & batch.attention_mask_BS.bool()).cpu()
    number_BS = batch.word_BS.cpu()
    for row in range(batch.size):
        words = [word for sentence in batch.annotations[row] for word in sentence.words] if batch.annotations else []
        for place, feature in enumerate(features):
            if feature.special is None:
                fitting = [number for number, word in enumerate(words) if feature.fits(word)]
                mask_BFS[row, place] = torch.isin(number_BS[row], torch.tensor(fitting, dtype=number_BS.dtype))
            else:
                positions = special_BS[row].nonzero()[:, 0]
                mask_BFS[row, place, positions[:1] if feature.special == "first" else positions[1:]] = True
    return mask_BFS.to(batch.input_ids_BS.device)


def attention_received(attention_BHQK: Tensor, real_BS: Tensor, mask_BFS: Tensor) -> Tensor:
    """The largest mean attention that a token with the feature receives, ``[B, H, F]`` in 0..1; NaN without such a token.

    s = max over tokens j with the feature of (1/L) * sum over the L real tokens i of A_ij.
    """
    weight_BQ = real_BS.to(attention_BHQK.dtype)
    received_BHK = torch.einsum("bhqk,bq->bhk", attention_BHQK, weight_BQ) / weight_BQ.sum(-1)[:, None, None]
    most_BHF = received_BHK[:, :, None].masked_fill(~mask_BFS[:, None], -torch.inf).amax(-1)
    return most_BHF.masked_fill(~mask_BFS.any(-1)[:, None], torch.nan)


class Features(Measure):
    """Attention to linguistic features (Kovaleva et al. 2019, section 4.4; METHODS K5), a column for each feature.

    Args:
        num_layers, num_heads: Size of the grid.
        features: Name -> kinds, see :class:`Feature`.
        absent: Examples without the feature: ``exclude`` disregards them, as the paper says; ``kovaleva`` counts them
            as 0, as the original code does.
        max_examples: A random sample of this many examples; None for all. The paper takes 1000.

    Raises:
        UserError: If no feature is given, one is none, or ``absent`` is neither.
    """

    name = "features"

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        features: Mapping[str, Mapping[str, Any]],
        absent: str = "exclude",
        max_examples: int | None = None,
    ) -> None:
        if not features:
            raise UserError("The measure of linguistic features was given none; name at least one under features.")
        if absent not in _ABSENT:
            raise UserError(f"Unknown absent '{absent}' of the features measure; {choices(absent, _ABSENT)}.")
        self.columns = tuple(map(str, features))
        super().__init__(num_layers, num_heads)
        self.features = [Feature.from_config(str(name), section) for name, section in features.items()]
        if any(feature.special is None for feature in self.features):
            self.needs = frozenset({Need.ANNOTATION})
        self.absent = absent
        self.feed = Feed(max_examples=max_examples)
        self._masked: tuple[Batch, Tensor] | None = None

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        # The masks are the same for every layer of a batch.
        if self._masked is None or self._masked[0] is not batch:
            self._masked = batch, feature_masks(self.features, batch)
        received_BHF = attention_received(attention_BHQK, batch.attention_mask_BS.bool(), self._masked[1])
        return received_BHF if self.absent == "exclude" else received_BHF.nan_to_num(0.0)

    def reset(self) -> None:
        """Back to no examples."""
        super().reset()
        self._masked = None
