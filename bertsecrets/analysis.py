"""What an analysis is: it gets a :class:`Context`, a model with examples, and returns :class:`Findings`.

Three ways lead to a context; an analysis cannot tell them apart:

* :meth:`Context.of_data`: a model on an evaluation set of a task's data. The callback
  :class:`~bertsecrets.callbacks.run_analysis.RunAnalysis` makes one at each validation.
* :meth:`Context.of_split`: a model on a tokenised split, in one process, as in a notebook.
* The constructor, with a ``load`` of one's own: from positions in ``split`` to this process's batches of them.

:func:`find` runs an analysis, and :func:`record` writes what it found to a run's folder.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, distributed, nn

from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData, sample_positions, sample_rows
from bertsecrets.data.sampler import BatchSpec, BucketedEvalSampler
from bertsecrets.data.sentence_pairs import SentencePairs
from bertsecrets.data.sources import TRAIN
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.models.encoder import Autocast, Encoder, describe, evaluating
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.results.store import NOTHING_KEPT, Store


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
        rank, world_size: Number of this process, and of processes that share the batches.
    """

    def __init__(
        self,
        split: EncodedSplit | SentencePairs,
        batch_size: int,
        positions: Sequence[int] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.split = split
        self.sampler = BucketedEvalSampler(split.lengths, batch_size, rank, world_size, positions)

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
class Context:
    """A model, the examples that it is analysed on, and how to run it: all that an analysis sees.

    Args:
        model: Any module that holds a transformers encoder, or a sentence-embedding model. In :meth:`Analysis.run` it
            is in evaluation mode and without gradients.
        task: The task of the examples, with its metrics.
        evaluation: Name of the evaluation set.
        split: The tokenised set.
        load: From positions in the set to this process's batches of them.
        reference: From a number to so many reference examples, of which some modes compute replacements; mode
            ``optimal`` needs labelled ones.
        batch_size: Examples in a forward pass of replacements.
        autocast: Entered around every pass, e.g. the trainer's precision.
        progress: Whether to show progress bars.
        stage, step: What the numbers are of: ``training``, or ``checkpoint`` for a finished model, and the optimiser
            steps that it was trained for.
        validation, last: The number of the validation, from 1, and whether it is the last one.
        sample: Examples that are enough for a measure at this validation, a random sample; None for all.
        unchanged: Whether the weights are those of the last time that the analysis was run.
        output: The run that the findings are for; None to keep nothing.
        name: Name of the analysis in the run, and of the folder with its finished steps, ``unfinished-<name>``.
        key: What the numbers depend on beside the weights and the settings, such as the precision.
        references: Models to compare with, by stage: ``initial``, the model before fine-tuning.
        source: The task's data; None where the examples come from elsewhere.
        promised: Columns that the run will have when the analysis is run, as ``<measure>/<column>``.
        outcome: From what a batch's ``inputs()`` returns to answers: logits, or one number for each example. None for
            the logits of ``model``.
    """

    model: nn.Module
    task: Task
    evaluation: str
    split: EncodedSplit | SentencePairs
    load: Callable[[Sequence[int]], Batches]
    reference: Callable[[int], Reference]
    batch_size: int = 32
    autocast: Autocast = nullcontext
    progress: bool = True
    stage: str = CHECKPOINT
    step: int = 0
    validation: int = 1
    last: bool = True
    sample: int | None = None
    unchanged: bool = False
    output: Run | None = None
    name: str = "analysis"
    key: tuple[object, ...] = ()
    references: Mapping[str, nn.Module] = field(default_factory=dict)
    source: TaskData | None = None
    promised: tuple[str, ...] = ()
    outcome: Callable[[Mapping[str, Any]], Tensor] | None = None

    @classmethod
    def of_data(cls, model: nn.Module, data: TaskData, evaluation: str | None = None, **options: Any) -> "Context":
        """A model on an evaluation set of a task's data, with reference examples from the training split.

        Args:
            model: See :class:`Context`.
            data: The data.
            evaluation: Evaluation set; None for the task's first.
            options: Further fields of :class:`Context`.

        Raises:
            UserError: If there is no such set.
        """
        name = data.check_evaluation(evaluation)
        dataset = data.judged_dataset(name)
        return cls(
            model,
            data.task,
            name,
            dataset,
            partial(data.loader_of, dataset),
            # Read only if a mode needs it: the training split may be large.
            lambda max_examples: Reference.sample(data.encoded(TRAIN), max_examples),
            data.config.eval_batch_size,
            source=data,
            **options,
        )

    @classmethod
    def of_split(
        cls,
        model: nn.Module,
        task: Task,
        split: EncodedSplit | SentencePairs,
        batch_size: int,
        evaluation: str = "val",
        reference: EncodedSplit | None = None,
        **options: Any,
    ) -> "Context":
        """A model on a tokenised split, in one process.

        Args:
            model, task, split, batch_size, evaluation: See :class:`Context`.
            reference: The split of the reference examples; None for the judged ones.
            options: Further fields of :class:`Context`.
        """

        def sample(max_examples: int) -> Reference:
            examples = split if reference is None else reference
            assert isinstance(examples, EncodedSplit)
            return Reference.sample(examples, max_examples)

        load = partial(SplitBatches, split, batch_size)
        return cls(model, task, evaluation, split, load, sample, batch_size, **options)

    @property
    def encoder(self) -> Encoder:
        """The model's encoder."""
        return describe(self.model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.encoder.base.parameters()).device

    @property
    def data(self) -> TaskData:
        """The task's data, with its tokenizer and training split.

        Raises:
            UserError: If the examples come from elsewhere.
        """
        if self.source is None:
            raise UserError(
                "This analysis needs a task's tokenizer or training rows, and there are only batches; run it with "
                "train.py or analyze.py."
            )
        return self.source

    @property
    def run(self) -> Run:
        """The run that the findings are for.

        Raises:
            UserError: If they are for none.
        """
        if self.output is None:
            raise UserError("This analysis keeps files, and there is no run for them; run it with analyze.py.")
        return self.output

    @cached_property
    def store(self) -> Store:
        """Where finished steps are kept, to resume an interrupted analysis; without a run, nowhere.

        Its values depend on the task, the evaluation set and ``key``; an analysis adds the weights and its settings.
        The runner clears it once the findings are written.
        """
        if self.output is None:
            return NOTHING_KEPT
        folder = self.output.folder / f"unfinished-{self.name}"
        return Store(folder, self.task.name, self.evaluation, self.key, writes=self.is_first)

    @property
    def is_first(self) -> bool:
        """Whether this is the first of the processes, or the only one."""
        return not distributed.is_initialized() or distributed.get_rank() == 0

    @property
    def processes(self) -> int:
        """The number of processes."""
        return distributed.get_world_size() if distributed.is_initialized() else 1

    def wait(self) -> None:
        """Wait until all processes are here."""
        if distributed.is_initialized():
            distributed.barrier()

    def from_first(self, tensor: Tensor) -> Tensor:
        """The first process's tensor, on all processes."""
        if not distributed.is_initialized():
            return tensor
        shared = [tensor]
        distributed.broadcast_object_list(shared)
        return shared[0]

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if distributed.is_initialized():
            tensor = tensor.clone()
            distributed.all_reduce(tensor)
        return tensor

    def placed(self, module: nn.Module) -> nn.Module:
        """Another model, on the model's device and in its precision."""
        weight = next(self.encoder.base.parameters())
        return module.to(weight.device, weight.dtype)

    def positions(self, max_examples: int | None = None, seed: int = 0) -> list[int]:
        """Positions of all examples, or of a random sample, over all processes."""
        return sample_rows(self.split, max_examples, seed)

    def batches(
        self, max_examples: int | None = None, seed: int = 0, max_length: int | None = None, pad_to: int | None = None
    ) -> Batches:
        """This process's batches of the examples.

        Args:
            max_examples: A random sample of this many, drawn with ``seed``; None for all.
            max_length, pad_to: Truncate and pad to these lengths instead of the task's.
        """
        if max_length is None and pad_to is None:
            return self.load(self.positions(max_examples, seed))
        return self.data.evaluation_loader(self.evaluation, max_examples, max_length, pad_to, seed)


@dataclass(frozen=True)
class Findings:
    """What an analysis found.

    Args:
        experiment: What the numbers are called.
        grids: Numbers of each head and column, reduced over all processes; none if no number belongs to a head.
        rows: What fits no grid, as rows (:mod:`bertsecrets.results.rows`).
        equal: Fields of earlier rows of the same stage and step and their values, if only such rows are replaced.
        tracked: The grids that are logged to W&B; None for all.
        finish: Called last, with the run, the stage and the step: writes what is neither a grid nor rows, and removes
            what an interrupted analysis would have been resumed from.
        moment: The stage and the step that the numbers are of, if others than those of the analysed model.
        scalars: Further numbers to log, by name.
    """

    experiment: Experiment
    grids: Sequence[HeadGrid] = ()
    rows: Sequence[Any] = ()
    equal: Mapping[str, str] = field(default_factory=dict)
    tracked: Sequence[HeadGrid] | None = None
    finish: Callable[[Run, str, int], object] | None = None
    moment: tuple[str, int] | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)

    @property
    def logged(self) -> Sequence[HeadGrid]:
        """The grids to log."""
        return self.grids if self.tracked is None else self.tracked


