"""Measures relation-specific heads on FrameNet's sentences, or on those of the task where they are annotated."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytorch_lightning as pl
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from bertsecrets.attention.capture import capture
from bertsecrets.callbacks.measures import MakeMeasure, MeasureHeads
from bertsecrets.callbacks.stage import shows_progress
from bertsecrets.data.batch import Batch
from bertsecrets.data.framenet.selection import Selection
from bertsecrets.data.framenet.source import FrameNetSource
from bertsecrets.data.module import TaskData, sample_positions
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import Feed
from bertsecrets.measures.frame_relations import FrameRelations
from bertsecrets.measures.links import fixed_offsets, links_of
from bertsecrets.results.relations import FILE, HeadMap, RelationExample, RelationRecord
from bertsecrets.results.run import INITIAL, Run

_SHOWN = 3
_BATCH = 64


_log = logging.getLogger(__name__)


class MeasureFrameRelations(MeasureHeads):
    """Feeds the measure of frame relations, and keeps what a reader needs to judge it.

    Args:
        measures: Name -> factory; ``frame_relations`` among them.
        run: Where everything goes; ``frame_relations.json`` beside the head table.
        framenet: The ``framenet`` section of the configuration. Without ``root`` and ``published``, the evaluation
            set's own annotation.
        required: Whether a task without frames, and no FrameNet given, is an error; else the measure is left out there.
        example: Text of the sentence to show; where it is not among the sentences, the first one that has a link.
        reference, evaluation, every_n_validations, wandb_columns, beside, random: As for :class:`MeasureHeads`.

    Raises:
        UserError: If the section is not valid, its files are missing, or no sentence has a link.
    """

    def __init__(
        self,
        measures: Mapping[str, MakeMeasure],
        run: Run,
        framenet: Mapping[str, Any],
        example: str = "",
        required: bool = True,
        reference: PreTrainedModel | None = None,
        evaluation: str | None = None,
        every_n_validations: int | None = 1,
        wandb_columns: Sequence[str] = ("weight", "over_position"),
        beside: Sequence[str] = (),
        random: Callable[[], PreTrainedModel] | None = None,
    ) -> None:
        super().__init__(measures, run, reference, evaluation, every_n_validations, wandb_columns, beside, random)
        self.source = FrameNetSource.from_config(framenet)
        self.example = example
        self.required = required
        self._selection: Selection | None = None
        self._encoded: EncodedSplit | None = None
        self._example_at = 0
        self._visible = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._visible = shows_progress(trainer)
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not self.required and not self.source.given and not _has_frames(super().dataset(data)):
            _log.info(
                f"Task {data.task.name} has no frames and framenet.root is not given: relation heads are left out."
            )
            self.makers = {}
        super().setup(trainer, pl_module, stage)

    def dataset(self, data: TaskData) -> EncodedSplit:
        """FrameNet's sentences, read once; without FrameNet those of the evaluation set."""
        if not self.source.given:
            return super().dataset(data)
        if self._encoded is None:
            self._selection = self.source.load(self._visible)
            multiple = data.config.pad_to_multiple_of
            self._encoded = EncodedSplit(
                self._selection.examples, data.tokenizer, data.max_length, pad_to_multiple_of=multiple
            )
        return self._encoded

    def loader(self, data: TaskData, feed: Feed) -> DataLoader[Batch]:
        """Batches of the sentences."""
        if not self.source.given:
            return super().loader(data, feed)
        dataset = self.dataset(data)
        return data.loader_of(dataset, sample_positions(len(dataset), feed.max_examples, feed.seed))

    def take(self, trainer: pl.Trainer, model: nn.Module) -> list[HeadGrid]:
        """The grids; writes the record beside them."""
        grids = super().take(trainer, model)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        for measure, grid in zip(self.measures, grids, strict=True):
            if isinstance(measure, FrameRelations):
                record = self._record(data, measure, grid, model)
                self.run.write_json(self.run.folder / FILE, record.as_dict())
        return grids

    def _compare(self, trainer: pl.Trainer, model: nn.Module, other: str, stage: str, step: int) -> list[HeadGrid]:
        """Beside the numbers, the sentence as the model before fine-tuning attends in it."""
        grids = super()._compare(trainer, model, other, stage, step)
        if other == INITIAL and self.run.writes:
            assert isinstance(self.reference, nn.Module)
            data = trainer.datamodule  # type: ignore[attr-defined]
            for measure, grid in zip(self.measures, grids, strict=True):
                record = RelationRecord.read(self.run.folder)
                if isinstance(measure, FrameRelations) and record is not None:
                    example = self._shown(data, measure, grid, self.reference, self._example_at)
                    self.run.write_json(self.run.folder / FILE, replace(record, initial=example).as_dict())
        return grids

    def _record(self, data: TaskData, measure: FrameRelations, grid: HeadGrid, model: nn.Module) -> RelationRecord:
        dataset = self.dataset(data)
        offsets: Counter[int] = Counter()
        total, shown = 0, None
        for start in range(0, len(dataset), _BATCH):
            batch = dataset[range(start, min(start + _BATCH, len(dataset)))]
            links = links_of(batch, measure.pairs, measure.direction, measure.matching)
            offsets += fixed_offsets(links)
            total += len(links)
            for link in links:
                wanted = dataset.examples[start + link.row].texts[0].strip() == self.example
                shown = start + link.row if shown is None or wanted else shown
        if shown is None:
            raise UserError(
                "No sentence has a frame with an element to link to its target; name annotated sentences with "
                "framenet.root=<folder of FrameNet> or take a demo task."
            )
        self._example_at = shown
        settings = {
            "pairs": measure.pairs,
            "direction": measure.direction,
            "matching": measure.matching,
            "permutations": measure.permutations,
        }
        return RelationRecord(
            source=self.source.name if self.source.given else f"the annotation of task {data.task.name}",
            settings=settings,
            remaining={} if self._selection is None else self._selection.remaining,
            links=total,
            offsets=dict(sorted(offsets.items())),
            example=self._shown(data, measure, grid, model, shown),
        )

    def _shown(
        self, data: TaskData, measure: FrameRelations, grid: HeadGrid, model: nn.Module, position: int
    ) -> RelationExample:
        dataset = self.dataset(data)
        batch = dataset[[position]]
        links = links_of(batch, measure.pairs, measure.direction, measure.matching)
        map_LHQK = capture(model, batch.to(next(model.parameters()).device).inputs())[0]
        weight_LH = np.nan_to_num(grid.column("weight").numpy(), nan=-1.0)
        highest = [divmod(int(place), weight_LH.shape[1]) for place in np.argsort(-weight_LH, axis=None)[:_SHOWN]]
        real_S = batch.attention_mask_BS[0].bool()
        # Maps are cropped to real tokens; with padding on the left the pairs move along.
        first = int(real_S.nonzero()[0])
        return RelationExample(
            text=" / ".join(dataset.examples[position].texts),
            tokens=data.tokens(batch.input_ids_BS[0][real_S]),
            pairs=[(query - first, key - first) for link in links for query, key in link.pairs],
            maps=[HeadMap(layer, head, map_LHQK[layer, head].tolist()) for layer, head in highest],
        )


def _has_frames(dataset: EncodedSplit) -> bool:
    return any(annotation.frames for example in dataset.examples for annotation in example.annotations)
