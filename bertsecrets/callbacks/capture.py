"""Capture the attention maps of a few examples during training."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytorch_lightning as pl
import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from bertsecrets.analysis import Analysis, Context, Findings
from bertsecrets.attention.watch import capture
from bertsecrets.callbacks.trainer_state import current_step
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import Shown
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import Encoder, describe
from bertsecrets.models.sharding import set_whole
from bertsecrets.results.captures import CapturedExample, step_name, write_examples, write_maps
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import INITIAL, Run

_BYTES = 4

_Count = Annotated[int, Field(ge=1)]
_Index = Annotated[int, Field(ge=0)]


class CaptureMaps(pl.Callback, Experiment):
    """Write all heads' maps of chosen development examples at step 0 and after every validation.

    Only the first process captures; the others do not wait. At most ``max_megabytes`` of maps are in memory at a time,
    which is checked before the first batch.

    Args:
        run: The run; maps go to its ``captures/step-<step>.safetensors``, examples to ``captures/examples.json``.
        examples: The number of examples (spread evenly over the set by length), or a list of indices into the set.
        evaluation: Evaluation set to choose from; None for the task's first.
        max_megabytes: Limit on the maps of one step, in units of 10^6 bytes.
        reference: When a finished checkpoint is analysed, the model before fine-tuning; its maps are written as step 0.

    Raises:
        UserError: If an example does not exist, or the maps would not fit in ``max_megabytes``.
    """

    name = "capture"
    title = "Attention maps of a few examples"
    shown = Shown(compared=False)
    presenter = "bertsecrets.present.captures:PRESENTER"

    def __init__(
        self,
        run: Run,
        examples: Annotated[
            _Count | Annotated[Sequence[_Index], Field(min_length=1)],
            Field(description="a whole number from 1, or a list of examples from 0"),
        ] = 4,
        evaluation: str | None = None,
        max_megabytes: Annotated[float, Field(gt=0, description="a number above 0")] = 64,
        reference: PreTrainedModel | None = None,
    ) -> None:
        self.run = run
        self.examples = examples
        self.evaluation = evaluation
        self.max_megabytes = max_megabytes
        self.reference = reference
        self._batch: Batch | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._prepare(trainer, pl_module)
        # Lightning sets the step of a resumed training only after this hook.
        if trainer.ckpt_path is None:
            # Only the first process runs the model here, which requires whole weights.
            set_whole(pl_module, True)
            self._write(trainer, pl_module, 0)
            set_whole(pl_module, False)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._batch is None and not trainer.sanity_checking:
            self._prepare(trainer, pl_module)
            if self.reference is not None and trainer.is_global_zero:
                network: Any = self.reference.to(device=pl_module.device)  # type: ignore[call-arg]
                self._save(network, pl_module.device, 0, self.run.captures)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._write(trainer, pl_module, current_step(trainer))

    def _prepare(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        assert isinstance(pl_module, SequenceClassifier)
        dataset = data.evaluation_dataset(data.check_evaluation(self.evaluation))
        positions = chosen(self.examples, dataset.lengths, "callbacks.capture.examples")
        batch = dataset[positions]
        _check_size(batch, describe(pl_module.model), self.max_megabytes, "callbacks.capture.max_megabytes")
        self._batch = batch
        self.run.declare(self.declaration())
        if trainer.is_global_zero:
            write_examples(
                self.run.captures,
                [
                    CapturedExample(
                        index=dataset.examples[position].index,
                        tokens=data.tokens(batch.input_ids_BS[row][batch.attention_mask_BS[row].bool()]),
                        texts=list(dataset.examples[position].texts),
                        label=data.label_name(dataset.examples[position].label),
                        relations=_relations(batch, row),
                        special=batch.special_BS[row][batch.attention_mask_BS[row].bool()].tolist(),
                    )
                    for row, position in enumerate(positions)
                ],
            )

    def _write(self, trainer: pl.Trainer, pl_module: pl.LightningModule, step: int) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        if trainer.is_global_zero:
            self._save(pl_module.model, pl_module.device, step, self.run.captures)

    def _save(self, model: PreTrainedModel, device: torch.device, step: int, folder: Path) -> None:
        assert self._batch is not None
        batch = self._batch.to(device)
        maps = capture(model, batch.inputs())
        write_maps(folder, step_name(step), dict(zip(batch.index_B.tolist(), maps, strict=True)))


def _relations(batch: Batch, row: int) -> list[tuple[int, int, str]]:
    """First tokens of each annotated word and of its head, and the relation; words without tokens are left out."""
    tokens: dict[int, int] = {}
    for token, word in enumerate(batch.word_BS[row].tolist()):
        tokens.setdefault(word, token)
    pairs, first = [], 0
    for sentence in batch.annotations[row] if batch.annotations else ():
        for i, word in enumerate(sentence.words):
            if word.head >= 0 and first + i in tokens and first + word.head in tokens:
                pairs.append((tokens[first + i], tokens[first + word.head], word.relation))
        first += len(sentence.words)
    return pairs


def chosen(examples: int | Sequence[int], lengths: Sequence[int], key: str) -> list[int]:
    """The positions of a number of examples, spread evenly over a set by length, or those of a list.

    Args:
        examples: The number, or the positions.
        lengths: The length of each example of the set.
        key: What messages call the setting.

    Raises:
        UserError: If there is no such example.
    """
    if isinstance(examples, int):
        if examples < 1:
            raise UserError(f"{key} is {examples}; expected a number of at least 1, or a list of examples.")
        order = sorted(range(len(lengths)), key=lambda position: (lengths[position], position))
        count = min(examples, len(order))
        # The middle of each of `count` equal parts: typical short, medium and long examples without the extremes.
        return [order[(2 * part + 1) * len(order) // (2 * count)] for part in range(count)]
    for position in examples:
        if not 0 <= position < len(lengths):
            raise UserError(f"{key} names example {position}; the set has 0 to {len(lengths) - 1}.")
    return list(examples)


def _check_size(batch: Batch, encoder: Encoder, max_megabytes: float, key: str) -> None:
    square = int(batch.lengths_B.max()) ** 2
    needed = batch.size * encoder.num_layers * encoder.num_heads * square * _BYTES / 1e6
    if needed > max_megabytes:
        raise UserError(
            f"Capturing {batch.size} examples needs {needed:.0f} MB of memory, more than {key}={max_megabytes:g}; "
            "choose fewer or shorter examples, or raise it."
        )


class CaptureAnalysis(Analysis):
    """Write all heads' maps of chosen examples; those of the model before fine-tuning, where it is known, as step 0.

    Args:
        examples, max_megabytes: As for :class:`CaptureMaps`.
        every_n_validations: At every n-th validation and at the last; 0: only at the last.

    Raises:
        UserError: If an example does not exist, or the maps would not fit in ``max_megabytes``.
    """

    def __init__(
        self, examples: int | Sequence[int] = 4, max_megabytes: float = 64, every_n_validations: int = 1
    ) -> None:
        super().__init__()
        self.examples, self.max_megabytes, self.every_n_validations = examples, max_megabytes, every_n_validations
        self._batch: Batch | None = None

    def needs_reference(self, context: Context) -> bool:
        return True

    def run(self, context: Context) -> Iterator[Findings]:
        first = self._batch is None
        positions = chosen(self.examples, context.split.lengths, "examples")
        if self._batch is None:
            # The same texts at every validation, though loaders may shuffle.
            self._batch = context.split[positions]
        batch = self._batch.to(context.device)
        _check_size(batch, context.encoder, self.max_megabytes, "max_megabytes")
        assert isinstance(context.split, EncodedSplit)
        tokenizer: Any = context.split.tokenizer

        def spelt(ids_S: Tensor) -> list[str]:
            ids: list[int] = ids_S.tolist()
            return list(map(str, ids if tokenizer is None else tokenizer.convert_ids_to_tokens(ids)))

        def finish(run: Run, stage: str, step: int) -> None:
            models = {step: context.model}
            if first:
                if INITIAL in context.references:
                    models[0] = context.references[INITIAL]
                captured = []
                for row, index in enumerate(batch.index_B.tolist()):
                    real_S = batch.attention_mask_BS[row].bool()
                    tokens = spelt(batch.input_ids_BS[row][real_S])
                    special = batch.special_BS[row][real_S].tolist()
                    captured.append(CapturedExample(index, tokens, [" ".join(tokens)], "?", special=special))
                write_examples(run.captures, captured)
            for at, model in models.items():
                maps = capture(model, batch.inputs())
                write_maps(run.captures, step_name(at), dict(zip(batch.index_B.tolist(), maps, strict=True)))

        yield Findings(_Captured(), finish=finish)


class _Captured(Experiment):
    name, title, shown, presenter = CaptureMaps.name, CaptureMaps.title, CaptureMaps.shown, CaptureMaps.presenter
