"""Sample attention maps for annotators to label."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytorch_lightning as pl
from torch import Tensor
from transformers import PreTrainedModel

from bertsecrets.attention.watch import capture
from bertsecrets.callbacks.trainer_state import shows_progress
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.patterns.classifier import load_classifier
from bertsecrets.patterns.labelling.labels import read_labels
from bertsecrets.patterns.labelling.map_set import MapRow, MapSet
from bertsecrets.patterns.labelling.page_and_sheets import check_imported, write_page, write_sheets
from bertsecrets.patterns.labelling.rules import Rules
from bertsecrets.patterns.labelling.sampling import (
    choose_by_pattern,
    choose_examples,
    choose_heads,
    possible_patterns,
)
from bertsecrets.patterns.labelling.settings import LabellingSettings
from bertsecrets.patterns.segments import first_segments
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import CHECKPOINT, Run

_BATCH = 16
_log = logging.getLogger(__name__)


class SampleMaps(pl.Callback):
    """Add maps of a finished checkpoint to an annotation folder and rewrite its contact sheets and page.

    The heads with the fewest maps in the folder come first: runs that share a folder sample all heads about equally
    often. Only the first process samples.

    Args:
        run: The run; its name, task, model and initialisation go into the table of maps.
        reference: The model before fine-tuning.
        labelling: The ``labelling`` section.

    Raises:
        UserError: If new sheets would replace labels that were not imported.
    """

    def __init__(self, run: Run, reference: PreTrainedModel, labelling: LabellingSettings) -> None:
        self.run = run
        self.reference = reference
        self.settings = labelling
        self.folder = run.folder / "patterns" if labelling.folder is None else Path(labelling.folder)
        check_imported(self.folder / "sheets", read_labels(self.folder))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, SequenceClassifier)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        earlier = MapSet.read(self.folder)
        dataset = data.evaluation_dataset(self._set(data))
        rows, maps = self.sample(pl_module, dataset, earlier, shows_progress(trainer))
        all_maps = earlier.add(rows, maps)
        all_maps.write(self.folder)
        passes = range(1, self.settings.passes + 1)
        for number in passes:
            write_sheets(self.folder / "sheets" / f"pass{number}", all_maps, all_maps.names, number)
        write_page(self.folder / "annotate.html", all_maps, all_maps.names, passes)
        _log.info(
            f"{self.folder} holds {len(all_maps.rows)} maps: label them in annotate.html or on the sheets, then import the "
            f"labels with labelling.folder={self.folder} labelling.labels=<file>."
        )

    def _set(self, data: TaskData) -> str:
        name = self.settings.evaluation or data.evaluation_names[0]
        if name not in data.evaluation_names:
            raise UserError(
                f"Unknown evaluation set '{name}' of task '{data.task.name}'; {choices(name, data.evaluation_names)}."
            )
        return name

    def sample(
        self, module: SequenceClassifier, dataset: EncodedSplit, earlier: MapSet, visible: bool = False
    ) -> tuple[list[MapRow], dict[str, Tensor]]:
        """Sample maps; return their rows and weights.

        Args:
            module: The fine-tuned model.
            dataset: The evaluation set.
            earlier: Maps that the folder already holds.
            visible: Whether to show a progress bar.
        """
        if self.settings.patterns is not None:
            return self._sample_patterns(self.settings.patterns, module, dataset, earlier, visible)
        count, seed, stages = self.settings.maps, self.settings.seed, self.settings.stages
        encoder = describe(module.model)
        taken = [(row.layer, row.head) for row in earlier.rows]
        heads = choose_heads(count, encoder.num_layers, encoder.num_heads, taken, seed)
        positions = choose_examples(count, dataset.lengths, self.settings.min_length, self.settings.max_length, seed)
        rows: list[MapRow] = []
        maps: dict[str, Tensor] = {}
        with progress_over(len(stages), "maps", visible=visible) as advance:
            for turn, stage in enumerate(stages):
                members = range(turn, count, len(stages))
                for i, all_LHQQ, batch, place in self._captured(module, dataset, stage, members, positions):
                    row = self._row(stage, *heads[i], batch, place, len(dataset.examples[positions[i]].texts))
                    rows.append(row)
                    maps[row.map] = all_LHQQ[row.layer, row.head].half()
                advance()
        return rows, maps

    def _sample_patterns(
        self, patterns: Sequence[str], module: SequenceClassifier, dataset: EncodedSplit, earlier: MapSet, visible: bool
    ) -> tuple[list[MapRow], dict[str, Tensor]]:
        """Maps that may show some patterns, from all heads and ``settings.examples`` examples."""
        settings = self.settings
        classifier, rules, earlier_names = load_classifier(), Rules(), set(earlier.names)
        count = min(settings.examples, len(dataset.lengths))
        # Examples repeat if too few have such lengths; each is searched once.
        chosen = choose_examples(count, dataset.lengths, settings.min_length, settings.max_length, settings.seed)
        positions = list(dict.fromkeys(chosen))
        candidates: list[tuple[MapRow, Tensor, set[str]]] = []
        with progress_over(len(settings.stages), "stages searched", visible=visible) as advance:
            for stage in dict.fromkeys(settings.stages):
                for i, all_LHQQ, batch, place in self._captured(
                    module, dataset, stage, range(len(positions)), positions
                ):
                    special_S, real_S = batch.special_BS[place], batch.attention_mask_BS[place].bool()
                    first_segment = int(first_segments(special_S[None], real_S[None]))
                    possible = possible_patterns(classifier, rules, all_LHQQ.flatten(0, 1), first_segment)
                    for n, names in enumerate(possible):
                        if names & set(patterns):
                            head = divmod(n, all_LHQQ.shape[1])
                            row = self._row(stage, *head, batch, place, len(dataset.examples[positions[i]].texts))
                            if row.map not in earlier_names:
                                candidates.append((row, all_LHQQ[head].half(), names))
                advance()
        by_head = [((row.layer, row.head), names) for row, _, names in candidates]
        sampled = choose_by_pattern(settings.maps, by_head, patterns, settings.seed)
        rows = [replace(candidates[n][0], sought=pattern) for n, pattern in sampled]
        if len(rows) < settings.maps:
            _log.warning(
                f"{len(positions)} examples have only {len(rows)} of the {settings.maps} maps asked for; raise "
                "labelling.examples, or sample from other tasks."
            )
        return rows, {candidates[n][0].map: candidates[n][1] for n, _ in sampled}

    def _captured(
        self,
        module: SequenceClassifier,
        dataset: EncodedSplit,
        stage: str,
        members: Iterable[int],
        positions: Sequence[int],
    ) -> Iterator[tuple[int, Tensor, Batch, int]]:
        """Each member with its maps ``[L, H, Q, Q]``, its batch, and its place in the batch."""
        model = module.model if stage == CHECKPOINT else self.reference.to(device=module.device)  # type: ignore[call-arg]
        # Sorted by length for little padding.
        ordered = sorted(members, key=lambda i: dataset.lengths[positions[i]])
        for first in range(0, len(ordered), _BATCH):
            part = ordered[first : first + _BATCH]
            batch = dataset[[positions[i] for i in part]]
            captured = capture(model, batch.to(module.device).inputs())
            for place, i in enumerate(part):
                yield i, captured[place], batch, place

    def _row(self, stage: str, layer: int, head: int, batch: Batch, place: int, segments: int) -> MapRow:
        example = int(batch.index_B[place])
        special_S = batch.special_BS[place][batch.attention_mask_BS[place].bool()]
        # The first special token after the one that begins the sequence.
        later = special_S[1:].nonzero()
        return MapRow(
            map=f"{self.run.name}-{stage}-l{layer:02d}h{head:02d}-e{example}",
            task=self.run.task,
            model=self.run.model,
            init=self.run.init,
            stage=stage,
            layer=layer,
            head=head,
            example=example,
            length=len(special_S),
            segments=segments,
            separator=int(later[0]) + 1 if len(later) else -1,
        )
