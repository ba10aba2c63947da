"""How alike two sentences are that a model embeds apart: the cosine of their embeddings."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional

from bertsecrets.errors import UserError
from bertsecrets.task_heads.regression import RegressionHead


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
