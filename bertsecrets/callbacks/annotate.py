"""Samples attention maps for people to label."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytorch_lightning as pl
from torch import Tensor
from transformers import PreTrainedModel

from bertsecrets.attention.capture import capture
from bertsecrets.callbacks.stage import shows_progress
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import TaskData
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.labels import read_labels
from bertsecrets.patterns.likely import likely_patterns
from bertsecrets.patterns.maps import MapRow, MapSet
from bertsecrets.patterns.page import write_page
from bertsecrets.patterns.rules import Rules
from bertsecrets.patterns.sampling import choose_examples, choose_heads, choose_likely
from bertsecrets.patterns.segments import first_segments
from bertsecrets.patterns.sheets import check_free, write_sheets
from bertsecrets.patterns.trained import load_classifier
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import CHECKPOINT, INITIAL, Run

STAGES = (INITIAL, CHECKPOINT)
_BATCH = 16
_log = logging.getLogger(__name__)


class SampleMaps(pl.Callback):
    """Adds maps of a finished checkpoint to an annotation folder and draws its contact sheets and page anew.

    The heads with the fewest maps in the folder come first, so that any number of runs that go into one folder leave
    it stratified over heads, and over tasks if each adds as many. The first process does it alone.

    Args:
        run: Gives the maps their names.
        reference: The model before fine-tuning.
        folder: The annotation folder; None for ``patterns/`` in the run's folder.
        maps: How many to add.
        stages: ``initial`` (before fine-tuning) and ``checkpoint``, dealt out to the maps in turn.
        min_length, max_length: Bounds on the examples' tokens, special tokens included; both inclusive.
        evaluation: Evaluation set; None for the task's first.
        passes: How many passes get sheets.
        patterns: Take only maps that may show one of these, by the shipped classifier or the rules, the patterns in
            turn and for each all heads that have it; None for maps whatever they show.
        examples: How many examples are searched for ``patterns``.
        seed: Of what is chosen.

    Raises:
        UserError: If a setting is wrong, or labels written beside the folder's sheets would be lost.
    """

    def __init__(
        self,
        run: Run,
        reference: PreTrainedModel,
        folder: str | None = None,
        maps: int = 72,
        stages: Sequence[str] = STAGES,
        min_length: int = 8,
        max_length: int = 64,
        evaluation: str | None = None,
        passes: int = 2,
        patterns: Sequence[str] | None = None,
        examples: int = 100,
        seed: int = 0,
    ) -> None:
        counts = {"maps": maps, "min_length": min_length, "passes": passes, "examples": examples}
        for name, value in counts.items():
            if type(value) is not int or value < 1:
                raise UserError(f"labelling.{name} is {value!r}; expected a whole number from 1.")
        if type(max_length) is not int or max_length < min_length:
            raise UserError(f"labelling.max_length is {max_length!r}; expected a whole number from {min_length}.")
        if not stages:
            raise UserError(f"labelling.stages names no stage; choose from {', '.join(STAGES)}.")
        for stage in stages:
            if stage not in STAGES:
                raise UserError(f"Unknown stage '{stage}' in labelling.stages; {choices(stage, STAGES)}.")
        for pattern in patterns or ():
            if pattern not in PATTERNS:
                raise UserError(f"Unknown pattern '{pattern}' in labelling.patterns; {choices(pattern, PATTERNS)}.")
        self.run = run
        self.reference = reference
        self.folder = run.folder / "patterns" if folder is None else Path(folder)
        self.maps = maps
        self.stages = tuple(stages)
        self.min_length, self.max_length = min_length, max_length
        self.evaluation = evaluation
        self.passes = passes
        self.patterns = None if patterns is None else tuple(patterns)
        self.examples = examples
        self.seed = seed
        check_free(self.folder / "sheets", read_labels(self.folder))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, SequenceClassifier)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        known = MapSet.read(self.folder)
        rows, maps = self.sample(pl_module, data.evaluation_dataset(self._set(data)), known, shows_progress(trainer))
        both = known.add(rows, maps)
        both.write(self.folder)
        for number in range(1, self.passes + 1):
            write_sheets(self.folder / "sheets" / f"pass{number}", both, both.names, number)
        write_page(self.folder / "annotate.html", both, both.names, range(1, self.passes + 1))
        _log.info(
            f"{self.folder} holds {len(both.rows)} maps: label them in annotate.html or on the sheets, and take the labels "
            f"back with labelling.folder={self.folder} labelling.labels=<file>."
        )

    def _set(self, data: TaskData) -> str:
        name = self.evaluation or data.evaluation_names[0]
        if name not in data.evaluation_names:
            raise UserError(
                f"Unknown evaluation set '{name}' of task '{data.task.name}'; {choices(name, data.evaluation_names)}."
            )
        return name

    def sample(
        self, module: SequenceClassifier, dataset: EncodedSplit, known: MapSet, visible: bool = False
    ) -> tuple[list[MapRow], dict[str, Tensor]]:
        """The maps to add to those already known, and where each comes from."""
        if self.patterns is not None:
            return self._sought(self.patterns, module, dataset, known, visible)
        encoder = describe(module.model)
        taken = [(row.layer, row.head) for row in known.rows]
        heads = choose_heads(self.maps, encoder.num_layers, encoder.num_heads, taken, self.seed)
        positions = choose_examples(self.maps, dataset.lengths, self.min_length, self.max_length, self.seed)
        rows: list[MapRow] = []
        maps: dict[str, Tensor] = {}
        with progress_over(len(self.stages), "maps", visible=visible) as advance:
            for turn, stage in enumerate(self.stages):
                mine = range(turn, self.maps, len(self.stages))
                for i, all_LHQQ, batch, place in self._captured(module, dataset, stage, mine, positions):
                    row = self._row(stage, *heads[i], batch, place, len(dataset.examples[positions[i]].texts))
                    rows.append(row)
                    maps[row.map] = all_LHQQ[row.layer, row.head].half()
                advance()
        return rows, maps

    def _sought(
        self, patterns: Sequence[str], module: SequenceClassifier, dataset: EncodedSplit, known: MapSet, visible: bool
    ) -> tuple[list[MapRow], dict[str, Tensor]]:
        """Maps that may show some patterns, out of all heads and ``examples`` examples."""
        classifier, rules, taken = load_classifier(), Rules(), set(known.names)
        count = min(self.examples, len(dataset.lengths))
        # Examples repeat where fewer are as long; each is searched once.
        chosen = choose_examples(count, dataset.lengths, self.min_length, self.max_length, self.seed)
        positions = list(dict.fromkeys(chosen))
        found: list[tuple[MapRow, Tensor, set[str]]] = []
        with progress_over(len(self.stages), "stages searched", visible=visible) as advance:
            for stage in dict.fromkeys(self.stages):
                for i, all_LHQQ, batch, place in self._captured(
                    module, dataset, stage, range(len(positions)), positions
                ):
                    special_S, real_S = batch.special_BS[place], batch.attention_mask_BS[place].bool()
                    first_segment = int(first_segments(special_S[None], real_S[None]))
                    likely = likely_patterns(classifier, rules, all_LHQQ.flatten(0, 1), first_segment)
                    for n, shown in enumerate(likely):
                        if shown & set(patterns):
                            head = divmod(n, all_LHQQ.shape[1])
                            row = self._row(stage, *head, batch, place, len(dataset.examples[positions[i]].texts))
                            if row.map not in taken:
                                found.append((row, all_LHQQ[head].half(), shown))
                advance()
        candidates = [((row.layer, row.head), shown) for row, _, shown in found]
        sought = choose_likely(self.maps, candidates, patterns, self.seed)
        rows = [replace(found[n][0], sought=pattern) for n, pattern in sought]
        if len(rows) < self.maps:
            _log.warning(
                f"Only {len(rows)} of the {self.maps} maps asked for were found in {len(positions)} examples; search more with "
                "labelling.examples, or other tasks."
            )
        return rows, {found[n][0].map: found[n][1] for n, _ in sought}

    def _captured(
        self,
        module: SequenceClassifier,
        dataset: EncodedSplit,
        stage: str,
        members: Iterable[int],
        positions: Sequence[int],
    ) -> Iterator[tuple[int, Tensor, Batch, int]]:
        """Each member with its maps ``[L, H, Q, Q]``, the batch that it came in and its place there."""
        model = module.model if stage == CHECKPOINT else self.reference.to(device=module.device)  # type: ignore[call-arg]
        # By length, so that little is padded.
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
        # The first special token behind the one that begins the sequence.
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
