"""A batch of examples as tensors."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bertsecrets.data.example import Annotation

# A measure's module loads no task heads.
if TYPE_CHECKING:
    from bertsecrets.task_heads.base import TaskHead

_OF_EXAMPLES = ("index_B", "label_B", "group_B")
"""Tensors with an entry for each example; the others have one for each row."""


class Batch:
    """Padded token sequences with their labels, words and annotations.

    Not a dataclass: Lightning would search one, including its annotations, for numbers to convert.

    Args:
        input_ids_BS: Token ids, int64.
        attention_mask_BS: 1 for real tokens, 0 for padding, int64.
        token_type_ids_BS: Segment ids, int64; None for models without segments.
        special_BS: Whether the tokenizer added the token ([CLS], [SEP]), bool.
        word_BS: Word number, int64: of the annotation's words if the example has one, else of the tokenizer's. Numbers
            of the second sentence continue those of the first. -1 for special tokens, padding and text outside words.
        index_B: Index of each example in its split, int64. Where examples have several rows
            (:attr:`~bertsecrets.task_heads.base.TaskHead.in_parts`), other tensors have all first rows, then all second
            ones, and so on.
        label_B: Class indices (int64) or scores (float32), or what else the task head predicts, with an entry for each
            example; None in a split without labels.
        weight: Weight of this process's mean loss (see ``BucketedTrainSampler``).
        annotations: For each example its sentences' annotations, or an empty tuple.
        group_B: Group of each example, int64; None if all examples are independent.
        position_ids_BS: Positions, int64; None if the model counts them itself.
        head: What the model's head predicts about the examples; None for one class per text.
    """

    def __init__(
        self,
        input_ids_BS: Tensor,
        attention_mask_BS: Tensor,
        token_type_ids_BS: Tensor | None,
        special_BS: Tensor,
        word_BS: Tensor,
        index_B: Tensor,
        label_B: Tensor | None,
        weight: float = 1.0,
        annotations: tuple[tuple[Annotation, ...], ...] = (),
        group_B: Tensor | None = None,
        position_ids_BS: Tensor | None = None,
        head: "TaskHead | None" = None,
    ) -> None:
        self.input_ids_BS = input_ids_BS
        self.attention_mask_BS = attention_mask_BS
        self.token_type_ids_BS = token_type_ids_BS
        self.special_BS = special_BS
        self.word_BS = word_BS
        self.index_B = index_B
        self.label_B = label_B
        self.weight = weight
        self.annotations = annotations
        self.group_B = group_B
        self.position_ids_BS = position_ids_BS
        if head is None:
            from bertsecrets.task_heads.sequence import SEQUENCE

            head = SEQUENCE
        self.head: TaskHead = head

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.index_B)

    @property
    def parts(self) -> int:
        """Rows of each example."""
        return len(self.input_ids_BS) // max(1, self.size)

    @property
    def lengths_B(self) -> Tensor:
        """Real tokens of each example, special tokens included."""
        return self.attention_mask_BS.sum(-1)

    @property
    def separators_BS(self) -> Tensor:
        """Which tokens are special tokens after the first, such as [SEP], bool."""
        special_BS = self.special_BS & self.attention_mask_BS.bool()
        return special_BS & (special_BS.cumsum(-1) > 1)

    def answers(self, output: Tensor) -> Tensor:
        """The answers ``[B, F]`` in a model's output (see :class:`~bertsecrets.task_heads.base.TaskHead`)."""
        return self.head.answers(self._of_examples(output), self.label_B)

    def predictions(self, output: Tensor) -> Tensor:
        """The predictions in a model's output, one a row, ``[N, C]``."""
        return self.head.rows(self._of_examples(output), self.label_B)

    def loss(self, output: Tensor) -> Tensor:
        """The training loss of a model's output."""
        return self.head.loss(self._of_examples(output), self.label_B)

    def losses(self, output: Tensor) -> Tensor:
        """The loss of each example, ``[B]``, from a model's output."""
        return self.head.losses(self._of_examples(output), self.label_B)

    def _of_examples(self, output: Tensor) -> Tensor:
        return self.head.together(self.head.select(output, self.label_B))

    def summed(self, value_RX: Tensor) -> Tensor:
        """The sums ``[B, ...]`` over the rows of each example."""
        value_BX: Tensor = value_RX.unflatten(0, (self.parts, self.size)).sum(0)
        return value_BX

    def inputs(self) -> dict[str, Tensor]:
        """The keyword arguments of a transformers model."""
        inputs = {"input_ids": self.input_ids_BS, "attention_mask": self.attention_mask_BS}
        if self.token_type_ids_BS is not None:
            inputs["token_type_ids"] = self.token_type_ids_BS
        if self.position_ids_BS is not None:
            inputs["position_ids"] = self.position_ids_BS
        return inputs

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def rows(self, place_B: Tensor) -> "Batch":
        """Some examples of the batch, padded as they are; their places in it, int64."""
        row_R = torch.cat([place_B + part * self.size for part in range(self.parts)])
        fields: dict[str, Any] = {
            name: value[(place_B if name in _OF_EXAMPLES else row_R).to(value.device)]
            if isinstance(value, Tensor)
            else value
            for name, value in vars(self).items()
        }
        if self.annotations:
            fields["annotations"] = tuple(self.annotations[row] for row in row_R.tolist())
        return Batch(**fields)

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        fields: dict[str, Any] = {
            name: function(value) if isinstance(value, Tensor) else value for name, value in vars(self).items()
        }
        return Batch(**fields)
