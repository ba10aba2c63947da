"""An analysis receives a :class:`Context` (a model with examples) and returns :class:`Findings`.

A context is made in one of three ways, which an analysis does not distinguish:

* :meth:`Context.of_data`: a model on an evaluation set of a task. The callback
  :class:`~bertsecrets.callbacks.run_analysis.RunAnalysis` makes one at each validation.
* :meth:`Context.of_split`: a model on a tokenised split, as in a notebook.
* The constructor, with a custom ``load``, which maps positions in ``split`` to this process's batches.

:func:`find` runs an analysis; :func:`record` writes its findings to a run folder.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from bertsecrets.data.batch import Batch, BatchSpec, BucketedEvalSampler, over_processes, rank_and_world_size
from bertsecrets.data.module import TaskData, sample_positions, sample_rows
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
    """Batches that can be iterated repeatedly; ``sampler`` lists the examples of each."""

    @property
    def sampler(self) -> Iterable[BatchSpec]: ...

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int: ...


class SplitBatches:
    """This process's batches of examples of a tokenised split, grouped by length.

    Args:
        split: The split.
        batch_size: Examples per batch.
        positions: Positions of the examples; None for all.
        rank, world_size: This process's rank, and the number of processes that share the batches.
    """

    def __init__(
        self,
        split: EncodedSplit,
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
    """The examples for computing replacements.

    Args:
        split: A tokenised split.
        positions: Positions of the examples in it.
    """

    split: EncodedSplit
    positions: tuple[int, ...]

    @classmethod
    def sample(cls, split: EncodedSplit, max_examples: int) -> "Reference":
        """A random sample of a split, identical on every process."""
        return cls(split, tuple(sample_positions(len(split), max_examples, 0)))

    def batches(self, size: int) -> SplitBatches:
        """Batches of similar length."""
        return SplitBatches(self.split, size, self.positions)


@dataclass(frozen=True)
class Context:
    """All that an analysis sees: a model, the examples to analyse it on, and how to run it.

    Args:
        model: Any module that contains a transformers encoder, or a sentence-embedding model. During
            :meth:`Analysis.run` it is in evaluation mode, without gradients.
        task: The task of the examples, with its metrics.
        evaluation: Name of the evaluation set.
        split: The tokenised set.
        load: Maps positions in the set to this process's batches.
        reference: Maps a number to that many reference examples, for modes that compute replacements from them; mode
            ``optimal`` needs labels.
        batch_size: Examples per forward pass over reference examples.
        autocast: Context manager for every pass, e.g. the trainer's precision.
        progress: Whether to show progress bars.
        stage, step: ``training``, or ``checkpoint`` for a finished model, and the number of optimiser steps so far.
        validation, last: Number of the validation, from 1, and whether it is the last.
        sample: Size of a random sample that suffices for a measure at this validation; None for all examples.
        unchanged: Whether the weights are unchanged since the analysis last ran.
        output: The run that receives the findings; None to store nothing.
        name: Name of the analysis in the run, and of its folder of finished steps, ``unfinished-<name>``.
        key: What affects the numbers besides weights and settings, such as the precision.
        references: Models to compare with, by stage: ``initial``, the model before fine-tuning.
        source: The task's data; None if the examples come from elsewhere.
        promised: Columns that the run will have when the analysis runs, as ``<measure>/<column>``.
        outcome: Maps a batch's ``inputs()`` to logits, or to one number per example; None for the model's logits.
    """

    model: nn.Module
    task: Task
    evaluation: str
    split: EncodedSplit
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
            UserError: If the set does not exist.
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
        split: EncodedSplit,
        batch_size: int,
        evaluation: str = "val",
        reference: EncodedSplit | None = None,
        **options: Any,
    ) -> "Context":
        """A model on a tokenised split, whose examples several processes share.

        Args:
            model, task, split, batch_size, evaluation: See :class:`Context`.
            reference: The split of the reference examples; None for ``split``.
            options: Further fields of :class:`Context`.
        """

        def sample(max_examples: int) -> Reference:
            return Reference.sample(split if reference is None else reference, max_examples)

        def load(positions: Sequence[int]) -> SplitBatches:
            return SplitBatches(split, batch_size, positions, *rank_and_world_size())

        if isinstance(model, DistributedDataParallel):
            # Its forward waits for the other processes, which may have fewer batches.
            model = model.module
        return cls(model, task, evaluation, split, load, sample, batch_size, **options)

    @property
    def encoder(self) -> Encoder:
        """The model's encoder."""
        return describe(self.model)

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return next(self.encoder.base.parameters()).device

    @property
    def data(self) -> TaskData:
        """The task's data, with its tokenizer and training split.

        Raises:
            UserError: If the examples come from elsewhere.
        """
        if self.source is None:
            raise UserError(
                "This analysis needs the task's tokenizer or training rows, but was given batches only; run it with "
                "train.py or analyze.py."
            )
        return self.source

    @property
    def run(self) -> Run:
        """The run that receives the findings.

        Raises:
            UserError: If there is none.
        """
        if self.output is None:
            raise UserError("This analysis writes files and needs a run folder; run it with analyze.py.")
        return self.output

    @cached_property
    def store(self) -> Store:
        """Finished steps, from which an interrupted analysis resumes; without a run, nothing is stored.

        Its keys include the task, the evaluation set and ``key``; an analysis adds the weights and its settings. The
        runner clears it after writing the findings.
        """
        if self.output is None:
            return NOTHING_KEPT
        folder = self.output.folder / f"unfinished-{self.name}"
        return Store(folder, self.task.name, self.evaluation, self.key, writes=self.is_first)

    @property
    def is_first(self) -> bool:
        """Whether this is the first process, or the only one."""
        return rank_and_world_size()[0] == 0

    @property
    def processes(self) -> int:
        """The number of processes."""
        return rank_and_world_size()[1]

    def wait(self) -> None:
        """Wait for all processes."""
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
        return over_processes(tensor.clone())

    def placed(self, module: nn.Module) -> nn.Module:
        """Move another model to the model's device and precision."""
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
            max_examples: Size of a random sample, drawn with ``seed``; None for all.
            max_length, pad_to: Lengths to truncate and pad to, instead of the task's.
        """
        if max_length is None and pad_to is None:
            return self.load(self.positions(max_examples, seed))
        return self.data.evaluation_loader(self.evaluation, max_examples, max_length, pad_to, seed)


@dataclass(frozen=True)
class Findings:
    """The results of an analysis.

    Args:
        experiment: Names of the numbers.
        grids: Numbers per head and column, reduced over all processes; may be empty.
        rows: Results that do not fit a grid (:mod:`bertsecrets.results.rows`).
        equal: Replace only the earlier rows of this stage and step that have these values of these fields.
        tracked: The grids to log to W&B; None for all.
        finish: Called last, with run, stage and step: writes further files and removes the stored steps of an
            interrupted analysis.
        moment: Stage and step of the numbers, if they differ from those of the analysed model.
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
    """A question about the heads of a model, answered by :meth:`run`.

    The parameters of the constructor are keys of its section of the configuration. Parameters called ``ablation``,
    ``prune`` and ``shrink`` receive the settings of these names, ``origin`` receives the analysed run.

    Args:
        evaluation: Evaluation set; None for the task's first.
        max_examples: Size of a random sample of examples; None for all.
    """

    without_labels: ClassVar[str] = ""
    """What is impossible without labels, as a clause; empty if labels are not needed."""

    of_whole_texts: ClassVar[bool] = False
    """Whether it needs one prediction per text, which models that label words do not make."""

    learns: ClassVar[str] = ""
    """What is selected or trained on training rows, as the subject of a sentence; empty if nothing is."""

    tests_loss: ClassVar[bool] = False
    """Whether it tests the loss of score without some heads, for ``fail_if``."""

    at_start: ClassVar[bool] = False
    """Whether it also runs before training, as step 0."""

    every_n_validations: int = 0
    """Run at every n-th validation and at the last; 0: only at the last."""

    def __init__(self, evaluation: str | None = None, max_examples: int | None = None) -> None:
        self.evaluation = evaluation
        self.max_examples = max_examples

    @property
    def experiments(self) -> Sequence[Experiment]:
        """Names of its numbers, as far as known after :meth:`check`."""
        return [self] if isinstance(self, Experiment) else []

    def needs_reference(self, context: Context) -> bool:
        """Whether it compares with the model before fine-tuning, ``context.references["initial"]``."""
        return False

    def check(self, context: Context) -> None:
        """Raise UserError if it cannot run. Called before training, when the model may not be on its device yet."""
        if self.learns and context.source is not None:
            context.source.check_apart(self.learns)
        if self.without_labels and not context.task.is_labelled:
            raise UserError(
                f"Task '{context.task.name}' has no labels, so {self.without_labels}; choose a labelled task."
            )
        if self.of_whole_texts and (context.task.head.statistics or context.task.head.in_parts):
            raise UserError(
                f"{type(self).__name__} needs one prediction per text, but a model of task '{context.task.name}' "
                f"(kind {context.task.head.kind}) makes several; use analysis=disable or analysis=gradient_importance."
            )

    def check_on_device(self, context: Context) -> None:  # noqa: B027
        """Raise UserError if it cannot run. Called before the first pass of training or validation."""

    def is_due(self, context: Context) -> bool:
        """Whether to run at this validation."""
        every = self.every_n_validations
        return context.last or bool(every and context.validation % every == 0)

    @abstractmethod
    def run(self, context: Context) -> Iterable[Findings]:
        """Compute the findings, on all processes; those of the first process are written."""


def find(analysis: Analysis, context: Context) -> list[Findings]:
    """Run an analysis, with the model in evaluation mode and without gradients."""
    with evaluating(context.model), torch.no_grad():
        return list(analysis.run(context))


def record(run: Run, found: Sequence[Findings], stage: str, step: int) -> None:
    """Write findings to a run folder.

    Args:
        run: The run; only the first process writes.
        found: The findings.
        stage, step: Stage and step of the numbers, unless findings have their own ``moment``.
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
    """A grid of numbers without standard errors, each from ``count`` observations."""
    stderr_LHC = torch.full_like(value_LHC, torch.nan)
    count_LHC = torch.full_like(value_LHC, count, dtype=torch.int64)
    return HeadGrid(experiment.name, experiment.columns, value_LHC, stderr_LHC, count_LHC, whole_layers)
