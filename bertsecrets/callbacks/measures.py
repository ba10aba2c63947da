"""Take measures of every head at validation time."""

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from bertsecrets.attention.override import mean_head_outputs
from bertsecrets.callbacks.trainer_state import (
    current_step,
    data_of,
    is_last_validation,
    log_grids,
    shows_progress,
    stage_of,
)
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import sample_positions
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import BACKWARD, Feed, Measure, Need
from bertsecrets.measures.one_pass import KeptMaps, check_needs, measure_pass
from bertsecrets.measures.paired import Paired
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe, evaluating, unwrap
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import INITIAL, RANDOM, Run, difference_stage

_log = logging.getLogger(__name__)

COMPARABLE = (INITIAL, RANDOM)
"""The models that a measure can be compared with."""


@dataclass(frozen=True)
class Watched:
    """A measure to take, and how often.

    Args:
        make: Builds the measure from the numbers of layers and heads.
        every_n_validations: Take it at every n-th validation and at the last; None for the last only.
        tracked: Columns logged to W&B as a scalar for each head and a heatmap; None for the measure's own choice.
    """

    make: Callable[[int, int], Measure]
    every_n_validations: int | None = 1
    tracked: tuple[str, ...] | None = None


class MeasureHeads(pl.Callback):
    """Take any number of measures at every validation, in one pass over the examples and with one reference model.

    Training is not affected: the model returns to its mode, and no random number of a training step depends on what is
    measured between steps. Any number of processes gives the grids of one.

    Args:
        measures: The measures.
        run: The run to write the grids to.
        reference: The model before fine-tuning; None for the model as it is before the first training step.
        evaluation: Evaluation set to measure on; None for the task's first.
        compare_with: Models to compare every measure with at the last validation, head by head and example by example:
            ``initial``, the model before fine-tuning, and ``random``, one with random weights. A model that was
            trained from random weights is compared with ``initial`` only, and none with ``initial`` where
            ``reference_name`` is given.
        random: Builds the model with random weights; needed for ``compare_with=[random]``.
        masked_lm: Loads the pre-trained model with its masked-language-model head; needed for measures of that head.
        reference_name: What the reference is called where it is not the model before fine-tuning.

    Raises:
        UserError: If ``evaluation`` or a model of ``compare_with`` does not exist, two measures share a name, or a
            measure's needs are not met.
    """

    def __init__(
        self,
        measures: Sequence[Watched],
        run: Run,
        reference: PreTrainedModel | None = None,
        evaluation: str | None = None,
        compare_with: Sequence[str] = (),
        random: Callable[[], PreTrainedModel] | None = None,
        masked_lm: Callable[[], PreTrainedModel] | None = None,
        reference_name: str | None = None,
    ) -> None:
        for name in compare_with:
            if name not in COMPARABLE:
                raise UserError(f"compare_with names the model '{name}'; {choices(str(name), COMPARABLE)}.")
        if RANDOM in compare_with and random is None:
            raise UserError("compare_with names the model 'random', which cannot be built here; leave it out.")
        left_out = {RANDOM} if run.init == RANDOM_INIT else set()
        if INITIAL in compare_with and reference_name is not None:
            rank_zero_warn(
                f"reference is '{reference_name}', so nothing is compared with the model before fine-tuning "
                "(compare_with=[initial])."
            )
            left_out.add(INITIAL)
        self.watched = tuple(measures)
        self.run = run
        self.reference: nn.Module | None = reference
        self.evaluation = evaluation
        self.compare_with = tuple(name for name in compare_with if name not in left_out)
        self.random = random
        self.masked_lm = masked_lm
        self.reference_name = reference_name
        self.taken: list[tuple[Watched, Measure]] = []
        self.grids: list[HeadGrid] = []
        self._validations = 0
        self._reference_maps = KeptMaps()
        self._step: int | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        data = data_of(trainer)
        data.check_evaluation(self.evaluation)
        if self.taken:
            # The validation after a training: its measures hold what that prepared and took.
            return
        encoder = describe(pl_module.model)
        for watched in self.watched:
            measure = watched.make(encoder.num_layers, encoder.num_heads)
            reason = measure.inapplicable(data)
            if reason is not None:
                rank_zero_info(reason)
            elif any(measure.name == earlier.name for _, earlier in self.taken):
                raise UserError(f"Two measures are called '{measure.name}'; rename one of them or leave it out.")
            else:
                self.taken.append((watched, measure))
        measures = [measure for _, measure in self.taken]
        compares = INITIAL in self.compare_with or any(Need.REFERENCE in measure.needs for measure in measures)
        if self.reference is None and compares:
            # Copied before a checkpoint is restored: a resumed run needs the same reference.
            self.reference = deepcopy(pl_module.model).requires_grad_(False)
        if self.reference is not None:
            self.reference.eval()
        for measure in measures:
            split = self.examples(trainer, measure)
            check_needs([measure], self._references(), annotated=bool(split.examples[0].annotations))
            if Need.MASKED_LM in measure.needs and self.masked_lm is not None:
                measure.take_head(self.masked_lm())
            if Need.REFERENCE in measure.needs and self.reference_name is not None:
                measure.compares_with(self.reference_name)
            measure.prepare(split)
        self.run.declare(*(measure.declaration() for measure in measures))

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.reference is not None:
            self.reference = trainer.precision_plugin.convert_module(self.reference).to(pl_module.device)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._validations += 1
        last = is_last_validation(trainer)
        due = [(watched, measure) for watched, measure in self.taken if last or self._is_due(watched)]
        if not due:
            return
        assert isinstance(pl_module, SequenceClassifier)
        step, stage = current_step(trainer), stage_of(trainer)
        measures = [measure for _, measure in due]
        compared = self.compare_with if last else ()
        # The weights of the last validation again: its numbers stand.
        taken = self.grids if pl_module.is_scored and step == self._step else []
        self.grids = self._take(trainer, pl_module.model, measures, compared, stage, step, taken)
        self._step = step
        # Loggers have the numbers that stand.
        fresh = [
            (pair, grid) for pair, grid in zip(due, self.grids, strict=True) if not any(grid is old for old in taken)
        ]
        means = {
            f"{grid.measure}/{column.name}/mean": grid.column(column.name).nanmean().item()
            for _, grid in fresh
            for column in grid.described
            if column.role != "p_value"
        }
        for logger in trainer.loggers:
            logger.log_metrics(means, step=step)
        for (watched, measure), grid in fresh:
            log_grids(trainer, [grid.only(_tracked(measure, grid, watched))], step, measure)

    def _is_due(self, watched: Watched) -> bool:
        every = watched.every_n_validations
        return every is not None and self._validations % every == 0

    def _references(self) -> dict[str, nn.Module]:
        return {} if self.reference is None else {INITIAL: self.reference}

    def examples(self, trainer: pl.Trainer, measure: Measure) -> EncodedSplit:
        """The examples that a measure is taken on."""
        data = data_of(trainer)
        examples = measure.dataset(data, progress=shows_progress(trainer))
        return data.evaluation_dataset(data.check_evaluation(self.evaluation)) if examples is None else examples

    def _loader(self, trainer: pl.Trainer, measure: Measure) -> DataLoader[Batch]:
        """Batches of this process's share of those examples."""
        data, feed = data_of(trainer), measure.feed
        examples = measure.dataset(data)
        if examples is not None:
            return data.loader_of(examples, sample_positions(len(examples), feed.max_examples, feed.seed))
        return data.evaluation_loader(
            data.check_evaluation(self.evaluation),
            max_examples=feed.max_examples,
            max_length=feed.max_length,
            pad_to=feed.pad_to,
            seed=feed.seed,
        )

    def _take(
        self,
        trainer: pl.Trainer,
        model: nn.Module,
        measures: Sequence[Measure],
        compared: Sequence[str],
        stage: str,
        step: int,
        taken: Sequence[HeadGrid],
    ) -> list[HeadGrid]:
        """Add the grids of measures and of their comparisons with other models to the run; return those of the
        measures.

        Measures without comparisons whose grids are among ``taken`` are not taken again.
        """
        references = self._references()
        if RANDOM in compared:
            references[RANDOM] = self._random(trainer, model)
        pairs = [
            Paired(measure, reference)
            for reference in compared
            for measure in measures
            if not measure.needs & (BACKWARD | {Need.REFERENCE, Need.VALUES})
        ]
        grids = {grid.measure: grid for grid in taken}
        # On a GPU a pass takes less time than copying its maps would.
        on_cpu = next(unwrap(model).parameters()).device.type == "cpu"
        kept_maps = {INITIAL: self._reference_maps} if on_cpu else {}
        groups: dict[tuple[int, Feed], list[Measure]] = {}
        for measure in measures:
            groups.setdefault((id(measure.dataset(data_of(trainer))), measure.feed), []).append(measure)
        for group in groups.values():
            paired = [pair for pair in pairs if any(pair.partner is measure for measure in group)]
            if not paired and all(measure.name in grids for measure in group):
                continue
            loader = self._loader(trainer, group[0])
            with progress_over(len(loader), "measuring heads", visible=shows_progress(trainer)) as advance:
                fresh = measure_pass(
                    model,
                    [*group, *paired],
                    loader,
                    references=references,
                    context=trainer.precision_plugin.forward_context,
                    progress=advance,
                    means_LHd=self._means(trainer, model, group),
                    kept=kept_maps,
                )
            grids.update((grid.measure, grid) for grid in fresh[: len(group)])
        tables = [self.run.rows(grids[measure.name], stage, step) for measure in measures]
        for pair in pairs:
            reference, difference = pair.grids()
            tables.append(self.run.rows(reference, pair.reference, 0))
            tables.append(self.run.rows(difference, difference_stage(stage, pair.reference), step))
        self.run.add(*tables)
        for measure in measures:
            self.run.write_rows(measure.name, stage, step, measure.found(grids[measure.name], model))
        for pair in pairs:
            if pair.reference == INITIAL and self.reference is not None:
                found = pair.measure.found(pair.measure.compute(), self.reference)
                self.run.write_rows(pair.partner.name, INITIAL, 0, found)
        return [grids[measure.name] for measure in measures]

    def _means(self, trainer: pl.Trainer, model: nn.Module, measures: Sequence[Measure]) -> Tensor | None:
        """The heads' mean outputs over training examples, if a measure needs them."""
        count = max((measure.reference_examples for measure in measures), default=0)
        if not count:
            return None
        network = unwrap(model)
        device = next(network.parameters()).device
        with evaluating(network), trainer.precision_plugin.forward_context():
            batches = data_of(trainer).training_sample(count)
            return mean_head_outputs(network, (batch.to(device).inputs() for batch in batches))

    def _random(self, trainer: pl.Trainer, model: nn.Module) -> nn.Module:
        assert self.random is not None
        random = trainer.precision_plugin.convert_module(self.random().requires_grad_(False))
        return random.to(next(model.parameters()).device)

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validations = state_dict["validations"]


def _tracked(measure: Measure, grid: HeadGrid, watched: Watched) -> tuple[str, ...]:
    """The columns of a grid that are logged to W&B."""
    names = measure.tracked if watched.tracked is None else watched.tracked
    return grid.columns[:1] if names is None else tuple(name for name in grid.columns if name in names)
