"""Prune a model: remove heads by a score, and return the smallest model with a guarantee."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from bertsecrets.ablation.forecast import announce, pair_evaluations
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.analysis import Analysis, Context, Findings, without_errors
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import example_count
from bertsecrets.data.sources import TRAIN
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.models.encoder import Encoder, describe
from bertsecrets.pruning.export import write_smaller
from bertsecrets.pruning.guarantee import Guarantee, Searches, class_changes, guarantee, loss_of_classes, search_level
from bertsecrets.pruning.latency import WARM_UP, compare_latency
from bertsecrets.pruning.removal import check_removable, remove_heads
from bertsecrets.pruning.rows import CONTROLS, RANDOM, Chosen, Point, PruneSearch, Pruning, Timing
from bertsecrets.pruning.scores import (
    column_of,
    columns_of,
    find_score,
    measured_scores,
    passes_of,
    removal_sets,
    score_label,
    steps_of,
    table_of,
    with_controls,
)
from bertsecrets.pruning.sets import Cost, HeadSet, SetResults, Situation, cost, evaluate_sets
from bertsecrets.pruning.settings import PruneSettings, check_class_loss
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import Run
from bertsecrets.task_heads.metric import Array, Metric

_log = logging.getLogger(__name__)

_BATCHES = (1, 32)
"""Batch sizes of the measured latency."""

_FINER = 3
"""Sizes added around the knee of an order."""

Batches = Callable[[], Iterable[Batch]]


@dataclass(frozen=True)
class Order:
    """Nested sets of removed heads chosen by one score, with their results.

    Args:
        score: The score's name.
        seed: Seed of a random score; else 0.
        sets: The removed heads after each step.
        test_results: Results on the test examples.
        choosing_results: Results on the selection examples; None for a control.
    """

    score: str
    seed: int
    sets: tuple[HeadSet, ...]
    test_results: SetResults
    choosing_results: SetResults | None = None


@dataclass(frozen=True)
class Selection:
    """The model that pruning returns.

    Args:
        order: Its order.
        step: Its step in the order; None if no smaller model passed.
        tests: Tested steps of the order, in the order of tests.
        outcome: The tests' outcome.
    """

    order: Order
    step: int | None
    tests: tuple[int, ...]
    outcome: Guarantee


def check_settings(settings: PruneSettings, encoder: Encoder) -> list[int]:
    """Numbers of removed heads to try; raises UserError if the settings do not fit the model."""
    total = encoder.num_layers * encoder.num_heads
    if total < 2:
        raise UserError("The model has only one attention head, which cannot be removed; choose a model with several.")
    if encoder.family is None:
        raise UserError(
            f"Pruning needs an adapter, and model type '{encoder.base.config.model_type}' has none; add an adapter in "
            "bertsecrets/models/families."
        )
    if settings.keep is not None and settings.keep >= total:
        raise UserError(
            f"prune.keep is {settings.keep}, but the model has {total} heads; give a number from 1 to {total - 1}."
        )
    sizes = steps_of(total, settings.step)
    return sorted({*sizes, total - settings.keep} if settings.keep is not None else sizes)


_Plan = tuple[str, int, tuple[HeadSet, ...]]
"""A score, its seed, and the heads removed after each step."""


class PruningSearch:
    """Remove heads in every order, and test how many can be removed, starting from the original model.

    Args:
        context: The model, its data, and where finished steps are kept.
        settings: The settings, checked, with the confidence of this search's tests.
        columns: Columns of head tables that can serve as scores.
    """

    def __init__(self, context: Context, settings: PruneSettings, columns: Mapping[str, Array]) -> None:
        self.model, self.settings, self.columns = context.model, settings, columns
        self.data, self.task, self.autocast = context.data, context.data.task, context.autocast
        self.evaluation = self.data.check_evaluation(settings.evaluation)
        self.store = context.store.of(context.model)
        self.bar = partial(progress_over, visible=context.progress, unit="set·example")

    def _share(self) -> Iterable[Batch]:
        """This process's share of the selection examples."""
        return self.data.training_share(self.settings.examples)

    def _testing(self) -> Iterable[Batch]:
        """This process's share of the test examples."""
        return self.data.evaluation_loader(self.evaluation)

    def run(self) -> tuple[list[Order], Selection]:
        """All orders with their results, and the model that is returned.

        Raises:
            UserError: If a score does not exist or does not fit.
        """
        encoder, settings = describe(self.model), self.settings
        sizes, total = check_settings(settings, encoder), encoder.num_layers * encoder.num_heads
        # One ranking gives the sets of all sizes; scores recomputed after each step depend on the steps.
        refines = not (settings.iterative or settings.keep)
        plans = self._plans([*range(1, total)] if refines else sizes)
        orders = self._orders(plans, sizes, refines)
        return orders, choose(orders, self.task.metric, settings)

    def evaluations(self, share: float) -> float:
        """The cost of :meth:`run` in forward passes over the test examples, without user functions.

        Args:
            share: Ratio of selection to test examples.
        """
        encoder, settings = describe(self.model), self.settings
        layers, heads = encoder.num_layers, encoder.num_heads
        names, sizes = with_controls(settings.scores), len(check_settings(settings, encoder))
        # Passes start at the lowest layer with a removed head, for most sets the first layer.
        one_by_one = pair_evaluations(encoder, Plan("zero", layers, heads, tuple(every_head(layers, heads))))
        lowest = pair_evaluations(encoder, Plan("zero", layers, heads, tuple(every_head(layers, heads, [0])[:1])))
        scoring = passes_of(names, self.columns, math.ceil(one_by_one)) * (sizes if settings.iterative else 1)
        if not (settings.iterative or settings.keep):
            sizes += _FINER
        choosers = sum(name not in CONTROLS for name in names)
        orders = sum(settings.seeds if name == RANDOM else 1 for name in names)
        return scoring * share + sizes * lowest * (choosers * share + orders)

    def _plans(self, sizes: Sequence[int]) -> list[_Plan]:
        settings, encoder = self.settings, describe(self.model)
        names = with_controls(settings.scores)
        first = next(name for name in names if name not in CONTROLS)
        # Shared by all scores, so that a score and its opposite, or two columns of a measure, are computed once.
        computed: dict[tuple[str, HeadSet], Mapping[str, Tensor]] = {}
        plans = []
        passes = passes_of(names, self.columns, encoder.num_layers * encoder.num_heads) * (
            len(sizes) if settings.iterative else 1
        )
        with self.bar(passes * _count(self._share), "scoring heads") as advance:
            for name in names:
                score = find_score(name, self.columns, first)
                for seed in range(settings.seeds if name == RANDOM else 1):
                    situation = Situation(
                        self.model,
                        self.task,
                        lambda: self.data.training_sample(settings.examples),
                        self._share,
                        lambda: self.data.training_split(settings.examples),
                        seed=settings.seed + seed,
                        context=self.autocast,
                        computed=computed,
                        store=self.store,
                        progress=advance,
                    )
                    sets = removal_sets(score, situation, sizes, iterative=settings.iterative)
                    plans.append((name, seed, tuple(sets)))
        return plans

    def _evaluated(self, sets: Sequence[HeadSet], batches: Batches, label: str) -> SetResults:
        with self.bar(len(set(sets)) * _count(batches), label) as advance:
            return evaluate_sets(
                self.model, sets, batches(), self.task, context=self.autocast, store=self.store, progress=advance
            )

    def _orders(self, plans: Sequence[_Plan], sizes: Sequence[int], refines: bool) -> list[Order]:
        """All orders with their results.

        Args:
            plans: The sets of these sizes, or of all sizes if more are added around the knee of each score's curve on
                the selection examples.
        """
        choosers = [sets for name, _, sets in plans if name not in CONTROLS]
        training = "removing heads, training examples"
        if refines:
            chosen = [heads for sets in choosers for heads in _of_sizes(sets, sizes)]
            choosing_results = self._evaluated(chosen, self._share, training)
            change_OS = choosing_results.changes(self.task.metric).reshape(len(choosers), len(sizes))
            refined = around_the_knee(change_OS, sizes, self.settings.max_loss / 100)
            added = [size for size in refined if size not in sizes]
            if added:
                more = [heads for sets in choosers for heads in _of_sizes(sets, added)]
                around = self._evaluated(more, self._share, "removing heads, around the knee")
                chosen += more
                choosing_results = replace(
                    choosing_results,
                    prediction_VN=np.concatenate([choosing_results.prediction_VN, around.prediction_VN]),
                    loss_V=np.concatenate([choosing_results.loss_V, around.loss_V]),
                )
            plans = [(name, seed, _of_sizes(sets, refined)) for name, seed, sets in plans]
        else:
            chosen = [heads for sets in choosers for heads in sets]
            choosing_results = self._evaluated(chosen, self._share, training)
        tested = [heads for _, _, sets in plans for heads in sets]
        test_results = self._evaluated(tested, self._testing, "removing heads")
        return [
            Order(
                name,
                seed,
                sets,
                test_results.of([tested.index(heads) for heads in sets]),
                None if name in CONTROLS else choosing_results.of([chosen.index(heads) for heads in sets]),
            )
            for name, seed, sets in plans
        ]


