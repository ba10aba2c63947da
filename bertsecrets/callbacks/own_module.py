"""Support for any LightningModule: locate its encoder, record its inputs, score its examples and store the findings."""

import os
import time
from collections.abc import Mapping, Sequence, Sized
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import move_data_to_device
from omegaconf import OmegaConf
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from transformers import PreTrainedTokenizerBase

from bertsecrets.ablation.own_outcome import (
    Group,
    Outcome,
    OwnMetric,
    checked_outcome,
    groups_of,
    logits_and_labels,
    task_of,
)
from bertsecrets.analysis import Context, Reference, SplitBatches
from bertsecrets.attention.hooks import eager_execution
from bertsecrets.callbacks.recorder import (
    OutcomeExamples,
    RecordedStep,
    Recorder,
    recorded_inputs,
    recorder_of,
)
from bertsecrets.callbacks.run_analysis import shows_progress
from bertsecrets.data.batch import gathered
from bertsecrets.data.classes import are_unnamed, names_of
from bertsecrets.data.groups import judged_as_groups
from bertsecrets.data.module import constant_prediction
from bertsecrets.data.recorded import RecordedSplit
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices
from bertsecrets.models.encoder import Autocast, check_kind, describe, models_in, same_logits
from bertsecrets.models.metrics import other_classes, scores, set_scores
from bertsecrets.models.sharding import SHARDED
from bertsecrets.results.run import CONFIG_COPY, Run, write_config
from bertsecrets.results.scores import SetScores
from bertsecrets.task_heads.sequence import find_logits

HEADS = "heads"
"""Name of the folder for findings next to the files of a trainer's logger."""

_runs: WeakKeyDictionary[pl.Trainer, dict[str | None, Run]] = WeakKeyDictionary()
"""The runs that a trainer's callbacks write to, by requested folder."""

_untrained: WeakKeyDictionary[pl.Trainer, dict[int, nn.Module]] = WeakKeyDictionary()
"""Copies of a trainer's encoders before the first step, shared by its callbacks."""


def sharded_weights(whole: str) -> UserError:
    """The error for weights in pieces on several devices; ``whole`` names what leaves them whole."""
    return UserError(
        f"The weights of the module are sharded, so its heads cannot be analysed during training; use {whole}, or "
        "analyse a checkpoint in one process."
    )


