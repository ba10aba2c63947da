"""One score for a text, or for a pair: a regression model's, or the similarity of two embeddings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bertsecrets.errors import UserError
from bertsecrets.task_heads.metric import Array, Metric, moments
from bertsecrets.task_heads.sequence import SequenceHead


def _moments(label_N: Array, prediction_VN: Array) -> Array:
    # Centred before squaring: sums of squares of numbers far from zero lose precision.
    return moments(label_N - label_N.mean(), prediction_VN - prediction_VN.mean(-1, keepdims=True))


def _correlation(mean_F: Array) -> Array:
    total, x, y, xx, yy, xy = np.moveaxis(mean_F, -1, 0)
    x, y, xx, yy, xy = (feature / total for feature in (x, y, xx, yy, xy))
    # Relative to the squares: rounding leaves a constant with a spread slightly off 0.
    spread_x, spread_y = xx - x**2, yy - y**2
    defined = (spread_x > 1e-13 * np.maximum(xx, 1e-300)) & (spread_y > 1e-13 * np.maximum(yy, 1e-300))
    root = np.sqrt(np.where(defined, spread_x * spread_y, 1.0))
    return np.where(defined, (xy - x * y) / root, np.nan)


class RegressionHead(SequenceHead):
    """A score for each text."""

    kind = "regression"
    noun = "regression model"
    classifies = False
    label_type = torch.float32
    metrics: ClassVar[Mapping[str, Metric]] = {
        metric.name: metric
        for metric in (
            Metric("pearson", _moments, _correlation, reach=2.0, of_classes=False),
            Metric("spearman", _moments, _correlation, reach=2.0, of_classes=False, of_ranks=True),
        )
    }

    def predictions(self, answer_NC: Tensor) -> Tensor:
        return answer_NC[:, 0]

    def changes(self, clean_NF: Tensor, answer_NVF: Tensor) -> Tensor:
        return answer_NVF[..., 0] - clean_NF[:, None, 0]

    def numbers(self, answer_F: Tensor) -> dict[str, float]:
        return {"score": float(answer_F[0])}

    def described(self, answer_F: Tensor) -> str:
        return f"{float(answer_F[0]):.2f}"

    def has_losses(self, answer_NF: Tensor) -> bool:
        return True

    def loss(self, output: Tensor, label_B: Tensor) -> Tensor:
        return functional.mse_loss(output[:, 0].float(), label_B.float())


class SimilarityHead(RegressionHead):
    """The cosine of the embeddings of a pair, whose sentences are read apart.

    Chosen by the model, which embeds sentences, and not by the task, whose pairs other models read at once.
    """

    kind = "similarity"
    in_parts = True

    def parts(self, example: Any) -> Sequence[Any]:
        return [
            replace(example, texts=(text,), annotations=example.annotations[side : side + 1])
            for side, text in enumerate(example.texts)
        ]

    def prepared(
        self, examples: Sequence[Any], rows: Sequence[Any], tokenizer: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        for example in examples:
            if len(example.texts) != 2:
                raise UserError(
                    f"Example {example.index} has {len(example.texts)} text{'s' * (len(example.texts) != 1)}; a "
                    "sentence-embedding model is evaluated on pairs of sentences."
                )
            if not all(text.strip() for text in example.texts):
                raise UserError(f"Example {example.index} has an empty sentence; give two sentences with words.")
        return examples, rows

    def together(self, output_RXF: Tensor) -> Tensor:
        first_BXD, second_BXD = output_RXF.chunk(2)
        return functional.cosine_similarity(first_BXD, second_BXD, dim=-1).unsqueeze(-1)


SIMILARITY = SimilarityHead()
"""The head of pairs of sentences."""