def _of_sizes(sets: Sequence[HeadSet], sizes: Sequence[int]) -> tuple[HeadSet, ...]:
    """Select some sizes from the sets of all sizes from 1."""
    return tuple(sets[size - 1] for size in sizes)


def around_the_knee(change_OS: Array, sizes: Sequence[int], margin: float) -> list[int]:
    """Numbers of removed heads, with additional ones where an order's loss reaches the margin.

    These are between the last size with a loss below the margin (0 if there is none) and the next.

    Args:
        change_OS: Change of score of each order at each size.

    >>> around_the_knee(np.array([[0.0, -0.005, -0.2, -0.3]]), [10, 20, 30, 39], 0.01)
    [10, 20, 22, 25, 28, 30, 39]
    """
    refined = set(sizes)
    for change_S in change_OS:
        fine = np.flatnonzero(change_S > -margin)
        after = int(fine[-1]) + 1 if fine.size else 0
        if after < len(sizes):
            last = sizes[after - 1] if after else 0
            refined |= {round(size) for size in np.linspace(last, sizes[after], _FINER + 2)[1:-1]}
    return sorted(refined - {0})


def _count(batches: Batches) -> int:
    return sum(batch.size for batch in batches())


def choose(orders: list[Order], metric: Metric, settings: PruneSettings) -> Selection:
    """The smallest model that passes its test, or the one requested by ``settings.keep``, with its test.

    Candidates are the models with a loss below the margin on the selection examples. With several scores, their tests
    share the level (Bonferroni).

    Args:
        settings: Settings of the search, with the confidence of its tests.
    """
    margin, class_margin = settings.max_loss / 100, _class_margin(settings)
    choosers = [order for order in orders if order.score not in CONTROLS]
    if settings.keep is not None:
        order = choosers[0]
        total = max(len(heads) for heads in order.sets) + 1
        step = [len(heads) for heads in order.sets].index(total - settings.keep)
        outcome = guarantee(order.test_results.of([step]), metric, margin, settings.confidence, class_margin)
        return Selection(order, step, (step,), outcome)
    confidence = 1 - (1 - settings.confidence) / len(choosers)
    selected: Selection | None = None
    for order in choosers:
        assert order.choosing_results is not None
        fits_V = order.choosing_results.changes(metric) > -margin
        if class_margin is not None:
            fits_V &= loss_of_classes(order.choosing_results) < class_margin
        # Without a candidate, the first step is tested, so that the page can show what would be needed.
        steps = np.flatnonzero(fits_V).tolist() or [0]
        outcome = guarantee(order.test_results.of(steps), metric, margin, confidence, class_margin)
        last = steps[outcome.passed - 1] if outcome.passed else None
        candidate = Selection(order, last, tuple(steps), outcome)
        if selected is None or (last is not None and (selected.step is None or last > selected.step)):
            selected = candidate
    assert selected is not None
    return selected


