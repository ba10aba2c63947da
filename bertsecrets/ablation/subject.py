"""What a sweep is about: a model, and the labelled examples that it is judged on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import nn

from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData, sample_positions
from bertsecrets.data.sampler import BatchSpec, BucketedEvalSampler
from bertsecrets.data.sentence_pairs import SentencePairs
from bertsecrets.data.sources import TRAIN
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.models.encoder import Encoder, describe


class Batches(Protocol):
    """Batches that can be iterated any number of times, and which examples are in each."""

    @property
    def sampler(self) -> Iterable[BatchSpec]: ...

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int: ...


class SplitBatches:
    """Batches of similar length of some examples of a tokenised split, in this process.

    Args:
        split: The split.
        batch_size: Examples of a batch.
        positions: The examples; None for all.
    """

    def __init__(
        self, split: EncodedSplit | SentencePairs, batch_size: int, positions: Sequence[int] | None = None
    ) -> None:
        self.split = split
        self.sampler = BucketedEvalSampler(split.lengths, batch_size, positions=positions)

    def __iter__(self) -> Iterator[Batch]:
        for spec in self.sampler:
            yield self.split[spec]

    def __len__(self) -> int:
        return len(self.sampler)


@dataclass(frozen=True)
class Reference:
    """The examples that replacements are computed from.

    Args:
        split: A tokenised split.
        positions: The examples of it that are used.
    """

    split: EncodedSplit
    positions: tuple[int, ...]

    @classmethod
    def sample(cls, split: EncodedSplit, max_examples: int) -> "Reference":
        """A random sample of a split, the same on every process."""
        return cls(split, tuple(sample_positions(len(split), max_examples, 0)))

    def batches(self, size: int) -> SplitBatches:
        """Batches of similar length."""
        return SplitBatches(self.split, size, self.positions)


@dataclass(frozen=True)
class Subject:
    """A model and the examples that its variants are judged on.

    Args:
        model: Any module that holds a transformers encoder with a sequence classification head, or a sentence-embedding
            model.
        task: The task of the examples, with its metrics.
        evaluation: Name of the evaluation set.
        split: The tokenised set.
        load: From positions in the set to this process's batches of them.
        reference: From a number to so many reference examples, of which some modes compute replacements; mode
            ``optimal`` needs labelled ones.
        batch_size: Examples in a forward pass of replacements.
        context: Entered around every pass, e.g. the trainer's autocast.
        progress: Whether to show progress bars.
    """

    model: nn.Module
    task: Task
    evaluation: str
    split: EncodedSplit | SentencePairs
    load: Callable[[Sequence[int]], Batches]
    reference: Callable[[int], Reference]
    batch_size: int = 32
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    progress: bool = True

    @classmethod
    def of_data(
        cls,
        model: nn.Module,
        data: TaskData,
        evaluation: str | None = None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        progress: bool = True,
    ) -> "Subject":
        """A model on an evaluation set of a task's data, with reference examples from the training split.

        Args:
            model, context, progress: See :class:`Subject`.
            data: The data.
            evaluation: Evaluation set; None for the task's first.

        Raises:
            UserError: If there is no such set.
        """
        name = data.check_evaluation(evaluation)
        dataset = data.evaluation_dataset(name)
        return cls(
            model,
            data.task,
            name,
            dataset,
            partial(data.loader_of, dataset),
            # Read only if a mode needs it: the training split may be large.
            lambda max_examples: Reference.sample(data.encoded(TRAIN), max_examples),
            data.config.eval_batch_size,
            context,
            progress,
        )

    @classmethod
    def of_split(
        cls,
        model: nn.Module,
        task: Task,
        split: EncodedSplit | SentencePairs,
        batch_size: int,
        evaluation: str = "val",
        progress: bool = True,
        reference: EncodedSplit | None = None,
    ) -> "Subject":
        """A model on a tokenised split, in one process.

        Args:
            model, task, split, batch_size, evaluation, progress: See :class:`Subject`.
            reference: The split of the reference examples; None for the judged ones.
        """

        def sample(max_examples: int) -> Reference:
            examples = split if reference is None else reference
            assert isinstance(examples, EncodedSplit)
            return Reference.sample(examples, max_examples)

        load = partial(SplitBatches, split, batch_size)
        return cls(model, task, evaluation, split, load, sample, batch_size, progress=progress)

    @property
    def encoder(self) -> Encoder:
        """The model's encoder."""
        return describe(self.model)

    def positions(self, max_examples: int | None = None) -> list[int]:
        """Positions of all examples, or of a random sample, over all processes."""
        return sample_positions(len(self.split), max_examples, 0)

    def batches(self, max_examples: int | None = None) -> Batches:
        """This process's batches of all examples, or of a random sample."""
        return self.load(self.positions(max_examples))
