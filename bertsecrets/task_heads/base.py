"""What a kind of task head is: what a model's head predicts of a text or at places in it, and how it is scored."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from bertsecrets.task_heads.labels import IGNORED
from bertsecrets.task_heads.metric import Metric

FINGERPRINTS = 16_777_213
"""The largest prime below 2**24."""


class TaskHead(ABC):
    """What the head of a model predicts about an example, and how that is scored.

    A model's *output* is what its head gives for a batch. An example's *answer* is a row of numbers made of output and
    label that is all its scores need: logits of classes, or statistics that are added up over examples, such as the
    numbers of entities found, predicted and annotated.

    Args:
        labels: Names of the classes; empty if there are none.
    """

    kind: ClassVar[str]
    """Its name as ``task.kind``."""

    auto: ClassVar[str]
    """The class of the library that loads a model with this head; empty if there is none."""

    noun: ClassVar[str] = "classifier"
    """What a model with such a head is called."""

    pipeline: ClassVar[str] = "text-classification"
    """The hub's name of its task."""

    metrics: ClassVar[Mapping[str, Metric]]
    """The metrics by which effects can be judged."""

    statistics: ClassVar[tuple[str, ...]] = ()
    """Names of the statistics of an answer, ``loss`` first; empty where an answer is logits or a number."""

    label_type: ClassVar[torch.dtype] = torch.int64

    classifies: ClassVar[bool] = False
    """Whether an answer is the logits of an example's class."""

    per_word: ClassVar[bool] = False
    """Whether an example's label has a class for each of its words."""

    has_classes: ClassVar[bool] = True
    """Whether a task of this kind names classes, or has a range of scores; else its examples are labelled anyway."""

    reads_windows: ClassVar[bool] = False
    """Whether the second text of a pair is read in overlapping windows where it is longer than the model."""

    in_parts: ClassVar[bool] = False
    """Whether the model reads an example in several rows, such as one for each choice."""

    makes_labels: ClassVar[bool] = False
    """Whether labels are made of the texts, by :meth:`prepared`, so that any text has them; others are not read."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self.labels = tuple(labels)

    @property
    def num_outputs(self) -> int:
        """Width of the head."""
        return len(self.labels) or 1

    @property
    def width(self) -> int:
        """Length of an answer."""
        return len(self.statistics) or self.num_outputs

    def parts(self, example: Any) -> Sequence[Any]:
        """The rows in which the model reads an example, as examples with the same label and index."""
        return (example,)

    def prepared(
        self, examples: Sequence[Any], rows: Sequence[Any], tokenizer: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Examples and their tokens as the model is asked about them.

        Args:
            examples: The examples.
            rows: Their tokens (:class:`~bertsecrets.data.tokenization.Tokens`).
            tokenizer: Their tokenizer.
        """
        return examples, rows

    def label_tensor(self, labels: Sequence[Any], words: Sequence[Sequence[int]], length: int) -> Tensor:
        """The labels of a batch.

        Args:
            labels: Those of its examples.
            words: The number of the word of each token of each example, -1 for special tokens.
            length: Tokens of the padded batch.
        """
        return torch.tensor(labels, dtype=self.label_type)

    def of_batch(self, examples: Sequence[Any], rows: Sequence[Any], length: int) -> tuple["TaskHead", Tensor | None]:
        """The head for a batch, with what its answers need of the texts, and the labels; None if one has none.

        Args:
            examples: The examples, with their labels.
            rows: Their tokens (:class:`~bertsecrets.data.tokenization.Tokens`).
            length: Tokens of the padded batch.
        """
        labels = [example.label for example in examples if example.label is not None]
        if len(labels) < len(examples):
            return self, None
        return self, self.label_tensor(labels, [row.words for row in rows], length)

    def select(self, output: Tensor, label_B: Any) -> Tensor:
        """What of a model's output the labels ask about."""
        return output

    def output(self, model: PreTrainedModel, inputs: Mapping[str, Any], label_B: Any) -> Tensor:
        """What a whole pass gives, as far as the labels ask about it.

        Args:
            model: The model.
            inputs: Its keyword arguments.
            label_B: The labels, with an entry for each example; of some heads one for each token, or several numbers.
        """
        return self.select(output_of(model, inputs), label_B)

    def finish(self, encoder: Any, hidden_BSD: Tensor, real_BS: Tensor, label_B: Any) -> Tensor:
        """The same from the output of the last layer: by the model's own code, around an encoder that gives it.

        Args:
            encoder: The :class:`~bertsecrets.models.encoder.Encoder`, of a family with an adapter.
            hidden_BSD: Output of the last layer, at the tokens of :meth:`reads`.
            real_BS: Which of them are real, bool.
            label_B: The labels.
        """
        last_BSD = encoder.family.last_hidden(encoder.base, hidden_BSD)
        with giving(encoder.base, last_BSD):
            return self.output(encoder.model, {"inputs_embeds": last_BSD, "attention_mask": real_BS}, label_B)

    def reads(self, encoder: Any, real_BS: Tensor, label_B: Any) -> Tensor | None:
        """Places ``[B, W]`` of the only tokens that the head reads, so that the last layer computes no others; None for
        all tokens.

        Args:
            encoder: The :class:`~bertsecrets.models.encoder.Encoder`.
            real_BS: Which tokens are real, bool.
            label_B: The labels.
        """
        return None

    @abstractmethod
    def answers(self, output: Tensor, label_B: Any) -> Tensor:
        """The answers ``[B, F]``.

        Args:
            output: Of :meth:`output` or :meth:`finish`.
            label_B: The labels.
        """

    def together(self, output_RXF: Tensor) -> Tensor:
        """Combine the rows of each example into one output, ``[B, ..., F]``, for heads that read an example in parts.

        The rows hold the first part of every example, then the second part of every example, and so on. For such heads
        answers equal outputs.
        """
        return output_RXF

    def outcome_labels(self, label_B: Tensor) -> Tensor:
        """The labels ``[B]`` that answers are judged by; where answers already count what is right, fingerprints that
        differ if the labels do.
        """
        return fingerprints(label_B) if self.statistics else label_B

    def merged(self, label_N: Tensor, answer_NXF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One answer for each example whose parts, such as windows of a long text, are several rows.

        Args:
            label_N: Of :meth:`outcome_labels`, for all rows.
            answer_NXF: Their answers, of any number of variants.

        Returns:
            The first row of each example ``[M]``, labels ``[M]`` and answers ``[M, X, F]``.
        """
        return torch.arange(len(label_N)), label_N, answer_NXF

    def predictions(self, answer_NF: Tensor) -> Tensor:
        """What is judged of answers: classes or numbers ``[N]``, or the statistics."""
        return answer_NF

    @abstractmethod
    def losses(self, output: Tensor, label_B: Any) -> Tensor:
        """The loss of each example, ``[B]``, float32 or wider; arguments as for :meth:`answers`."""

    def loss(self, output: Tensor, label_B: Any) -> Tensor:
        """The training loss of a batch, float32."""
        return self.losses(output.float(), label_B).mean()

    def merit(self, answer_NF: Tensor, metric: str) -> Tensor:
        """How good each answer is by a metric, ``[N]``, to compare it with the majority baseline's on the same
        example.
        """
        raise NotImplementedError(f"{type(self).__name__} counts statistics without saying which answer is better.")

    def baseline(self, labels: Sequence[Any]) -> tuple[str, Tensor]:
        """The majority baseline's answer to every question, as text, and its answers ``[N, F]``.

        Args:
            labels: Those of the examples.
        """
        raise NotImplementedError(f"{type(self).__name__} counts statistics without saying what a baseline answers.")

    def rows(self, output: Tensor, label_B: Any) -> Tensor:
        """The predictions in an output, one a row, ``[N, C]``: logits of classes, or numbers.

        Args:
            output: Of :meth:`output`, or what :meth:`select` gives.
            label_B: The labels, which may tell where predictions are scored.
        """
        return output

    def changes(self, clean_NF: Tensor, answer_NVF: Tensor) -> Tensor:
        """The change of each answer, signed, ``[N, V]``: of its loss, unless a kind has a better number.

        Args:
            clean_NF: Answers of the unedited model.
            answer_NVF: Answers of each variant.
        """
        return answer_NVF[..., 0] - clean_NF[:, None, 0]

    def numbers(self, answer_F: Tensor) -> dict[str, float]:
        """The numbers of an answer to show a reader, by name."""
        return dict(zip(self.statistics, answer_F.tolist(), strict=True))

    def described(self, answer_F: Tensor) -> str:
        """An answer, or the sum of several where they are statistics, in a few words."""
        return ", ".join(f"{name} {value:.4g}" for name, value in self.numbers(answer_F).items())

    def has_losses(self, answer_NF: Tensor) -> bool:
        """Whether an answer says more than what is predicted."""
        return True

    def answer_losses(self, answer_NF: Tensor, label_N: Tensor) -> Tensor:
        """The loss of each example ``[N]``, from its answer."""
        # A copy: files hold no tensors that share memory.
        return answer_NF[:, 0].clone() if self.statistics else self.losses(answer_NF, label_N)


def fingerprints(label_B: Tensor) -> Tensor:
    """A number for the labels of each example, ``[B]``, below 2**24: float32 holds it exactly.

    Equal for equal labels, whatever the length of their batch.
    """
    if label_B.is_floating_point():
        return label_B.new_zeros(len(label_B))
    label_BX = label_B.reshape(len(label_B), -1)
    place_X = torch.arange(label_BX.shape[1], device=label_B.device)
    # Squares modulo a prime: 64 bits suffice, and no sum of labels hides that two of them changed places.
    mixed_BX = ((label_BX + 2) * 1_000_003 + place_X * 7_919) % FINGERPRINTS
    scored_BX = label_BX != IGNORED
    numbers_B: Tensor = (mixed_BX * mixed_BX % FINGERPRINTS * scored_BX).sum(-1) % FINGERPRINTS
    return numbers_B


def output_of(model: Callable[..., Any], inputs: Mapping[str, Any]) -> Tensor:
    """The output of a model's head: its logits; of a model that finds answers those of their ends, ``[B, S, 2]``."""
    output = model(**inputs)
    if getattr(output, "start_logits", None) is not None:
        return torch.stack([output.start_logits, output.end_logits], -1)
    logits: Tensor = output.logits
    return logits


def wide(output: Tensor) -> Tensor:
    """An output in float32 or wider."""
    return output.to(torch.promote_types(output.dtype, torch.float32))


@contextmanager
def giving(base: nn.Module, hidden_BSD: Tensor) -> Iterator[None]:
    """Let an encoder return these last hidden states whatever it is called with."""
    own = base.__dict__.get("forward")
    base.forward = lambda *args, **kwargs: BaseModelOutput(last_hidden_state=hidden_BSD)
    try:
        yield
    finally:
        del base.forward
        if own is not None:
            base.forward = own


def labelled_places(label_BS: Tensor) -> tuple[Tensor, Tensor]:
    """The places of the scored tokens, in order, and their labels, ``[B, W]`` each; filled up with unscored ones."""
    scored_BS = label_BS != IGNORED
    width = max(1, int(scored_BS.sum(-1).max()))
    place_BW = (~scored_BS).to(torch.int8).argsort(dim=-1, stable=True)[:, :width]
    return place_BW, label_BS.gather(1, place_BW)


def first_places(rows: int, device: torch.device) -> Tensor:
    """The place of the first token in each of so many rows, ``[B, 1]``."""
    return torch.zeros(rows, 1, dtype=torch.int64, device=device)


def taken(value_BSC: Tensor, place_BW: Tensor) -> Tensor:
    """The vectors at some places of each example, ``[B, W, C]``."""
    return value_BSC.gather(1, place_BW[..., None].expand(-1, -1, value_BSC.shape[-1]))


class PlaceHead(TaskHead):
    """A class at each labelled token; labels are ``[B, S]``, -100 at other tokens."""

    def select(self, output: Tensor, label_B: Any) -> Tensor:
        place_BW, _ = labelled_places(label_B)
        return taken(output, place_BW)

    def output(self, model: PreTrainedModel, inputs: Mapping[str, Any], label_B: Any) -> Tensor:
        # A compiled model would be compiled again with each hook.
        if getattr(model, "_compiled_call_impl", None) is not None:
            return super().output(model, inputs, label_B)
        # As below: a vocabulary of logits at every token would not fit into memory.
        place_BW, _ = labelled_places(label_B)
        hook = model.base_model.register_forward_hook(
            lambda module, args, output: BaseModelOutput(last_hidden_state=taken(output[0], place_BW))
        )
        try:
            return output_of(model, inputs)
        finally:
            hook.remove()

    def reads(self, encoder: Any, real_BS: Tensor, label_B: Any) -> Tensor | None:
        # Such a head treats each token alone: only those that are scored.
        return labelled_places(label_B)[0]

    def finish(self, encoder: Any, hidden_BSD: Tensor, real_BS: Tensor, label_B: Any) -> Tensor:
        _, label_BW = labelled_places(label_B)
        last_BWD = encoder.family.last_hidden(encoder.base, hidden_BSD)
        with giving(encoder.base, last_BWD):
            return output_of(encoder.model, {"inputs_embeds": last_BWD, "attention_mask": label_BW != IGNORED})

    def losses(self, output: Tensor, label_B: Any) -> Tensor:
        _, label_BW = labelled_places(label_B)
        loss_BW = functional.cross_entropy(
            wide(output).transpose(1, 2), label_BW, reduction="none", ignore_index=IGNORED
        )
        return loss_BW.sum(-1) / (label_BW != IGNORED).sum(-1).clamp(min=1)

    def loss(self, output: Tensor, label_B: Any) -> Tensor:
        # A mean over places, as in the library, not over examples.
        _, label_BW = labelled_places(label_B)
        total = functional.cross_entropy(
            output.float().flatten(0, 1), label_BW.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total / (label_BW != IGNORED).sum().clamp(min=1)

    def rows(self, output: Tensor, label_B: Any) -> Tensor:
        _, label_BW = labelled_places(label_B)
        return output[label_BW != IGNORED]