def _class_margin(settings: PruneSettings) -> float | None:
    return None if settings.max_class_loss is None else settings.max_class_loss / 100


def found(
    context: Context,
    orders: Sequence[Order],
    selection: Selection,
    columns: Mapping[str, Array],
    settings: PruneSettings,
    number: int,
    counted: bool,
    costs: Cost,
    timings: Sequence[Timing],
) -> list[object]:
    """The rows of a search, as in :class:`bertsecrets.pruning.rows.Pruned`.

    Args:
        columns: Columns of head tables that can serve as scores.
        counted: Whether earlier searches are known.
    """
    task, level, outcome = context.data.task, search_level(settings.confidence, number), selection.outcome
    metric = task.metric
    total = max(len(heads) for heads in orders[0].sets) + 1
    baseline, _ = orders[0].test_results.scores(metric)
    search = PruneSearch(
        margin=settings.max_loss / 100,
        class_margin=_class_margin(settings),
        confidence=settings.confidence,
        number=number,
        level=level,
        counted=counted,
        examples=outcome.examples,
        choosing=next(len(order.choosing_results.label_N) for order in orders if order.choosing_results is not None),
        parameters=costs.parameters,
        length=costs.length,
        device=context.device.type,
        threads=torch.get_num_threads(),
        metric=metric.name,
        score=baseline,
        loss=orders[0].test_results.clean_loss,
        heads=total,
        iterative=settings.iterative,
        flops=costs.flops,
    )
    points = []
    for order in orders:
        changes = order.test_results.estimates(metric, settings.confidence)
        label, from_table = score_label(order.score), column_of(order.score, columns) in columns
        for attempt, heads in enumerate(order.sets):
            loss, kept = float(order.test_results.loss_V[attempt]), total - len(heads)
            place = (order.score, label, from_table, order.seed, attempt, kept)
            points.append(Point(*place, changes[attempt], loss, *costs.without(len(heads))))
    tested = selection.step if selection.step is not None else selection.tests[0]
    index = selection.tests.index(tested)
    needed = outcome.needed
    chosen = Chosen(
        score=selection.order.score,
        attempt=tested,
        kept=total - len(selection.order.sets[tested]),
        asked=settings.keep is not None,
        holds=bool(outcome.p_V[index] <= 1 - level) if settings.keep else selection.step is not None,
        change=selection.order.test_results.estimates(metric, settings.confidence)[tested].value,
        bound=float(outcome.bound_V[index]),
        p_margin=float(outcome.p_V[index]),
        needed=None if needed is None or math.isinf(needed) else int(needed),
        hopeless=needed == math.inf,
    )
    groups = class_changes(selection.order.test_results.of([tested]), task, settings.confidence, tested)
    return [search, *points, chosen, *groups, *timings]


