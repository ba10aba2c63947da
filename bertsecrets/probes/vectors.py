"""Word vectors for probes: from a file in GloVe's format, or an encoder's own input embeddings."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsecrets.data.sources.base import numbered_lines
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import describe
from bertsecrets.probes.sentences import Sentence
from bertsecrets.settings import shown

_ADVICE = "give a text file of GloVe vectors with analysis.probes.glove=<file>, or remove it"
_MOST = 10_000
"""Largest size of a vector; a longer line is not a word vector."""


@dataclass(frozen=True)
class WordVectors:
    """A vector for each word type.

    Args:
        source: Description of their origin.
        row_of: Row of each word type; types without a vector are missing.
        table_VD: The vectors, scaled to a root mean square of 1; row 0, for words without a vector, is zero.
        by_form: Whether a type is a lower-cased spelling; otherwise it is a word's sequence of token ids.
    """

    source: str
    row_of: Mapping[Hashable, int]
    table_VD: Tensor
    by_form: bool

    def rows(self, sentence: Sentence) -> NDArray[np.int64]:
        """The row of each word of a sentence; 0 for words without a vector."""
        kinds: Sequence[Hashable] = [form.lower() for form in sentence.forms] if self.by_form else list(sentence.tokens)
        return np.array([self.row_of.get(kind, 0) for kind in kinds], np.int64)

    def missing(self, sentences: Sequence[Sentence]) -> int:
        """Number of words that count but have no vector."""
        return sum(int(((self.rows(sentence) == 0) & sentence.counts_W).sum()) for sentence in sentences)


def glove_vectors(path: Path, sentences: Sequence[Sentence]) -> WordVectors:
    """The vectors of the words of sentences, from a text file with a word and its numbers on each line.

    Only the needed vectors are kept in memory. A first line of two whole numbers, as in word2vec and fastText files, is
    skipped.

    Raises:
        UserError: If the file cannot be read, lines differ in width, a number is invalid, or no word of the sentences
            has a vector.
    """
    wanted = {form.lower() for sentence in sentences for form in sentence.forms}
    row_of: dict[Hashable, int] = {}
    vectors: list[NDArray[np.float32]] = []
    width = 0
    for number, line in numbered_lines(path, _ADVICE, "the line"):
        # Split only at spaces, as split() would also split words at other white space.
        fields = line.rstrip("\r\n ").split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
            continue
        size = len(fields) - 1
        if not width:
            if not 1 <= size <= _MOST:
                raise UserError(
                    f"{path}:{number}: {size} numbers after the word {shown(fields[0])}; expected 1 to {_MOST} per "
                    "line, separated by spaces, as in GloVe files."
                )
            width = size
        if size > width and not any(_is_number(field) for field in fields[1 : size - width + 1]):
            # Some GloVe files have words that contain spaces, such as ". . .".
            fields = [" ".join(fields[: size - width + 1]), *fields[size - width + 1 :]]
            size = width
        if size != width:
            raise UserError(
                f"{path}:{number}: {size} numbers after the word {shown(fields[0])}, but {width} on earlier lines; "
                "give a file whose vectors have equal width."
            )
        if fields[0] in wanted and fields[0] not in row_of:
            vectors.append(_numbers(fields[1:], f"{path}:{number}"))
            row_of[fields[0]] = len(vectors)
    if not vectors:
        raise UserError(
            f"File '{path}' has no vector for any of the {len(wanted):,} words of the sentences; give lower-case "
            "GloVe vectors in their language."
        )
    return WordVectors(f"{path.name} ({width} numbers each)", row_of, _table(np.stack(vectors)), by_form=True)


@torch.no_grad()
def embedding_vectors(model: nn.Module, sentences: Sequence[Sentence]) -> WordVectors:
    """The encoder's input embeddings, averaged over the tokens of each word."""
    embeddings = describe(model).base.get_input_embeddings()
    assert isinstance(embeddings, nn.Module)
    weight_VD = embeddings.weight
    assert isinstance(weight_VD, Tensor)
    kinds = sorted({tokens for sentence in sentences for tokens in sentence.tokens if tokens})
    means = torch.stack([weight_VD[list(tokens)].float().mean(0) for tokens in kinds]).cpu()
    row_of: dict[Hashable, int] = {tokens: row for row, tokens in enumerate(kinds, start=1)}
    return WordVectors("the encoder's own input embeddings", row_of, _table(means.numpy()), by_form=False)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _numbers(fields: Sequence[str], where: str) -> NDArray[np.float32]:
    values = []
    for field in fields:
        try:
            value = float(field)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"{where}: {shown(field)} is not a number; fix or remove the line.")
        values.append(value)
    return np.array(values, np.float32)


def _table(vectors_VD: NDArray[np.float32]) -> Tensor:
    """The vectors, scaled to a common size so that one learning rate fits every source; row 0 is zeros."""
    scale = float(np.sqrt(np.mean(np.square(vectors_VD, dtype=np.float64)))) or 1.0
    zeros = np.zeros((1, vectors_VD.shape[1]), np.float32)
    return torch.from_numpy(np.concatenate([zeros, (vectors_VD / scale).astype(np.float32)]))
