"""What one head attends to: where it attends to other tokens of the text, and pairs of tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from scipy import stats
from torch import Tensor

from bertsecrets.analysis import Analysis, Context, Findings, SplitBatches
from bertsecrets.attention.watch import watch
from bertsecrets.data.tokenization import written
from bertsecrets.errors import UserError
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import MISSING
from bertsecrets.results.progress import progress_over

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
        sums: list[pd.DataFrame] = []
        cells: list[pd.DataFrame] = []
        waiting = 0

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
                    apart = ~np.eye(len(words), dtype=bool)
                    queries, keys = np.meshgrid(ids_S[words], ids_S[words], indexing="ij")
                    pairs = {"query": queries[apart], "key": keys[apart], "weight": weight_QK[apart]}
                    cells.append(pd.DataFrame({"example": index, **pairs, "chance": 1 / length}))
                    waiting += len(cells[-1])
                    if waiting > _PAIRS_AT_ONCE:
                        sums, cells, waiting = [_added(sums, cells)], [], 0
                advance()

        def name(token: int) -> str:
            return MISSING if token < 0 else written(tokenizer, [token])[0]

        attending = [
            Attending(index, share, name(query), name(key), weight)
            for index, (share, query, key, weight) in sorted(rows.items())
        ]
        yield Findings(self, rows=[*attending, *_tested(sums, cells, name)])


def _added(sums: Sequence[pd.DataFrame], cells: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Sums over examples for each pair of tokens, with further examples added."""
    by_example = pd.concat(cells).groupby(["example", "query", "key"], as_index=False)
    pairs = by_example.agg({"weight": "mean", "chance": "first"}).drop(columns="example")
    excess = pairs["weight"] - pairs["chance"]
    pairs = pairs.assign(examples=1, excess=excess, squares=excess**2)
    return pd.concat([*sums, pairs]).groupby(["query", "key"], as_index=False).sum()


def _tested(sums: Sequence[pd.DataFrame], cells: Sequence[pd.DataFrame], name: Callable[[int], str]) -> list[TokenPair]:
    """Each pair that is frequent enough, the largest mean weight first."""
    if not sums and not cells:
        return []
    pairs = _added(sums, cells) if cells else sums[0]
    pairs = pairs[pairs["examples"] >= FEWEST]
    count = pairs["examples"]
    mean = pairs["excess"] / count
    spread = np.sqrt((pairs["squares"] - count * mean**2).clip(lower=0) / (count - 1))
    quantile = stats.t.isf(_LEVEL / max(len(pairs), 1), count - 1)
    columns = {"low": mean - quantile * spread / np.sqrt(count), "weight": pairs["weight"] / count}
    pairs = pairs.assign(chance=pairs["chance"] / count, **columns).sort_values("weight", ascending=False)
    return [
        TokenPair(name(row.query), name(row.key), row.weight, row.chance, row.low, row.examples)
        for row in pairs.itertuples()
    ]