class PruneHeads(Analysis):
    """Remove heads from a fine-tuned model, and write the smallest model that passes its test to ``pruned/``.

    The heads are chosen on training examples and tested on an evaluation set that was not used for choosing. An
    interrupted search resumes from its finished batches. Results do not depend on the number of processes.

    Args:
        prune: Which heads to remove, how many, and the required test.
        origin: The analysed run, whose columns can serve as scores; None for a model without a run.

    Raises:
        UserError: If a setting does not fit the model or the task, or a score does not exist.
    """

    without_labels = "the loss of a smaller model cannot be measured"
    learns = "Choosing heads to remove"
    tests_loss = True

    def __init__(self, prune: PruneSettings | None = None, origin: Run | None = None) -> None:
        self.settings = prune or PruneSettings.read("prune", {})
        super().__init__(self.settings.evaluation)
        self.scores = with_controls(self.settings.scores)
        self.tables = [table_of(folder) for folder in self.settings.tables]
        self.origin = origin

    def check(self, context: Context) -> None:
        super().check(context)
        encoder = context.encoder
        check_settings(self.settings, encoder)
        check_class_loss("prune", self.settings.max_class_loss, context.task)
        if self.settings.save:
            try:
                check_removable(encoder)
            except UserError as error:
                raise UserError(
                    f"{str(error).rstrip('.')}, or set prune.save=false to see the curves without writing a model."
                ) from error
        # Empty columns in place of those that this command will measure.
        columns = {**dict.fromkeys(context.promised, np.empty(0)), **self._columns(context.run)}
        for name in self.scores:
            if name not in CONTROLS:
                find_score(name, columns)

    def run(self, context: Context) -> Iterator[Findings]:
        data, settings, model = context.data, self.settings, context.model
        evaluation = data.check_evaluation(settings.evaluation)
        # The first process may still be writing the columns measured by this command.
        context.wait()
        columns = self._columns(context.run)
        searches = Searches.of(context.run, data.evaluation_dataset(evaluation), context.store)
        place = searches.next()
        context.wait()
        if context.is_first:
            place = searches.begin()
        level = search_level(settings.confidence, place)
        search = PruningSearch(context, settings.model_copy(update={"confidence": level}), columns)
        lengths = data.evaluation_dataset(evaluation).lengths
        choosing = min(settings.examples, example_count(data.encoded(TRAIN)))
        testing = example_count(data.evaluation_dataset(evaluation))
        rounds, models = settings.latency_rounds, len(check_settings(settings, describe(model)))
        timed = 2 * sum(_BATCHES) * (max(2, rounds) + WARM_UP) * models if rounds else 0
        announce(
            f"Removing heads in the order of {len(self.scores)} scores, on {choosing:,} training examples and "
            f"{testing:,} others",
            context,
            search.evaluations(choosing / testing) + timed / testing,
        )
        orders, selection = search.run()
        if search.store.loaded:
            _log.info(f"Resumed an interrupted search: {search.store.loaded} steps were already finished.")
        if not context.is_first:
            return
        costs = cost(model, max(1, round(sum(lengths) / len(lengths))))
        timings = self._timings(context, selection, costs.length)
        counted = searches.folder is not None
        rows = found(context, orders, selection, columns, settings, place, counted, costs, timings)

        def finish(run: Run, stage: str, step: int) -> None:
            """Write the smaller model."""
            if settings.save and selection.step is not None:
                folder = run.folder / "pruned"
                # Copies made in inference mode could not be trained or exported.
                with torch.inference_mode(False):
                    smaller = remove_heads(model, sorted(selection.order.sets[selection.step])).cpu().eval()
                    write_smaller(smaller, folder, data.tokenizer, settings.export, data.max_length)
                _log.info(f"The pruned model is in {folder}; load it with bertsecrets.load_pruned.")

        yield Findings(Pruning(), [_grid(model, selection)], rows, finish=finish)

    def _timings(self, context: Context, selection: Selection, length: int) -> list[Timing]:
        """Latencies of the models in the chosen order and of the original."""
        encoder, rounds, timings = context.encoder, self.settings.latency_rounds, list[Timing]()
        try:
            check_removable(encoder)
        except UserError:
            rounds = 0
        if not rounds:
            return []
        with progress_over(len(selection.order.sets), "timing", visible=context.progress, unit="model") as advance:
            for attempt, heads in enumerate(selection.order.sets):
                smaller = remove_heads(context.model, sorted(heads)).eval()
                timings += compare_latency(encoder.model, smaller, length, _BATCHES, max(2, rounds), attempt)
                advance()
        return timings

    def _columns(self, analysis: Run) -> dict[str, Array]:
        """The columns of the head tables at their last step, from ``prune.tables``, this analysis and the analysed run;
        from the last two, only columns that cannot be computed on the selection examples.
        """
        columns: dict[str, Array] = {}
        for run in (analysis, *([] if self.origin is None else [self.origin])):
            columns = {**columns_of(run), **columns}
        columns = {name: value_LH for name, value_LH in columns.items() if name not in measured_scores()}
        for run in reversed(self.tables):
            columns |= columns_of(run)
        return columns


def _grid(model: nn.Module, selection: Selection) -> HeadGrid:
    """For each head, the number of heads removed before or with it, and whether the returned model keeps it."""
    encoder = describe(model)
    shape = (encoder.num_layers, encoder.num_heads)
    at_LH, kept_LH = torch.full(shape, torch.nan), torch.ones(shape)
    for heads in reversed(selection.order.sets):
        for layer, head in heads:
            at_LH[layer, head] = len(heads)
    if selection.step is not None:
        for layer, head in selection.order.sets[selection.step]:
            kept_LH[layer, head] = 0
    value_LHC = torch.stack((at_LH, kept_LH), -1)
    return without_errors(Pruning(), value_LHC, selection.outcome.examples)
