"""Any number of measures of every head, in one pass over the examples."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn
from transformers import PreTrainedModel

from bertsecrets.analysis import Analysis, Context, Findings, SplitBatches
from bertsecrets.attention.override import mean_head_outputs
from bertsecrets.data.module import sample_positions
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError, choices
from bertsecrets.grid import HeadGrid
from bertsecrets.measures.base import BACKWARD, OF_LOSS, Feed, Measure, Need, Passed
from bertsecrets.measures.one_pass import check_needs, measure_pass
from bertsecrets.models.encoder import evaluating, unwrap
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import INITIAL, RANDOM, difference_stage

_log = logging.getLogger(__name__)

COMPARABLE = (INITIAL, RANDOM)
"""The models that a measure can be compared with."""


class PairedGrids(NamedTuple):
    """The grid of the other model, and the grid of the differences: the model minus the other."""

    other: HeadGrid
    difference: HeadGrid


class Paired(Measure):
    """A measure on another model, and the mean difference between the two models, paired by example.

    Both models see the same examples, so the comparison is paired: the standard error is small if the two numbers vary
    together. The other model's grid has all columns of the measure, including tests.

    Args:
        measure: Computes numbers from one model's maps; it must not need a reference itself. If it is fed in the same
            pass, before this one, its numbers are reused.
        other: Name of the other model, e.g. ``initial``.
    """

    def __init__(self, measure: Measure, other: str) -> None:
        if Need.REFERENCE in measure.needs:
            raise ValueError(f"measure '{measure.name}' compares two models itself and cannot be paired")
        self.name, self.title, self.columns = measure.name, measure.title, measure.averaged
        num_layers, num_heads, _ = measure.total_LHC.shape
        super().__init__(num_layers, num_heads)
        # Not registered as a submodule: the partner is moved and reset where it is fed.
        object.__setattr__(self, "partner", measure)
        # A copy has the same settings but separate sums.
        self.measure = deepcopy(measure)
        self.needs = measure.needs | {Need.REFERENCE}
        self.feed = measure.feed
        self.reference = other

    partner: Measure

    def update(self, passed: Passed) -> None:
        """Add one layer's maps of both models."""
        layer, batch = passed.layer, passed.batch
        assert passed.reference_BHQK is not None
        self.measure.update(Passed(layer, batch, passed.reference_BHQK))
        assert self.measure.added is not None
        other_BHC, added = self.measure.added.values_BHC, self.partner.added
        if other_BHC is None:
            return
        if added is not None and added.layer == layer and added.batch is batch and added.values_BHC is not None:
            value_BHC = added.values_BHC
        else:
            value_BHC = self.measure.per_example(passed.attention_BHQK, batch, None)
        self.add(layer, batch, value_BHC - other_BHC)

    def grids(self) -> PairedGrids:
        """The grids of the other model and of the differences, reduced over all processes."""
        return PairedGrids(self.measure.compute(), self.compute())

    def reset(self) -> None:
        """Forget all examples."""
        super().reset()
        self.measure.reset()


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
            tracked: list[HeadGrid] = []
            scalars: dict[str, float] = {}
            # Loggers already have the kept numbers.
            if grid is not standing.get(measure.name):
                names = measure.tracked if watched.tracked is None else watched.tracked
                names = grid.columns[:1] if names is None else tuple(name for name in grid.columns if name in names)
                tracked = [grid.only(names)]
                scalars = {
                    f"{grid.measure}/{column.name}/mean": grid.column(column.name).nanmean().item()
                    for column in grid.described
                    if column.role != "p_value"
                }
            yield Findings(measure, [grid], measure.found(grid, context.model), tracked=tracked, scalars=scalars)
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
        groups: dict[tuple[int, Feed], list[Measure]] = {}
        for measure in measures:
            groups.setdefault((id(self.examples(context, measure)), measure.feed), []).append(measure)
        grids = dict(standing)
        for group in groups.values():
            paired = [pair for pair in pairs if any(pair.partner is measure for measure in group)]
            if not paired and all(measure.name in grids for measure in group):
                continue
            split, feed = self.examples(context, group[0]), group[0].feed
            count = min((size for size in (feed.max_examples, context.sample) if size is not None), default=None)
            if split is context.split:
                batches = context.batches(count, feed.seed, feed.max_length, feed.pad_to)
            else:
                positions = sample_positions(len(split), count, feed.seed)
                batches = (
                    SplitBatches(split, context.batch_size, positions)
                    if context.source is None
                    else context.source.loader_of(split, positions)
                )
            means_LHd = None
            if any(measure.reference_examples for measure in group):
                sample = context.data.training_sample(max(measure.reference_examples for measure in group))
                network = unwrap(context.model)
                with evaluating(network), context.autocast():
                    means_LHd = mean_head_outputs(network, (one.to(context.device).inputs() for one in sample))
            with progress_over(len(batches), "measuring heads", visible=context.progress) as advance:
                fresh = measure_pass(
                    context.model,
                    [*group, *paired],
                    batches,
                    references=references,
                    context=context.autocast,
                    progress=advance,
                    means_LHd=means_LHd,
                )
            grids.update((grid.measure, grid) for grid in fresh[: len(group)])
        return {measure.name: grids[measure.name] for measure in measures}