class OwnModule:
    """Settings for analysing any module with callbacks.

    Args:
        folder: Folder for findings; None for ``heads`` next to the files of the trainer's logger.
        encoder: Path of the encoder in the module, such as ``student.bert``; None if there is only one.
        dataloader: Which of several validation data loaders to use.
        tokenizer: The tokenizer of the texts; None to use the tokenizer of the module or its data, if any.
        outcome: How an example is scored.
        metric: The metric; None for accuracy of classes and Pearson's correlation of scores.
        group: The group of each example, whose examples are resampled and tested together: a key of the batch, a
            function of a batch, or a value for each ``index``; None for the ``group`` in the batch, if any.
        classes: The names of the classes; None for those of the library model (``config.id2label``).
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        encoder: str | None = None,
        dataloader: int = 0,
        tokenizer: PreTrainedTokenizerBase | None = None,
        outcome: Outcome = logits_and_labels,
        metric: OwnMetric = None,
        group: Group | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.folder, self.path, self.dataloader = folder, encoder, dataloader
        self.tokenizer, self.outcome, self.metric = tokenizer, outcome, metric
        self.group, self.classes = group, classes
        self.notes: tuple[str, ...] = ()
        """Sentences for the page on the examples that were scored last."""
        self.seconds = 0.0
        """Duration of the module's pass over the examples that were scored last."""

    def holder(self, module: nn.Module) -> nn.Module:
        """The part of the module that contains only this encoder.

        Raises:
            UserError: If there is none, there are several without a path, or it is not an encoder.
        """
        found = models_in(module)
        holder = module
        if self.path is not None:
            try:
                holder = module.get_submodule(self.path)
            except AttributeError as error:
                raise UserError(
                    f"encoder is '{self.path}', which {type(module).__name__} does not have; "
                    f"{choices(self.path, found)}."
                ) from error
        elif len({id(model) for model in found.values()}) > 1:
            raise UserError(
                f"{type(module).__name__} holds several encoders ({', '.join(found)}); name one, such as "
                f"encoder='{next(iter(found))}'."
            )
        check_kind(holder)
        return holder

    def begin(self, trainer: pl.Trainer, module: pl.LightningModule, *, validates: bool = True) -> Run:
        """Check that the module can be analysed; return the run for the findings.

        Args:
            trainer, module: The trainer and its module.
            validates: Whether the callback analyses validation batches.

        Raises:
            UserError: If weights are sharded, there is no validation, or the folder contains numbers of another
                training run.
        """
        sharded = any(isinstance(part, FSDPModule | FullyShardedDataParallel) for part in module.modules())
        # By name, because the package lightning has its own classes.
        kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
        if sharded or kinds & {kind.__name__ for kind in SHARDED}:
            raise sharded_weights("strategy='ddp'")
        if validates and trainer.state.fn == "fit" and not trainer.enable_validation:
            raise UserError(
                "Heads are analysed on validation batches, but there is no validation; give a validation data loader "
                "and a validation_step."
            )
        kind = str(describe(self.holder(module)).model.config.model_type)
        runs = _runs.setdefault(trainer, {})
        asked = None if self.folder is None else str(self.folder)
        if asked not in runs:
            runs[asked] = _new_run(trainer, module, asked, kind)
        return runs[asked]

    def untrained(self, trainer: pl.Trainer, module: nn.Module) -> nn.Module:
        """A copy of the library model, made when the first callback needs it."""
        model, copies = describe(self.holder(module)).model, _untrained.setdefault(trainer, {})
        if id(model) not in copies:
            copies[id(model)] = deepcopy(model).requires_grad_(False)
        return copies[id(model)]

    def recorder(self, module: nn.Module) -> Recorder:
        """The recorder of the encoder's inputs."""
        return recorder_of(module, describe(self.holder(module)))

    def steps(self, module: nn.Module) -> list[RecordedStep]:
        """The recorded steps of the data loader."""
        return [step for step in self.recorder(module).steps if step.dataloader == self.dataloader]

    def inputs(
        self,
        trainer: pl.Trainer,
        module: pl.LightningModule,
        label_N: Tensor | None = None,
        group_N: Tensor | None = None,
    ) -> RecordedSplit:
        """What the encoder was called with in the last validation, on all processes, with labels and groups in order.

        Raises:
            UserError: If it was not called.
        """
        tokenizer = self.tokenizer or _tokenizer_in(module, getattr(trainer, "datamodule", None))
        pad_id = getattr(describe(self.holder(module)).model.config, "pad_token_id", None)
        return recorded_inputs(self.steps(module), tokenizer, pad_id or 0, label_N, group_N)

    def bare(self, module: nn.Module, **options: Any) -> Context:
        """The encoder without examples, before any are recorded; ``options`` are further fields."""
        split = RecordedSplit([], [], None, 0)
        task = Task(name=_name(module), metrics=(), texts=1)
        return Context.of_split(self.holder(module), task, split, 1, self._evaluation, **options)

    def watched(
        self, trainer: pl.Trainer, module: pl.LightningModule, **options: Any
    ) -> tuple[Context, dict[str, SetScores], str]:
        """The encoder on its inputs, for analyses without labels.

        Args:
            trainer, module: The trainer and its module.
            options: Further fields of the context.

        Returns:
            The context, empty scores of its set, and the constant prediction.
        """
        split, steps = self.inputs(trainer, module), self.steps(module)
        # Several calls with the same texts in one step do not come from a repeating sampler.
        sizes = [max((len(call.tensors["input_ids"]) for call in step.calls), default=0) for step in steps]
        _warn_of_repeats(trainer, self.dataloader, sum(map(sum, gathered(sizes))), steps)
        task = Task(name=_name(module), metrics=(), texts=1)
        context = self._on_split(trainer, module, split, task, **options)
        return context, {self._evaluation: SetScores(len(split), {}, {})}, ""

    def scored(
        self, trainer: pl.Trainer, module: pl.LightningModule, **options: Any
    ) -> tuple[Context, dict[str, SetScores], str]:
        """The module on its examples, scored by the outcome; arguments and return value as :meth:`watched`.

        If the module's predictions equal its library model's, the context has that model and its inputs, so that
        variants share passes; otherwise every variant needs a pass of the module.

        Raises:
            UserError: If the encoder is not called, or the outcome is not a prediction and a label for each example.
        """
        context, steps = trainer.precision_plugin.forward_context, self.steps(module)
        own = not isinstance(self.metric, str | None)

        def score(batch: Any, examples: int | None) -> tuple[Tensor, Tensor]:
            with context(), eager_execution():
                return checked_outcome(self.outcome, module, move_data_to_device(batch, module.device), examples, own)

        def groups(step: RecordedStep, count: int) -> Tensor | None:
            return groups_of(self.group, step.batch, step.index_B, count)

        started = time.monotonic()
        examples = OutcomeExamples(steps, score, groups)
        self.seconds = time.monotonic() - started
        answers_NC, label_N, group_N = examples.collected()
        task = task_of(_name(module), answers_NC, label_N, self.metric, self._class_names(module, answers_NC))
        notes = []
        if group_N is not None:
            count = len(group_N.unique())
            # The sanity check of a trainer may see one group alone.
            if count == 1 and len(group_N) > 1 and not trainer.sanity_checking:
                raise UserError(
                    f"All {len(group_N):,} examples are of one group, so that no two are independent; give several "
                    "groups, or none."
                )
            notes.append(judged_as_groups(len(group_N), count))
        _warn_of_repeats(trainer, self.dataloader, len(examples), steps)
        if own:
            answer, found = "", SetScores(len(answers_NC), scores(answers_NC, label_N, task), {})
        else:
            constant = constant_prediction(label_N, task)
            answer = f"{constant:.2f}" if task.is_regression else task.labels[int(constant)]
            found = set_scores(answers_NC.float(), label_N, task, constant)
            # Before the end of training, a model may answer with the rarer class.
            if options.get("last") and not task.is_regression:
                notes += _misnamed(task, answers_NC, label_N)
        self.notes = tuple(notes)
        sets = {self._evaluation: found}
        if not own and self._answers_of_model(module, examples, context):
            split = self.inputs(trainer, module, label_N, group_N)
            return self._on_split(trainer, module, split, task, **options), sets, answer
        inputs = self.inputs(trainer, module)
        of_outcome = Context(
            self.holder(module),
            task,
            self._evaluation,
            # With an outcome, only the size of a set is read.
            examples,  # type: ignore[arg-type]
            examples.load,
            partial(Reference.sample, inputs),
            _batch_size(steps),
            context,
            shows_progress(trainer),
            outcome=lambda batch: score(batch["batch"], None)[0][batch["rows"]],
            **options,
        )
        return of_outcome, sets, answer

    def _class_names(self, module: nn.Module, answers_NC: Tensor) -> Sequence[str] | None:
        """The names of the classes, given or the library model's; None if unknown."""
        if self.classes is not None:
            return self.classes
        id2label = getattr(describe(self.holder(module)).model.config, "id2label", None) or {}
        names, classes = names_of(id2label, len(id2label)), answers_NC.shape[1]
        fits = len(names) == classes if classes > 1 else float(answers_NC.max()) < len(names)
        return names if fits and not are_unnamed(names) else None

    @property
    def _evaluation(self) -> str:
        return f"val_{self.dataloader}" if self.dataloader else "val"

    def _on_split(
        self, trainer: pl.Trainer, module: pl.LightningModule, split: RecordedSplit, task: Task, **options: Any
    ) -> Context:
        size = _batch_size(self.steps(module))
        return Context(
            self.holder(module),
            task,
            self._evaluation,
            split,
            lambda positions: SplitBatches(split, size, positions, trainer.global_rank, trainer.world_size),
            partial(Reference.sample, split),
            size,
            trainer.precision_plugin.forward_context,
            shows_progress(trainer),
            **options,
        )

    def _answers_of_model(self, module: pl.LightningModule, examples: OutcomeExamples, context: Autocast) -> bool:
        """Whether the module's predictions are its library model's logits for these inputs, on all processes."""
        network = describe(self.holder(module)).model

        def same(part: Any) -> bool:
            if len(part.step.calls) != 1 or part.answers_BC.shape[1] < 2:
                return False
            inputs = move_data_to_device(part.step.calls[0].tensors, module.device)
            if len(inputs["input_ids"]) != len(part.label_B):
                return False
            with context(), eager_execution():
                logits_BC = find_logits(network, inputs)
            return logits_BC is not None and same_logits(logits_BC.cpu(), part.answers_BC)

        return all(all(list_) for list_ in gathered([all(map(same, examples.scored))]))


