"""Match words to tokens, by character offsets or by spelling like the original code of Kovaleva et al."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Annotation, Matching, Word
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.measures.linguistic.word_features import Feature, shared_forms

_Key = tuple[str, str, str, str, bool, bool]


@dataclass(frozen=True)
class WordTable:
    """The annotated words of a batch, one per row, and the word of each token.

    The last row means no word.

    Args:
        row_BS: Row of each token's word, int64.
        fits_WF: Mask of the words with each feature, bool; False in the last row.
        head_W: Row of a word's syntactic head, int64; the last row for a root.
        sentence_W: Number of a word's sentence within the batch, int64; -1 in the last row.
        entity_W: Number of a word's coreference cluster within the batch, int64; -1 if there is none.
    """

    row_BS: Tensor
    fits_WF: Tensor
    head_W: Tensor
    sentence_W: Tensor
    entity_W: Tensor


class OffsetMatching:
    """Matching by offsets: a token has the features of the word that contains its first character.

    All pieces of a word have its features; another word of the same spelling does not.

    Args:
        features: The features to find.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = tuple(features)
        self._fits_of: dict[_Key, tuple[bool, ...]] = {}

    def words(self, batch: Batch) -> WordTable:
        """The words of a batch; examples without annotation have no words."""
        fits: list[tuple[bool, ...]] = []
        head: list[int] = []
        sentence: list[int] = []
        entity: list[int] = []
        first = []
        for row, annotations in enumerate(_annotations(batch)):
            first.append(len(fits))
            shared = shared_forms(annotations)
            for number, annotation in enumerate(annotations):
                start = len(fits)
                for word in annotation.words:
                    fits.append(self._fits(word, shared))
                    head.append(start + word.head if word.head >= 0 else -1)
                    sentence.append(2 * row + number)
                    # Combine example and entity in one number, because entities are numbered per example.
                    entity.append(row + word.entity * batch.size if word.entity >= 0 else -1)
        none, device = len(fits), batch.input_ids_BS.device
        annotated_B1 = torch.tensor([bool(sentences) for sentences in _annotations(batch)])[:, None]
        first_B1 = torch.tensor(first)[:, None].to(device)
        return WordTable(
            row_BS=torch.where((batch.word_BS >= 0) & annotated_B1.to(device), batch.word_BS + first_B1, none),
            # NumPy reads nested lists several times faster.
            fits_WF=torch.from_numpy(np.array([*fits, (False,) * len(self.features)], bool)).to(device),
            head_W=torch.tensor([none if row < 0 else row for row in [*head, -1]]).to(device),
            sentence_W=torch.tensor([*sentence, -1]).to(device),
            entity_W=torch.tensor([*entity, -1]).to(device),
        )

    def prepare(self, split: EncodedSplit) -> None:
        """Do nothing, as words have positions."""

    def masks(self, batch: Batch) -> Tensor:
        """Mask of the tokens with each feature, bool ``[B, F, S]``."""
        words = self.words(batch)
        return with_special(words.fits_WF[words.row_BS].transpose(1, 2), self.features, batch)

    def _fits(self, word: Word, shared: Collection[str]) -> tuple[bool, ...]:
        # Words repeat: checking each of them for every feature would take longer than a GPU's forward pass.
        key = (word.form, word.pos, word.relation, word.tag, word.negation, word.form.lower() in shared)
        if key not in self._fits_of:
            self._fits_of[key] = tuple(feature.fits(word, shared) for feature in self.features)
        return self._fits_of[key]


class StringMatching:
    """Matching by spelling: a token has a feature if it is spelt like a piece of any word with the feature.

    As in the original code (methods K5): "don't" makes every apostrophe of the example a negation, and repeated words
    share their features. Strings of ``contains`` are searched in the whole text, including inside words.

    Args:
        features: The features to find.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = tuple(features)
        self._tokenizer: PreTrainedTokenizerFast | None = None
        self._texts: dict[int, tuple[str, ...]] = {}
        self._pieces: dict[str, frozenset[int]] = {}

    def prepare(self, split: EncodedSplit) -> None:
        """Store the examples' texts, and the tokenizer, which is applied to each word separately."""
        self._tokenizer = split.tokenizer
        self._texts = {example.index: example.texts for example in split.examples}
        self._pieces = {}

    def masks(self, batch: Batch) -> Tensor:
        """Mask of the tokens with each feature, bool ``[B, F, S]``."""
        if self._tokenizer is None:
            raise ValueError("matching=kovaleva needs texts: call prepare(split) before the first batch")
        mask_BFS = torch.zeros((batch.size, len(self.features), batch.input_ids_BS.shape[1]), dtype=torch.bool)
        for row, (index, annotations) in enumerate(zip(batch.index_B.tolist(), _annotations(batch), strict=True)):
            ids_S = batch.input_ids_BS[row].cpu()
            shared = shared_forms(annotations)
            for column, feature in enumerate(self.features):
                if feature.contains:
                    forms = [part for part in feature.contains if any(part in text for text in self._texts[index])]
                else:
                    forms = [
                        word.form for sentence in annotations for word in sentence.words if feature.fits(word, shared)
                    ]
                mask_BFS[row, column] = self.positions(ids_S, forms)
        return with_special(mask_BFS.to(batch.input_ids_BS.device), self.features, batch)

    def positions(self, ids_S: Tensor, forms: Sequence[str]) -> Tensor:
        """Mask of the tokens spelt like a piece of any of the words, bool ``[S]``."""
        wanted = frozenset[int]().union(*(self._cut(form) for form in forms))
        return torch.isin(ids_S, torch.tensor(sorted(wanted), dtype=ids_S.dtype))

    def _cut(self, form: str) -> frozenset[int]:
        assert self._tokenizer is not None
        if form not in self._pieces:
            self._pieces[form] = frozenset(self._tokenizer(form, add_special_tokens=False)["input_ids"])
        return self._pieces[form]


def matching_of(matching: Matching, features: Mapping[str, Feature]) -> OffsetMatching | StringMatching:
    """A matching by its name; raises UserError if it does not support one of the features."""
    if matching == "kovaleva":
        return StringMatching(list(features.values()))
    for name, feature in features.items():
        if feature.contains:
            raise UserError(f"Feature '{name}' uses contains, which needs matching=kovaleva; use lexicon or negation.")
    return OffsetMatching(list(features.values()))


def with_special(masks_BFS: Tensor, features: Sequence[Feature], batch: Batch) -> Tensor:
    """The masks, with those of special tokens filled in."""
    special_BS = batch.special_BS & batch.attention_mask_BS.bool()
    first_BS = special_BS & (special_BS.cumsum(-1) == 1)
    masks_BFS = masks_BFS.clone()
    for column, feature in enumerate(features):
        if feature.special is not None:
            masks_BFS[:, column] = first_BS if feature.special == "first" else special_BS & ~first_BS
    return masks_BFS


def _annotations(batch: Batch) -> tuple[tuple[Annotation, ...], ...]:
    return batch.annotations or ((),) * batch.size
