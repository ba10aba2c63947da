"""A tag for each word: named entities, parts of speech."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from bertsecrets.task_heads.base import PlaceHead, labelled_places
from bertsecrets.task_heads.labels import IGNORED, PREFIXES, TOKENS, parts_of_tag
from bertsecrets.task_heads.metric import Metric, f1, ratio

_O, _B, _I, _E, _S = range(len(PREFIXES))


def _among(value_BW: Tensor, *numbers: int) -> Tensor:
    return torch.isin(value_BW, torch.tensor(numbers, device=value_BW.device))


class TokenHead(PlaceHead):
    """A tag for each word, read at its first piece.

    Entities are those of seqeval's default mode: a run of ``I-`` tags without a ``B-`` before it is an entity, and so
    are the ones of BIOES and BILOU. An answer has the example's mean loss per word, and the numbers of words that are
    tagged right, of words, and of entities found, predicted and annotated.

    Args:
        labels: The tags. Entities are those of tags such as ``B-PER``; other tags have none.
    """

    kind = TOKENS
    auto = "AutoModelForTokenClassification"
    noun = "tagger"
    pipeline = "token-classification"
    per_word = True
    statistics = ("loss", "right", "words", "found", "predicted", "annotated")
    metrics: ClassVar[Mapping[str, Metric]] = {
        metric.name: metric
        for metric in (
            Metric.of_columns("token_accuracy", (1, 2), ratio, steps=((-1, 0), (1, 0))),
            # An entity is lost or found, with or without another one in its place; or one is invented, or no more.
            Metric.of_columns(
                "entity_f1",
                (3, 4, 5),
                f1,
                steps=((-1, 0, 0), (-1, -1, 0), (0, -1, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)),
                defined=lambda feature_NF: bool(feature_NF[:, 2].any()),
            ),
        )
    }

    def __init__(self, labels: Sequence[str] = ()) -> None:
        super().__init__(labels)
        prefixes, kinds = zip(*(parts_of_tag(label) for label in labels), strict=True) if labels else ((), ())
        self.have_entities = any(prefix != "O" for prefix in prefixes)
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(("", *kinds)))}
        # Last: the tag outside of every entity, which padding has.
        self._prefix_T = torch.tensor([*(PREFIXES.index(prefix) for prefix in prefixes), 0])
        self._kind_T = torch.tensor([*(numbers[kind] for kind in kinds), 0])

    def label_tensor(self, labels: Sequence[Any], words: Sequence[Sequence[int]], length: int) -> Tensor:
        label_BS = torch.full((len(labels), length), IGNORED)
        for row, (tags, numbers) in enumerate(zip(labels, words, strict=True)):
            # Only the first piece of a word is scored.
            for word in {*numbers} - {-1}:
                label_BS[row, numbers.index(word)] = tags[word]
        return label_BS

    def answers(self, output: Tensor, label_B: Any) -> Tensor:
        _, label_BW = labelled_places(label_B)
        scored_BW = label_BW != IGNORED
        predicted_BW = output.argmax(-1)
        counts = [(scored_BW & (predicted_BW == label_BW)).sum(-1), scored_BW.sum(-1)]
        if self.have_entities:
            outside = len(self.labels)
            counts += self._entities(label_BW.where(scored_BW, outside), predicted_BW.where(scored_BW, outside))
        else:
            counts += [torch.zeros_like(counts[0])] * 3
        return torch.stack([self.losses(output, label_B), *(count.float() for count in counts)], -1).float()

    def numbers(self, answer_F: Tensor) -> dict[str, float]:
        loss, right, words, *entities = answer_F.tolist()
        named = zip(("entities found", "entities predicted", "entities annotated"), entities, strict=True)
        shares = {"share of words tagged right": right / max(words, 1), "loss": loss}
        return shares | (dict(named) if self.have_entities else {})

    def described(self, answer_F: Tensor) -> str:
        _, right, words, found, predicted, annotated = answer_F.tolist()
        text = f"{right:,.0f} of {words:,.0f} words right"
        if not self.have_entities:
            return text
        return f"{text}, {found:,.0f} of {annotated:,.0f} entities found, {predicted - found:,.0f} invented"

    def merit(self, answer_NF: Tensor, metric: str) -> Tensor:
        # Entities found less those invented.
        return 2 * answer_NF[:, 3] - answer_NF[:, 4] if metric == "entity_f1" else answer_NF[:, 1]

    def baseline(self, labels: Sequence[Any]) -> tuple[str, Tensor]:
        words = max(1, max(map(len, labels), default=1))
        label_NW = torch.tensor([[*tags, *[IGNORED] * (words - len(tags))] for tags in labels])
        most = int(torch.bincount(label_NW[label_NW != IGNORED], minlength=len(self.labels)).argmax())
        output_NWC = torch.zeros(*label_NW.shape, len(self.labels))
        output_NWC[..., most] = 1
        return self.labels[most], self.answers(self.select(output_NWC, label_NW), label_NW)

    def _entities(self, gold_BW: Tensor, predicted_BW: Tensor) -> list[Tensor]:
        """Numbers of entities found, predicted and annotated, of tags as numbers."""
        start_PBW, kind_PBW, end_PBW = zip(*(self._spans(tag_BW) for tag_BW in (gold_BW, predicted_BW)), strict=True)
        same_BW = (kind_PBW[0] == kind_PBW[1]) & (end_PBW[0] == end_PBW[1])
        return [
            (start_PBW[0] & start_PBW[1] & same_BW).sum(-1),
            start_PBW[1].sum(-1),
            start_PBW[0].sum(-1),
        ]

    def _spans(self, tag_BW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether an entity starts at each word, its kind, and the place of its last word."""
        prefix_BW, kind_BW = self._prefix_T.to(tag_BW.device)[tag_BW], self._kind_T.to(tag_BW.device)[tag_BW]
        outside_B1 = torch.zeros_like(tag_BW[:, :1])
        before_BW = torch.cat([outside_B1, prefix_BW[:, :-1]], 1)
        after_BW = torch.cat([prefix_BW[:, 1:], outside_B1], 1)
        other_before_BW = torch.cat([outside_B1, kind_BW[:, :-1]], 1) != kind_BW
        other_after_BW = torch.cat([kind_BW[:, 1:], outside_B1], 1) != kind_BW
        inside_BW = prefix_BW != _O
        start_BW = inside_BW & (
            _among(prefix_BW, _B, _S) | (_among(prefix_BW, _I, _E) & _among(before_BW, _E, _S, _O)) | other_before_BW
        )
        end_BW = inside_BW & (_among(prefix_BW, _E, _S) | _among(after_BW, _B, _S, _O) | other_after_BW)
        place_W = torch.arange(tag_BW.shape[1], device=tag_BW.device)
        ends_BW = torch.where(end_BW, place_W, tag_BW.shape[1])
        return start_BW, kind_BW, ends_BW.flip(-1).cummin(-1).values.flip(-1)
