"""One class for a text, or for a pair: the head of a sequence classifier."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.task_heads.base import TaskHead, first_places, wide
from bertsecrets.task_heads.metric import Array, Metric, f1, mean_of_first

_NO_SPREAD = 1e-15
"""Largest product of the spreads of labels and predictions, up to rounding, if one of them is constant."""


def _correct(label_N: Array, prediction_VN: Array) -> Array:
    return np.asarray(prediction_VN == label_N, dtype=np.float64)[..., None]


def _positives(label_N: Array, prediction_VN: Array) -> Array:
    positive_VN, gold_VN = prediction_VN == 1, np.broadcast_to(label_N == 1, prediction_VN.shape)
    return np.stack([positive_VN & gold_VN, positive_VN, gold_VN], -1).astype(np.float64)


def _confusion(label_N: Array, prediction_VN: Array) -> Array:
    # Those that occur: a class of neither labels nor predictions has no F1.
    classes = np.unique(np.concatenate([label_N, prediction_VN.ravel()]))
    gold_NC = label_N[:, None] == classes
    predicted_VNC = prediction_VN[..., None] == classes
    both_VNCC = predicted_VNC[..., :, None] & gold_NC[:, None, :]
    return np.asarray(both_VNCC.reshape(*prediction_VN.shape, -1), dtype=np.float64)


def _macro_f1(mean_F: Array) -> Array:
    size = int(np.sqrt(mean_F.shape[-1]) + 0.5)
    share_PG = mean_F.reshape(*mean_F.shape[:-1], size, size)
    whole_C = share_PG.sum(-1) + share_PG.sum(-2)
    true_C = np.diagonal(share_PG, axis1=-2, axis2=-1)
    occurs_C = whole_C > 0
    f1_C = np.divide(2 * true_C, whole_C, out=np.zeros_like(whole_C), where=occurs_C)
    # Over the classes that are labels or predictions, as in scikit-learn.
    return np.asarray(f1_C.sum(-1) / occurs_C.sum(-1))


def _matthews(mean_F: Array) -> Array:
    predicted_C, gold_C, right = _class_shares(mean_F)
    covariance = right - (predicted_C * gold_C).sum(-1)
    spread = _spread(predicted_C, gold_C)
    # 0 if either is constant, as in scikit-learn and GLUE; shares of one class sum to 1 up to rounding.
    root = np.sqrt(np.maximum(spread, 0))
    return np.asarray(np.divide(covariance, root, out=np.zeros_like(right), where=spread > _NO_SPREAD))


def _class_shares(mean_F: Array) -> tuple[Array, Array, Array]:
    """Shares of the predicted classes, of the gold classes, and of right predictions."""
    size = int(np.sqrt(mean_F.shape[-1]) + 0.5)
    share_PG = mean_F.reshape(*mean_F.shape[:-1], size, size)
    return share_PG.sum(-1), share_PG.sum(-2), np.trace(share_PG, axis1=-2, axis2=-1)


def _spread(predicted_C: Array, gold_C: Array) -> Array:
    return np.asarray((1 - (predicted_C**2).sum(-1)) * (1 - (gold_C**2).sum(-1)))


def _is_flat(mean_F: Array) -> Any:
    """Where predictions or labels are constant: what one prediction changes there is no derivative."""
    return _spread(*_class_shares(mean_F)[:2]) <= _NO_SPREAD


def find_logits(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor | None:
    """A model's logits ``[B, C]``; None if it does not have one row per text, such as a token classifier."""
    logits = getattr(model(**inputs), "logits", None)
    rows = len(inputs["attention_mask"])
    return logits if isinstance(logits, Tensor) and logits.dim() == 2 and len(logits) == rows else None


def logits_of(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """The logits ``[B, C]`` of a model that has one row per text.

    Raises:
        UserError: If it has none.
    """
    logits_BC = find_logits(model, inputs)
    if logits_BC is None:
        raise UserError(
            f"{type(model).__name__} has no prediction per text (one row of logits each), so disabling its heads "
            "yields no verdicts; watch and measure them (bs.watch, bs.measure, bs.head_view), or give a model from "
            "AutoModelForSequenceClassification."
        )
    return logits_BC


ACCURACY = Metric("accuracy", _correct, mean_of_first, events=True)


class SequenceHead(TaskHead):
    """Logits of a class for each text; a single column holds numbers of classes or scores as they are."""

    kind = "sequence"
    auto = "AutoModelForSequenceClassification"
    classifies = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        metric.name: metric
        for metric in (
            ACCURACY,
            Metric("f1", _positives, f1, classes=(0.0, 1.0), defined=lambda label_N: bool((label_N == 1).any())),
            Metric("macro_f1", _confusion, _macro_f1),
            Metric(
                "matthews",
                _confusion,
                _matthews,
                reach=2.0,
                defined=lambda label_N: len(np.unique(label_N)) > 1,
                no_derivative=_is_flat,
            ),
        )
    }

    def output(self, model: PreTrainedModel, inputs: Mapping[str, Any], label_B: Tensor) -> Tensor:
        return logits_of(model, inputs)

    def finish(self, encoder: Any, hidden_BSD: Tensor, real_BS: Tensor, label_B: Tensor) -> Tensor:
        # The family's own head: it may read the first token alone, of which alone the last layer is then computed.
        logits_BC: Tensor = encoder.head(hidden_BSD, real_BS)
        return logits_BC

    def reads(self, encoder: Any, real_BS: Tensor, label_B: Any) -> Tensor | None:
        return first_places(len(real_BS), real_BS.device) if encoder.first_token_decides else None

    def answers(self, output: Tensor, label_B: Tensor) -> Tensor:
        return output

    def predictions(self, answer_NC: Tensor) -> Tensor:
        return answer_NC[:, 0] if answer_NC.shape[-1] == 1 else answer_NC.argmax(-1)

    def changes(self, clean_NF: Tensor, answer_NVF: Tensor) -> Tensor:
        # Of the probability of the class that the unedited model predicts.
        class_N11 = clean_NF.argmax(-1)[:, None, None]
        before_N1 = clean_NF.softmax(-1).gather(1, class_N11[:, 0])
        after_NV1 = answer_NVF.softmax(-1).gather(2, class_N11.expand(-1, answer_NVF.shape[1], 1))
        return after_NV1[..., 0] - before_N1

    def numbers(self, answer_F: Tensor) -> dict[str, float]:
        return dict(zip(self.labels, functional.softmax(answer_F, -1).tolist(), strict=True))

    def described(self, answer_F: Tensor) -> str:
        probabilities = self.numbers(answer_F)
        label = max(probabilities, key=lambda name: probabilities[name])
        return f"{label} ({probabilities[label]:.2f})"

    def has_losses(self, answer_NF: Tensor) -> bool:
        return answer_NF.shape[-1] > 1

    def losses(self, output: Tensor, label_B: Tensor) -> Tensor:
        output = wide(output)
        if output.shape[-1] == 1:
            return functional.mse_loss(output[:, 0], label_B.to(output.dtype), reduction="none")
        return functional.cross_entropy(output, label_B, reduction="none")

    def loss(self, output: Tensor, label_B: Tensor) -> Tensor:
        # Not the mean of the losses above, whose last digits differ.
        return functional.cross_entropy(output.float(), label_B)


SEQUENCE = SequenceHead()
"""A head of sequences whose classes have no names."""