def _misnamed(task: Task, answers_NC: Tensor, label_N: Tensor) -> list[str]:
    """A warning, also shown, if the module's outputs seem to be in another class order than the labels."""
    other = other_classes(task.head.predictions(answers_NC.float()), label_N.long(), task.labels, task.labels)
    if other is None:
        return []
    note = f"{other.sentence}; if these are its classes, renumber the labels in the data set or in outcome."
    rank_zero_warn(note)
    return [note]


def _batch_size(steps: Sequence[RecordedStep]) -> int:
    return max((len(call.tensors["input_ids"]) for step in steps for call in step.calls), default=1)


def _name(module: nn.Module) -> str:
    return type(module).__name__.lower()


def _tokenizer_in(*owners: object) -> PreTrainedTokenizerBase | None:
    """The tokenizer that one of the objects has as an attribute."""
    values = [value for owner in owners if owner is not None for value in vars(owner).values()]
    return next((value for value in values if isinstance(value, PreTrainedTokenizerBase)), None)


def _warn_of_repeats(trainer: pl.Trainer, dataloader: int, count: int, steps: Sequence[RecordedStep]) -> None:
    """Warn that a sampler repeats examples if no index identifies them."""
    loaders = trainer.val_dataloaders
    listed = [*loaders.values()] if isinstance(loaders, dict) else loaders
    dataset = getattr(listed[dataloader] if isinstance(listed, Sequence) else listed, "dataset", None)
    size = len(dataset) if isinstance(dataset, Sized) else None
    if size is not None and count > size and all(step.index_B is None for step in steps):
        rank_zero_warn(
            f"{count - size} of {size} validation examples count twice, because the sampler repeats them to give "
            "every process equally many; add each example's number to its batch as 'index', or validate in one "
            "process."
        )


