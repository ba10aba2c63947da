"""Multiple choice: which of several texts, such as endings or answers, goes with a text."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from bertsecrets.errors import UserError
from bertsecrets.settings import shown
from bertsecrets.task_heads.labels import CHOICE
from bertsecrets.task_heads.metric import Metric
from bertsecrets.task_heads.sequence import ACCURACY, SequenceHead


def chooses(model: nn.Module) -> bool:
    """Whether a model is one of multiple choice."""
    return type(model).__name__.endswith(ChoiceHead.auto.removeprefix("AutoModel"))


def score_single_choices(model: nn.Module) -> RemovableHandle | None:
    """Let a model of multiple choice score rows of tokens too, each as that of a question with one choice; no other
    model is changed.
    """
    if not chooses(model):
        return None

    def as_single(
        model: nn.Module, args: tuple[Any, ...], arguments: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        ids, vectors = arguments.get("input_ids"), arguments.get("inputs_embeds")
        if (ids is None or ids.dim() != 2) and (vectors is None or vectors.dim() != 3):
            return args, arguments
        rows = {name: value.unsqueeze(1) if isinstance(value, Tensor) else value for name, value in arguments.items()}
        return args, rows

    return model.register_forward_pre_hook(as_single, with_kwargs=True)


class ChoiceHead(SequenceHead):
    """A score for each choice of an example: the model reads a pair of the text and a choice for each.

    The scores of an example are the logits of its classes, which are the places of the choices. The texts of an
    example are the text and its choices, as many as the task has labels.

    Args:
        labels: What the places are called, such as A, B, C and D.
    """

    kind = CHOICE
    auto = "AutoModelForMultipleChoice"
    in_parts = True
    metrics: ClassVar[Mapping[str, Metric]] = {ACCURACY.name: ACCURACY}

    def parts(self, example: Any) -> Sequence[Any]:
        text, *choices = example.texts
        of_text, of_choices = example.annotations[:1], example.annotations[1:]
        return [
            replace(example, texts=(text, choice), annotations=(*of_text, *of_choices[place : place + 1]))
            for place, choice in enumerate(choices)
        ]

    def prepared(
        self, examples: Sequence[Any], rows: Sequence[Any], tokenizer: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        for example in examples:
            _, *choices = example.texts
            if len(choices) != len(self.labels):
                raise UserError(
                    f"Row {example.index} has {len(choices)} choices, {shown(' / '.join(choices))}, but the task has "
                    f"{len(self.labels)} ({', '.join(self.labels)}); give every row as many."
                )
        return examples, rows

    def together(self, output_RXF: Tensor) -> Tensor:
        return torch.cat(output_RXF.chunk(len(self.labels)), -1)
