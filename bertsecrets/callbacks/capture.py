"""Keeps the maps of a handful of examples through training, so that a head can be watched while it learns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from transformers import PreTrainedModel

from bertsecrets.attention.capture import capture
from bertsecrets.callbacks.stage import current_step
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.models.sharding import set_whole
from bertsecrets.results.captures import CapturedExample, step_name, write_examples, write_maps
from bertsecrets.results.run import Run

_BYTES = 4


class CaptureMaps(pl.Callback):
    """Writes all heads' maps of chosen development examples at step 0 and after every validation.

    The first process does it alone; nothing waits for it. At most ``max_megabytes`` of maps are in memory at a time,
    which is checked before the first batch.

    Args:
        run: Where the maps go, ``captures/step-<step>.safetensors`` with ``examples.json`` beside them.
        examples: How many (spread evenly over the set by length), or which (indices into the set).
        evaluation: Evaluation set to choose from; None for the task's first.
        max_megabytes: Bound on the maps of one moment, in units of 10^6 bytes.
        reference: In the analysis of a finished checkpoint, the model whose maps are written as step 0.

    Raises:
        UserError: If an example does not exist, or the maps would not fit in ``max_megabytes``.
    """

    def __init__(
        self,
        run: Run,
        examples: int | Sequence[int] = 4,
        evaluation: str | None = None,
        max_megabytes: float = 64,
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
        if trainer.global_step == 0:
            # The first process alone runs the model here, which it can where the weights are whole.
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
            assert isinstance(pl_module, SequenceClassifier)
            self._write(trainer, pl_module, current_step(trainer, pl_module))

    def _prepare(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        assert isinstance(pl_module, SequenceClassifier)
        name = self.evaluation or data.evaluation_names[0]
        dataset = data.evaluation_dataset(name)
        positions = self._positions(dataset.lengths)
        batch = dataset[positions]
        encoder = describe(pl_module.model)
        square = int(batch.lengths_B.max()) ** 2
        needed = len(positions) * encoder.num_layers * encoder.num_heads * square * _BYTES / 1e6
        if needed > self.max_megabytes:
            raise UserError(
                f"Capturing {len(positions)} examples needs {needed:.0f} MB of memory, more than "
                f"callbacks.capture.max_megabytes={self.max_megabytes:g}; choose fewer or shorter examples, or raise it."
            )
        self._batch = batch
        if trainer.is_global_zero:
            write_examples(
                self.run.captures,
                [
                    CapturedExample(
                        index=dataset.examples[position].index,
                        tokens=data.tokens(batch.input_ids_BS[row][batch.attention_mask_BS[row].bool()]),
                        texts=list(dataset.examples[position].texts),
                        label=data.label_name(dataset.examples[position].label),
                    )
                    for row, position in enumerate(positions)
                ],
            )

    def _positions(self, lengths: Sequence[int]) -> list[int]:
        if isinstance(self.examples, int):
            if self.examples < 1:
                raise UserError(f"callbacks.capture.examples is {self.examples}; expected a number from 1 or a list.")
            order = sorted(range(len(lengths)), key=lambda position: (lengths[position], position))
            count = min(self.examples, len(order))
            # The middle of each of `count` equal parts: typical short, medium and long examples, no extremes.
            return [order[(2 * part + 1) * len(order) // (2 * count)] for part in range(count)]
        for position in self.examples:
            if not 0 <= position < len(lengths):
                raise UserError(
                    f"callbacks.capture.examples names example {position}; the set has 0 to {len(lengths) - 1}."
                )
        return list(self.examples)

    def _write(self, trainer: pl.Trainer, pl_module: pl.LightningModule, step: int) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        if trainer.is_global_zero:
            self._save(pl_module.model, pl_module.device, step, self.run.captures)

    def _save(self, model: PreTrainedModel, device: torch.device, step: int, folder: Path) -> None:
        assert self._batch is not None
        batch = self._batch.to(device)
        maps = capture(model, batch.inputs())
        write_maps(folder, step_name(step), dict(zip(batch.index_B.tolist(), maps, strict=True)))