def _new_run(trainer: pl.Trainer, module: pl.LightningModule, asked: str | None, kind: str) -> Run:
    resumes = trainer.state.fn != "fit" or trainer.ckpt_path is not None
    # The first process decides for all.
    path, reason = trainer.strategy.broadcast(_choose_folder(trainer, asked, resumes))
    if reason:
        raise UserError(reason)
    folder = Path(path)
    seed = int(os.environ.get("PL_GLOBAL_SEED", torch.initial_seed() % 2**32))
    name = folder.parent.name if folder.name.startswith(HEADS) and folder.parent.name else folder.name
    run = Run(folder, name, kind, _name(module), "pretrained", trainer.is_global_zero, seed)
    if run.writes:
        folder.mkdir(parents=True, exist_ok=True)
        write_identity(run, module, {"name": run.task})
    return run


def write_identity(run: Run, module: nn.Module, task: Mapping[str, Any]) -> None:
    """Write a run's copy of its configuration with the known facts of a user's module.

    Args:
        run: The run.
        module: The module, whose plain hyperparameters distinguish conditions.
        task: The task's section.
    """
    settings = {name: value for name, value in getattr(module, "hparams", {}).items() if _is_plain(value)}
    identity = {"name": run.name, "init": run.init, "seed": run.seed, "model": {"name": run.model}}
    write_config(OmegaConf.create({**identity, "task": dict(task), "module": settings}), run.folder)


def _choose_folder(trainer: pl.Trainer, asked: str | None, resumes: bool) -> tuple[str, str]:
    """The folder, and why it cannot be used."""
    if asked is not None:
        taken = (Path(asked) / CONFIG_COPY).exists() and not resumes
        reason = (
            f"'{asked}' contains findings of an earlier training run; delete it or give another folder."
            if taken
            else ""
        )
        return asked, reason
    logger = next(iter(trainer.loggers), None)
    folder = Path(trainer.default_root_dir)
    if logger is not None:
        version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
        folder = Path(logger.save_dir or folder) / str(logger.name) / version
    names = [HEADS, *(f"{HEADS}_{number}" for number in range(1, 10_000))]
    return str(next(folder / name for name in names if resumes or not (folder / name / CONFIG_COPY).exists())), ""


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | type(None))
