"""How alike two sentences are that a model embeds apart: the cosine of their embeddings."""

from torch import Tensor
from torch.nn import functional

from bertsecrets.task_heads.regression import RegressionHead


class SimilarityHead(RegressionHead):
    """The cosine of the embeddings of a pair, which a batch has in two rows: all first sentences, then all second ones.

    Chosen by the model, which embeds sentences, and not by the task, whose pairs other models read at once.
    """

    kind = "similarity"

    def together(self, answer_RXF: Tensor) -> Tensor:
        first_BXD, second_BXD = answer_RXF.chunk(2)
        return functional.cosine_similarity(first_BXD, second_BXD, dim=-1).unsqueeze(-1)


SIMILARITY = SimilarityHead()
"""The head of pairs of sentences."""