class Analysis(ABC):
    """A question about the heads of a model, of which :meth:`run` makes findings.

    In a section of the configuration, the parameters of the constructor are keys. The sections ``ablation``, ``prune``
    and ``shrink`` are passed to parameters of these names, and the analysed run to one called ``origin``.

    Args:
        evaluation: Evaluation set; None for the task's first.
        max_examples: A random sample of this many examples; None for all.
    """

    without_labels: ClassVar[str] = ""
    """What cannot be done without labels, as a part of a sentence; empty if labels are not needed."""

    of_whole_texts: ClassVar[bool] = False
    """Whether it reads the logits of a prediction for each text, which models that answer for each word do not have."""

    learns: ClassVar[str] = ""
    """What is chosen or taught on training rows, as the subject of a sentence; empty if nothing is."""

    tests_loss: ClassVar[bool] = False
    """Whether it tests what score is lost without some heads, which ``fail_if`` judges."""

    at_start: ClassVar[bool] = False
    """Whether it is also run before training, as step 0."""

    every_n_validations: int = 0
    """Run at every n-th validation and at the last; 0: at the last only."""

    def __init__(self, evaluation: str | None = None, max_examples: int | None = None) -> None:
        self.evaluation = evaluation
        self.max_examples = max_examples

    @property
    def experiments(self) -> Sequence[Experiment]:
        """What its numbers are called, as far as that is known once it is checked."""
        return [self] if isinstance(self, Experiment) else []

    def needs_reference(self, context: Context) -> bool:
        """Whether it compares with the model before fine-tuning, ``context.references["initial"]``."""
        return False

    def check(self, context: Context) -> None:
        """Raise UserError if it cannot be run, hours before it is: the model may not be on its device yet."""
        if self.learns and context.source is not None:
            context.source.check_apart(self.learns)
        if self.without_labels and not context.task.is_labelled:
            raise UserError(
                f"Task '{context.task.name}' has no labels, so {self.without_labels}; choose a labelled task."
            )
        if self.of_whole_texts and context.task.head.statistics:
            raise UserError(
                f"{type(self).__name__} needs one prediction for each text, but a model of task '{context.task.name}' "
                f"(kind {context.task.head.kind}) makes several; use analysis=disable or analysis=gradient_importance."
            )

    def check_on_device(self, context: Context) -> None:  # noqa: B027
        """Raise UserError if it cannot be run, before the first pass of a training or a validation."""

    def is_due(self, context: Context) -> bool:
        """Whether to run it at this validation."""
        every = self.every_n_validations
        return context.last or bool(every and context.validation % every == 0)

    @abstractmethod
    def run(self, context: Context) -> Iterable[Findings]:
        """The findings, on all processes; the first one's are written."""


