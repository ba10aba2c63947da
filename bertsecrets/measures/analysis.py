"""Any number of measures of every head, in one pass over the examples."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertsecrets.analysis import Analysis, Batches, Context, Findings, SplitBatches
from bertsecrets.attention.override import mean_head_outputs
from bertsecrets.data.module import sample_positions
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import BACKWARD, OF_LOSS, Feed, Measure, Need
from bertsecrets.measures.one_pass import KeptMaps, check_needs, measure_pass
from bertsecrets.measures.paired import Paired
from bertsecrets.models.encoder import evaluating, unwrap
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import INITIAL, RANDOM, difference_stage

_log = logging.getLogger(__name__)

COMPARABLE = (INITIAL, RANDOM)
"""The models that a measure can be compared with."""


@dataclass(frozen=True)
class Watched:
    """A measure to compute, and how often.

    Args:
        make: Builds the measure from the numbers of layers and heads.
        every_n_validations: Compute it at every n-th validation and at the last; None for the last only.
        tracked: Columns logged to W&B as a scalar for each head and a heatmap; None for the measure's own choice.
    """

    make: Callable[[int, int], Measure]
    every_n_validations: int | None = 1
    tracked: tuple[str, ...] | None = None

    def is_due(self, context: Context) -> bool:
        """Whether to compute it at this validation."""
        every = self.every_n_validations
        return context.last or (every is not None and context.validation % every == 0)


class MeasureAnalysis(Analysis):
    """Compute measures of every head, in one pass over the examples and with one reference model.

    Measuring does not affect the random numbers of training steps.

    Args:
        measures: The measures.
        evaluation: Evaluation set to measure on; None for the task's first.
        compare_with: Models to compare every measure with at the last validation, head by head and example by example:
            ``initial``, the model before fine-tuning, and ``random``, one with random weights. A model trained from
            random weights is compared only with ``initial``; with ``reference_name``, nothing is compared with
            ``initial``.
        random: Builds the model with random weights; needed for ``compare_with=[random]``.
        masked_lm: Loads the pre-trained model with its masked-language-model head; needed for measures of that head.
        reference_name: Name of the reference if it is not the model before fine-tuning.

    Raises:
        UserError: If ``evaluation`` or a model of ``compare_with`` does not exist, two measures share a name, or a
            measure's needs are not met.
    """

    def __init__(
        self,
        measures: Sequence[Watched],
        evaluation: str | None = None,
        compare_with: Sequence[str] = (),
        random: Callable[[], PreTrainedModel] | None = None,
        masked_lm: Callable[[], PreTrainedModel] | None = None,
        reference_name: str | None = None,
    ) -> None:
        super().__init__(evaluation)
        for name in compare_with:
            if name not in COMPARABLE:
                raise UserError(f"compare_with lists the model '{name}'; {choices(str(name), COMPARABLE)}.")
        if RANDOM in compare_with and random is None:
            raise UserError("compare_with lists the model 'random', which cannot be built here; remove it.")
        if INITIAL in compare_with and reference_name is not None:
            warnings.warn(
                f"reference is '{reference_name}', so nothing is compared with the model before fine-tuning "
                "(compare_with=[initial]).",
                stacklevel=2,
            )
        self.watched = tuple(measures)
        self.compare_with = tuple(name for name in compare_with if name != INITIAL or reference_name is None)
        self.random = random
        self.masked_lm = masked_lm
        self.reference_name = reference_name
        self.taken: list[tuple[Watched, Measure]] = []
        self._checked = False
        self.grids: dict[str, HeadGrid] = {}
        """What was measured last, by the measures' names."""
        self._sample: int | None = None
        self._reference_maps = KeptMaps()

    @property
    def experiments(self) -> Sequence[Experiment]:
        return [measure for _, measure in self.taken]

    def needs_reference(self, context: Context) -> bool:
        needs_it = any(Need.REFERENCE in measure.needs for measure in self.made(context))
        return needs_it or INITIAL in self.compare_with

    def made(self, context: Context) -> list[Measure]:
        """The measures that the examples support, built once.

        Raises:
            UserError: If two share a name.
        """
        for watched in () if self.taken else self.watched:
            measure = watched.make(context.encoder.num_layers, context.encoder.num_heads)
            reason = None if context.source is None else measure.inapplicable(context.source)
            if reason is not None:
                if context.is_first:
                    _log.info(reason)
            elif any(measure.name == earlier.name for _, earlier in self.taken):
                raise UserError(f"Two measures are called '{measure.name}'; rename or remove one of them.")
            else:
                self.taken.append((watched, measure))
        return [measure for _, measure in self.taken]

    def check(self, context: Context) -> None:
        super().check(context)
        if self._checked:
            # The validation after training reuses measures that were already prepared and computed.
            return
        self._checked = True
        for measure in self.made(context):
            split = self.examples(context, measure)
            annotated = isinstance(split, EncodedSplit) and bool(split.examples[0].annotations)
            check_needs([measure], context.references, annotated=annotated)
            if Need.MASKED_LM in measure.needs and self.masked_lm is not None:
                measure.take_head(self.masked_lm())
            if Need.REFERENCE in measure.needs and self.reference_name is not None:
                measure.compares_with(self.reference_name)
            if isinstance(split, EncodedSplit):
                measure.prepare(split)

    def is_due(self, context: Context) -> bool:
        return any(watched.is_due(context) for watched, _ in self.taken)

    def examples(self, context: Context, measure: Measure) -> EncodedSplit:
        """The examples on which a measure is computed."""
        own = None if context.source is None else measure.dataset(context.source, progress=context.progress)
        if own is not None:
            return own
        # A loss is that of an example, but attention stays within a row.
        return context.split if measure.needs & OF_LOSS else context.split.by_row or context.split

    def _batches(self, context: Context, measure: Measure) -> Batches:
        """Batches of this process's share of those examples."""
        feed, split = measure.feed, self.examples(context, measure)
        count = min((size for size in (feed.max_examples, context.sample) if size is not None), default=None)
        if split is not context.split:
            positions = sample_positions(len(split), count, feed.seed)
            if context.source is None:
                return SplitBatches(split, context.batch_size, positions)
            return context.source.loader_of(split, positions)
        return context.batches(count, feed.seed, feed.max_length, feed.pad_to)

    def run(self, context: Context) -> Iterator[Findings]:
        due = [(watched, measure) for watched, measure in self.taken if watched.is_due(context)]
        measures = [measure for _, measure in due]
        init = None if context.output is None else context.output.init
        others = [name for name in self.compare_with if name != RANDOM or init != RANDOM_INIT]
        references = dict(context.references)
        if RANDOM in others and context.last:
            assert self.random is not None
            references[RANDOM] = context.placed(self.random().requires_grad_(False))
        pairs = [
            Paired(measure, reference)
            for reference in (others if context.last else ())
            for measure in measures
            if not measure.needs & (BACKWARD | {Need.REFERENCE, Need.VALUES})
        ]
        # If the weights are the same, keep the previous numbers.
        standing = self.grids if context.unchanged and context.sample == self._sample else {}
        grids = self.grids = self._take(context, measures, pairs, references, standing)
        self._sample = context.sample
        for watched, measure in due:
            grid = grids[measure.name]
            # Loggers already have the kept numbers.
            fresh = grid is not standing.get(measure.name)
            yield Findings(
                measure,
                [grid],
                measure.found(grid, context.model),
                tracked=[grid.only(_tracked(measure, grid, watched))] if fresh else [],
                scalars=_means(grid) if fresh else {},
            )
        initial = references.get(INITIAL)
        for pair in pairs:
            reference, difference = pair.grids()
            rows: Sequence[object] = ()
            if pair.reference == INITIAL and initial is not None:
                rows = pair.measure.found(pair.measure.compute(), initial)
            yield Findings(pair.partner, [reference], rows, moment=(pair.reference, 0))
            stage = difference_stage(context.stage, pair.reference)
            yield Findings(pair.partner, [difference], moment=(stage, context.step))

    def _take(
        self,
        context: Context,
        measures: Sequence[Measure],
        pairs: Sequence[Paired],
        references: dict[str, nn.Module],
        standing: dict[str, HeadGrid],
    ) -> dict[str, HeadGrid]:
        """The grids of measures by name; a measure without comparisons is not recomputed if its grid is still valid."""
        # On a GPU a pass takes less time than copying its maps would.
        kept_maps = {INITIAL: self._reference_maps} if context.device.type == "cpu" else {}
        groups: dict[tuple[int, Feed], list[Measure]] = {}
        for measure in measures:
            groups.setdefault((id(self.examples(context, measure)), measure.feed), []).append(measure)
        grids = dict(standing)
        for group in groups.values():
            paired = [pair for pair in pairs if any(pair.partner is measure for measure in group)]
            if not paired and all(measure.name in grids for measure in group):
                continue
            batches = self._batches(context, group[0])
            with progress_over(len(batches), "measuring heads", visible=context.progress) as advance:
                fresh = measure_pass(
                    context.model,
                    [*group, *paired],
                    batches,
                    references=references,
                    context=context.autocast,
                    progress=advance,
                    means_LHd=self._means_of_outputs(context, group),
                    kept=kept_maps,
                )
            grids.update((grid.measure, grid) for grid in fresh[: len(group)])
        return {measure.name: grids[measure.name] for measure in measures}

    def _means_of_outputs(self, context: Context, measures: Sequence[Measure]) -> Tensor | None:
        """The heads' mean outputs over training examples, if a measure needs them."""
        count = max((measure.reference_examples for measure in measures), default=0)
        if not count:
            return None
        network = unwrap(context.model)
        with evaluating(network), context.autocast():
            batches = context.data.training_sample(count)
            return mean_head_outputs(network, (batch.to(context.device).inputs() for batch in batches))


def _means(grid: HeadGrid) -> dict[str, float]:
    """The means over heads of a grid's columns, for loggers."""
    return {
        f"{grid.measure}/{column.name}/mean": grid.column(column.name).nanmean().item()
        for column in grid.described
        if column.role != "p_value"
    }


def _tracked(measure: Measure, grid: HeadGrid, watched: Watched) -> tuple[str, ...]:
    """The columns of a grid that are logged to W&B."""
    names = measure.tracked if watched.tracked is None else watched.tracked
    return grid.columns[:1] if names is None else tuple(name for name in grid.columns if name in names)
