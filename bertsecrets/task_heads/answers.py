"""Extractive question answering: the span of a text that answers a question, or none."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bertsecrets.task_heads.base import FINGERPRINTS, TaskHead, wide
from bertsecrets.task_heads.labels import ANSWERS, Answers, answer_f1, exact_match, normalised
from bertsecrets.task_heads.metric import Metric

LONGEST_ANSWER = 30
"""Tokens of the longest answer that is considered, as in the library's scripts."""

_NEVER = -1e6
"""Score of giving no answer where every question has one; finite, so that means over draws stay finite."""

# Columns of a label.
_START, _END, _FIRST, _LAST, _LENGTH, _PASSAGE, _QUESTION, _OPTIONAL, _NONE, _DIGEST = range(10)

_PER_QUESTION = 1 << 24

_LOSS, _EXACT, _F1, _SPAN, _NULL, _RIGHT_NULL = range(6)


@dataclass(frozen=True, slots=True)
class Passage:
    """The text of a window, from which answers are cut.

    Args:
        text: The whole text.
        spans: First and last character (exclusive) of each token, in the text it comes from.
        answers: The gold answers.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    answers: Answers

    def scores(self, first: int, last: int) -> tuple[float, float]:
        """Exact match and F1 of the answer from one token to another."""
        given, optional = self.text[self.spans[first][0] : self.spans[last][1]], self.answers.optional
        # In SQuAD 2.0 answers of articles and punctuation alone do not count.
        gold = [one for one in self.answers.texts if not optional or normalised(one)] or [""]
        return exact_match(given, gold), answer_f1(given, gold, optional)


class AnswerHead(TaskHead):
    """The span of a text that answers a question: its first and its last token.

    A text longer than the model is read in overlapping windows, each a row; :meth:`merged` makes one answer of the
    windows of a question: the span with the largest sum of its two logits. Where questions may have no answer, none is
    given if the smallest sum of the first token's logits over the windows is larger (the null score, threshold 0).

    An answer has the loss, exact match and F1 of the best span by the official SQuAD scripts, the score of the span,
    that of giving no answer, and whether that would be right. The loss of a question is the mean over its windows; a
    window without the answer is labelled with its first token.

    Args:
        labels: Not read; answers have no classes.
        passages: The texts of a batch.
    """

    kind = ANSWERS
    auto = "AutoModelForQuestionAnswering"
    noun = "question-answering model"
    pipeline = "question-answering"
    has_classes = False
    reads_windows = True
    statistics = ("loss", "exact", "f1", "span", "null", "no_answer")
    metrics: ClassVar[Mapping[str, Metric]] = {
        metric.name: metric
        for metric in (
            Metric.of_columns("exact_match", (_EXACT,), steps=((-1,), (1,)), events=True),
            # One answer changes from right to wrong, or to partly right.
            Metric.of_columns("answer_f1", (_F1,), steps=((-1,), (1,))),
        )
    }

    def __init__(self, labels: Sequence[str] = (), passages: Sequence[Passage] = ()) -> None:
        super().__init__()
        self.passages = tuple(passages)
        # Most variants give the same answers.
        self._scores: dict[tuple[int, int, int], tuple[float, float]] = {}

    @property
    def num_outputs(self) -> int:
        return 2

    def of_batch(self, examples: Sequence[Any], rows: Sequence[Any], length: int) -> tuple[TaskHead, Tensor | None]:
        passages, labels = [], []
        for place, (example, row) in enumerate(zip(examples, rows, strict=True)):
            answers: Answers | None = example.label
            if answers is None:
                return self, None
            inside = [token for token, sequence in enumerate(row.sequences) if sequence == 1]
            first, last = inside[0], inside[-1]
            start, end = _tokens_of(answers, row.spans, first, last)
            question = example.index if example.document is None else example.document
            # Finished sweeps are found again by the labels: all gold answers count.
            digest = hashlib.blake2b(repr((example.texts[1], answers)).encode(), digest_size=7).digest()
            flags = (int(answers.optional), int(answers.none), int.from_bytes(digest, "big"))
            labels.append((start, end, first, last, len(row.ids), place, question, *flags))
            passages.append(Passage(example.texts[1], row.spans, answers))
        return AnswerHead(passages=passages), torch.tensor(labels)

    def losses(self, output: Tensor, label_B: Any) -> Tensor:
        # Without padding, which would make a loss depend on the batch.
        padding_BS = torch.arange(output.shape[1], device=output.device) >= label_B[:, _LENGTH, None]
        logits_BS2 = wide(output).masked_fill(padding_BS[..., None], -torch.inf)
        ends = zip(logits_BS2.unbind(-1), label_B[:, (_START, _END)].unbind(-1), strict=True)
        of_start_B, of_end_B = (functional.cross_entropy(*end, reduction="none") for end in ends)
        return (of_start_B + of_end_B) / 2

    def answers(self, output: Tensor, label_B: Any) -> Tensor:
        logits_BS2 = wide(output)
        score_B, start_B, end_B = best_spans(logits_BS2, label_B[:, _FIRST], label_B[:, _LAST])
        chosen = torch.stack([label_B[:, _PASSAGE], start_B, end_B], -1).tolist()
        for passage, start, end in set(map(tuple, chosen)) - self._scores.keys():
            self._scores[passage, start, end] = self.passages[passage].scores(start, end)
        of_text_B2 = logits_BS2.new_tensor([self._scores[passage, start, end] for passage, start, end in chosen])
        null_B = logits_BS2[:, 0].sum(-1).where(label_B[:, _OPTIONAL] == 1, _NEVER)
        columns = (self.losses(output, label_B), *of_text_B2.unbind(-1), score_B, null_B, label_B[:, _NONE])
        return torch.stack([column.float() for column in columns], -1)

    def outcome_labels(self, label_B: Tensor) -> Tensor:
        """The numbers of the questions, by which :meth:`merged` knows the windows of each, and their fingerprints."""
        return label_B[:, _QUESTION] * _PER_QUESTION + label_B[:, _DIGEST] % FINGERPRINTS

    def merged(self, label_N: Tensor, answer_NXF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        question_N = label_N // _PER_QUESTION
        _, place_N = question_N.unique(return_inverse=True)
        questions = int(place_N.max()) + 1 if len(place_N) else 0
        rows_N = torch.arange(len(place_N))
        row_M = rows_N.new_full((questions,), len(place_N)).scatter_reduce(0, place_N, rows_N, "amin")
        place_NXF = place_N[:, None, None].expand_as(answer_NXF)
        merged_MXF = answer_NXF.new_zeros(questions, *answer_NXF.shape[1:])
        mean_MXF = merged_MXF.scatter_reduce(0, place_NXF, answer_NXF, "mean", include_self=False)
        largest_MXF, smallest_MXF = (
            merged_MXF.scatter_reduce(0, place_NXF, answer_NXF, how, include_self=False) for how in ("amax", "amin")
        )
        # The first window that has the best span.
        best_NX = answer_NXF[..., _SPAN] == largest_MXF[place_N, :, _SPAN]
        row_NX = rows_N[:, None].expand_as(best_NX).where(best_NX, len(place_N))
        row_MX = row_NX.new_full((questions, best_NX.shape[1]), len(place_N)).scatter_reduce(
            0, place_N[:, None].expand_as(best_NX), row_NX, "amin"
        )
        answer_MXF = answer_NXF.gather(0, row_MX[..., None].expand(-1, -1, answer_NXF.shape[-1])).clone()
        answer_MXF[..., _LOSS] = mean_MXF[..., _LOSS]
        answer_MXF[..., _NULL] = smallest_MXF[..., _NULL]
        none_MX = answer_MXF[..., _NULL] > answer_MXF[..., _SPAN]
        for column in (_EXACT, _F1):
            answer_MXF[..., column] = answer_MXF[..., _RIGHT_NULL].where(none_MX, answer_MXF[..., column])
        return row_M, label_N[row_M] % _PER_QUESTION, answer_MXF

    def numbers(self, answer_F: Tensor) -> dict[str, float]:
        named = dict(zip(self.statistics, answer_F.tolist(), strict=True))
        return {"exact match": named["exact"], "F1": named["f1"], "loss": named["loss"]}

    def described(self, answer_F: Tensor) -> str:
        exact, f1 = answer_F[_EXACT].item(), answer_F[_F1].item()
        return f"{exact:,.0f} right, F1 {f1:,.2f} in sum"

    def merit(self, answer_NF: Tensor, metric: str) -> Tensor:
        return answer_NF[:, _EXACT if metric == "exact_match" else _F1]

    def baseline(self, labels: Sequence[Any]) -> tuple[str, Tensor]:
        """No answer to every question."""
        answer_NF = torch.zeros(len(labels), self.width)
        right_N = torch.tensor([float(answers.optional and answers.none) for answers in labels])
        answer_NF[:, (_EXACT, _F1, _RIGHT_NULL)] = right_N[:, None].expand(-1, 3)
        return "no answer", answer_NF


def best_spans(logits_BS2: Tensor, first_B: Tensor, last_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest sum of a start and an end logit within the text and :data:`LONGEST_ANSWER`, and the two tokens.

    Args:
        logits_BS2: Logits of start and end.
        first_B, last_B: The first and the last token of the text.
    """
    place_S = torch.arange(logits_BS2.shape[1], device=logits_BS2.device)
    outside_BS = (place_S < first_B[:, None]) | (place_S > last_B[:, None])
    start_BS, end_BS = logits_BS2.masked_fill(outside_BS[..., None], -torch.inf).unbind(-1)
    ends_BSL = functional.pad(end_BS, (0, LONGEST_ANSWER - 1), value=-torch.inf).unfold(1, LONGEST_ANSWER, 1)
    end_BS, length_BS = ends_BSL.max(-1)
    score_B, start_B = (start_BS + end_BS).max(-1)
    return score_B, start_B, start_B + length_BS.gather(1, start_B[:, None])[:, 0]


def _tokens_of(answers: Answers, spans: Sequence[tuple[int, int]], first: int, last: int) -> tuple[int, int]:
    """The first and the last token of the first gold answer; (0, 0) where it is not wholly in the window."""
    if not answers.texts:
        return 0, 0
    begin, finish = answers.start, answers.start + len(answers.texts[0])
    inside = [token for token in range(first, last + 1) if spans[token][1] > begin and spans[token][0] < finish]
    if not inside or spans[first][0] > begin or spans[last][1] < finish:
        return 0, 0
    return inside[0], inside[-1]