def find(analysis: Analysis, context: Context) -> list[Findings]:
    """Run an analysis, with the model in evaluation mode and without gradients."""
    with evaluating(context.model), torch.no_grad():
        return list(analysis.run(context))


def record(run: Run, found: Sequence[Findings], stage: str, step: int) -> None:
    """Write findings to a run's folder.

    Args:
        run: The run; only its first process writes.
        found: The findings.
        stage, step: What the numbers are of, unless findings say otherwise.
    """
    if not run.writes or not found:
        return
    run.folder.mkdir(parents=True, exist_ok=True)
    run.declare(*(findings.experiment.declaration() for findings in found))
    moments = [findings.moment or (stage, step) for findings in found]
    pairs = list(zip(found, moments, strict=True))
    run.add(*(run.rows(grid, *moment) for findings, moment in pairs for grid in findings.grids))
    for findings, (stage, step) in pairs:
        run.write_rows(findings.experiment.name, stage, step, findings.rows, (), **findings.equal)
    for findings, moment in pairs:
        if findings.finish is not None:
            findings.finish(run, *moment)


def without_errors(
    experiment: Experiment, value_LHC: Tensor, count: int = 1, *, whole_layers: bool = False
) -> HeadGrid:
    """Numbers that have no standard error, each from so many observations."""
    stderr_LHC = torch.full_like(value_LHC, torch.nan)
    count_LHC = torch.full_like(value_LHC, count, dtype=torch.int64)
    return HeadGrid(experiment.name, experiment.columns, value_LHC, stderr_LHC, count_LHC, whole_layers)
