"""Masked words, which a model predicts from the others: the head that encoders are pre-trained with."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from bertsecrets.errors import UserError
from bertsecrets.task_heads.base import PlaceHead, labelled_places
from bertsecrets.task_heads.labels import IGNORED, MASKED
from bertsecrets.task_heads.metric import Metric, ratio

_SHARE = 0.15
_MASKED, _REPLACED = 0.8, 0.1
"""Shares of the chosen tokens that are masked and replaced by random ones; the others stay (Devlin et al. 2019)."""


class MaskedHead(PlaceHead):
    """The words behind 15 % of the tokens of each text, at least one, as in the pre-training of BERT.

    80 % of them are masked, 10 % are replaced by random tokens and 10 % stay. The choice depends on the example's
    index alone, so that every run and every process has the same one; special tokens are never chosen. An answer has
    the example's mean loss, the number of tokens that are predicted right, the number of those chosen, and the sum of
    their log-probabilities.
    """

    kind = MASKED
    auto = "AutoModelForMaskedLM"
    noun = "masked language model"
    pipeline = "fill-mask"
    has_classes = False
    makes_labels = True
    statistics = ("loss", "right", "masked", "log_likelihood")
    metrics: ClassVar[Mapping[str, Metric]] = {
        metric.name: metric
        for metric in (
            Metric.of_columns("masked_accuracy", (1, 2), ratio, steps=((-1, 0), (1, 0))),
            # In nats; no softmax in float32 gives a smaller number than e to the power of -1,000.
            Metric.of_columns("pseudo_log_likelihood", (3, 2), ratio, reach=1000.0, unit="hundredths of a nat"),
        )
    }

    def prepared(
        self, examples: Sequence[Any], rows: Sequence[Any], tokenizer: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        if tokenizer.mask_token_id is None:
            raise UserError(
                f"The tokenizer ({type(tokenizer).__name__}) has no mask token, so no word can be masked; give a model "
                "that was pre-trained on masked words."
            )
        special = set(tokenizer.all_special_ids)
        drawn = [number for number in range(len(tokenizer)) if number not in special]
        masked = [
            one
            for example, row in zip(examples, rows, strict=True)
            for one in self._masked(example, row, tokenizer.mask_token_id, drawn)
        ]
        return [example for example, _ in masked], [row for _, row in masked]

    def _masked(self, example: Any, row: Any, mask: int, drawn: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        """The example as the model reads it: with the label of each of its tokens, and masked tokens.

        Args:
            example: The example.
            row: Its tokens.
            mask: The mask token.
            drawn: The tokens that may replace another one.
        """
        generator = random.Random(f"masked {example.index}")
        words = [place for place, special in enumerate(row.special) if not special]
        chosen = sorted(generator.sample(words, max(1, round(_SHARE * len(words)))) if words else [])

        def read(place: int) -> int:
            chance = generator.random()
            if chance < _MASKED:
                return mask
            return generator.choice(drawn) if chance < _MASKED + _REPLACED else row.ids[place]

        yield hidden(example, row, chosen, read)

    def label_tensor(self, labels: Sequence[Any], words: Sequence[Sequence[int]], length: int) -> Tensor:
        return torch.tensor([[*label, *[IGNORED] * (length - len(label))] for label in labels])

    def answers(self, output: Tensor, label_B: Any) -> Tensor:
        _, label_BW = labelled_places(label_B)
        masked_B = (label_BW != IGNORED).sum(-1)
        right_B = (output.argmax(-1) == label_BW).sum(-1)
        loss_B = self.losses(output, label_B)
        return torch.stack([loss_B, right_B, masked_B, -loss_B * masked_B], -1).float()

    def numbers(self, answer_F: Tensor) -> dict[str, float]:
        loss, right, masked, log_likelihood = answer_F.tolist()
        count = max(masked, 1)
        return {"share of words predicted": right / count, "log-likelihood": log_likelihood / count, "loss": loss}

    def described(self, answer_F: Tensor) -> str:
        _, right, masked, log_likelihood = answer_F.tolist()
        return f"{right:,.0f} of {masked:,.0f} words predicted, log-likelihood {log_likelihood / max(masked, 1):.2f}"

    def merit(self, answer_NF: Tensor, metric: str) -> Tensor:
        return answer_NF[:, 1] if metric == "masked_accuracy" else -answer_NF[:, 0]

    def baseline(self, labels: Sequence[Any]) -> tuple[str, Tensor]:
        """The commonest of the chosen tokens, with the shares of all of them as probabilities."""
        chosen = [torch.tensor([token for token in label if token != IGNORED]) for label in labels]
        tokens, count = torch.cat(chosen).long().unique(return_counts=True)
        log_share = (count / count.sum()).log()
        rows = []
        for token_W in chosen:
            log_likelihood = log_share[torch.searchsorted(tokens, token_W.long())].sum()
            right = (token_W == tokens[count.argmax()]).sum() if len(tokens) else 0
            rows.append([-log_likelihood / max(len(token_W), 1), right, len(token_W), log_likelihood])
        return "the commonest word", torch.tensor(rows)


class EachWordHead(MaskedHead):
    """Each word of a text, masked with all its pieces while the others stay: a pass for every word.

    The passes of a text are resampled and tested together.
    """

    kind = "each_masked"

    def prepared(
        self, examples: Sequence[Any], rows: Sequence[Any], tokenizer: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        examples, rows = super().prepared(examples, rows, tokenizer)
        return [replace(example, index=index) for index, example in enumerate(examples)], rows

    def _masked(self, example: Any, row: Any, mask: int, drawn: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        of_text = replace(example, group=example.index if example.group is None else example.group)
        for word in sorted({*row.words} - {-1}):
            places = [place for place, number in enumerate(row.words) if number == word]
            yield hidden(of_text, row, places, lambda place: mask)


def hidden(example: Any, row: Any, places: Sequence[int], read: Callable[[int], int]) -> tuple[Any, Any]:
    """An example that is asked for its tokens at some places, and its tokens with what the model reads there."""
    ids, label = list(row.ids), [IGNORED] * len(row.ids)
    for place in places:
        label[place], ids[place] = row.ids[place], read(place)
    return replace(example, label=tuple(label)), replace(row, ids=tuple(ids))
