"""What one head attends to: where it attends to other tokens of the text, and pairs of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from bertsecrets.analysis import Analysis, Context, Findings, SplitBatches
from bertsecrets.attention.watch import watch
from bertsecrets.data.tokenization import written
from bertsecrets.errors import UserError
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import MISSING
from bertsecrets.results.progress import progress_over

Array = NDArray[np.float64]

FEWEST = 10
"""Fewer examples with a pair of tokens do not show that the head attends to it."""

_LEVEL = 0.05

_PAIRS_AT_ONCE = 2_000_000
"""Pairs of tokens kept apart by example before they are added up."""


@dataclass(frozen=True)
class Attending:
    """Where the head attends in one example.

    Args:
        index: The example.
        share: Mean share of a token's attention that goes to other tokens of the text, neither special ones nor
            itself; NaN for a text of one token.
        query, key: The two tokens with the largest such weight.
        weight: That weight.
    """

    index: int
    share: float
    query: str
    key: str
    weight: float


@dataclass(frozen=True)
class TokenPair:
    """A pair of tokens that occurs in :data:`FEWEST` examples or more.

    Args:
        query, key: The tokens.
        weight: Mean weight from ``query`` to ``key``, first within and then over examples.
        chance: The weight if each token of the example got the same.
        low: Lower limit of ``weight - chance`` by a one-sided t test with Bonferroni's correction for all pairs.
        examples: Number of examples with the pair.
    """

    query: str
    key: str
    weight: float
    chance: float
    low: float
    examples: int


class OneHead(Analysis, Experiment):
    """Find where one head attends to other tokens of the text, and to which pairs of tokens.

    The rows are an :class:`Attending` for each example, in order of their index, then a :class:`TokenPair` for each
    pair, the largest mean weight first. Every process reads all examples.

    Args:
        layer, head: The head, both from 0.
        evaluation: Evaluation set; None for the task's first.
    """

    name = "one_head"
    title = "What one head attends to"

    def __init__(self, layer: int, head: int, evaluation: str | None = None) -> None:
        super().__init__(evaluation)
        self.layer, self.head = layer, head

    def check(self, context: Context) -> None:
        super().check(context)
        encoder = context.encoder
        if not (0 <= self.layer < encoder.num_layers and 0 <= self.head < encoder.num_heads):
            raise UserError(
                f"There is no head {self.layer}.{self.head}; the model has layers 0 to {encoder.num_layers - 1} and "
                f"heads 0 to {encoder.num_heads - 1}, e.g. head={encoder.num_layers - 1}.0."
            )

    def run(self, context: Context) -> Iterator[Findings]:
        tokenizer = context.split.tokenizer
        maps: list[Tensor] = []
        rows: dict[int, tuple[float, int, int, float]] = {}
        sums = _PairSums(len(tokenizer))

        def observe(layer: int, attention_BHQK: Tensor) -> None:
            if layer == self.layer:
                maps[:] = [attention_BHQK[:, self.head].cpu().double()]

        batches = SplitBatches(context.split, context.batch_size)
        with (
            watch(context.model, observe),
            progress_over(len(batches), "reading the evaluation set", visible=context.progress) as advance,
        ):
            for batch in batches:
                with context.autocast():
                    context.model(**batch.to(context.device).inputs())
                for row, index in enumerate(batch.index_B.tolist()):
                    length = int(batch.attention_mask_BS[row].sum())
                    real_S = batch.attention_mask_BS[row].bool()
                    ids_S = batch.input_ids_BS[row][real_S].numpy()
                    words = np.flatnonzero(~batch.special_BS[row][real_S].numpy())
                    weight_QK = maps[0][row][real_S][:, real_S].numpy()[np.ix_(words, words)]
                    np.fill_diagonal(weight_QK, 0)
                    if len(words) < 2:
                        rows[index] = (np.nan, -1, -1, np.nan)
                        continue
                    query, key = np.unravel_index(int(weight_QK.argmax()), weight_QK.shape)
                    rows[index] = (
                        float(weight_QK.sum(-1).mean()),
                        int(ids_S[words[query]]),
                        int(ids_S[words[key]]),
                        float(weight_QK[query, key]),
                    )
                    sums.add(ids_S[words], weight_QK, 1 / length)
                advance()

        def name(token: int) -> str:
            return MISSING if token < 0 else written(tokenizer, [token])[0]

        attending = [
            Attending(index, share, name(query), name(key), weight)
            for index, (share, query, key, weight) in sorted(rows.items())
        ]
        pairs = [
            TokenPair(name(query), name(key), weight, chance, low, count)
            for query, key, weight, chance, low, count in sums.tested()
        ]
        yield Findings(self, rows=[*attending, *pairs])


class _PairSums:
    """Sums over examples of the weight of each pair of tokens and of its excess over chance."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.parts: list[tuple[NDArray[np.int64], Array]] = []
        self.size = 0

    def add(self, ids_W: NDArray[np.int64], weight_WW: Array, chance: float) -> None:
        """Add an example's weights between different tokens of its text."""
        apart_WW = ~np.eye(len(ids_W), dtype=bool)
        # One number for each pair of tokens, by which pairs are counted.
        keys = (ids_W[:, None] * self.vocabulary + ids_W[None])[apart_WW]
        key_P, pair_N = np.unique(keys, return_inverse=True)
        mean_P = np.bincount(pair_N, weight_WW[apart_WW]) / np.bincount(pair_N)
        excess_P = mean_P - chance
        ones = np.ones(len(key_P))
        self.parts.append((key_P, np.stack([ones, mean_P, chance * ones, excess_P, excess_P**2], 1)))
        self.size += len(key_P)
        if self.size > _PAIRS_AT_ONCE:
            self._add_up()

    def _add_up(self) -> None:
        keys = np.concatenate([key_P for key_P, _ in self.parts])
        values = np.concatenate([value_P5 for _, value_P5 in self.parts])
        key_P, pair_N = np.unique(keys, return_inverse=True)
        self.parts = [(key_P, np.stack([np.bincount(pair_N, column) for column in values.T], 1))]
        self.size = 0

    def tested(self) -> list[tuple[int, int, float, float, float, int]]:
        """The two tokens and the numbers of a :class:`TokenPair`, for each pair that is frequent enough."""
        if not self.parts:
            return []
        self._add_up()
        key_P, sums_P5 = self.parts[0]
        frequent_P = sums_P5[:, 0] >= FEWEST
        key_P, (count_P, weight_P, chance_P, excess_P, squares_P) = key_P[frequent_P], sums_P5[frequent_P].T
        mean_P = excess_P / count_P
        spread_P = np.sqrt(np.maximum(squares_P - count_P * mean_P**2, 0) / (count_P - 1))
        quantile_P = stats.t.isf(_LEVEL / max(len(key_P), 1), count_P - 1)
        low_P = mean_P - quantile_P * spread_P / np.sqrt(count_P)
        query_P, token_P = np.divmod(key_P, self.vocabulary)
        columns: list[Any] = [query_P, token_P, weight_P / count_P, chance_P / count_P, low_P, count_P.astype(int)]
        order = np.argsort(-columns[2])
        return list(zip(*(column[order].tolist() for column in columns), strict=True))
