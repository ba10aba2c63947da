"""Prune a model: remove heads by a score, and return the smallest model with a guarantee."""

import logging
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import nn

from bertsecrets.ablation.forecast import announce
from bertsecrets.analysis import Analysis, Context, Findings, without_errors
from bertsecrets.data.module import TaskData, example_count
from bertsecrets.data.sources import TRAIN
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.models.encoder import describe
from bertsecrets.pruning.experiment import Pruning
from bertsecrets.pruning.export import write_smaller
from bertsecrets.pruning.guarantee import Searches, search_level
from bertsecrets.pruning.latency import WARM_UP, compare_latency
from bertsecrets.pruning.measured import measured_scores
from bertsecrets.pruning.removal import check_removable, remove_heads
from bertsecrets.pruning.rows import CONTROLS, Timing
from bertsecrets.pruning.scores import columns_of, find_score, table_of, with_controls
from bertsecrets.pruning.search import PruningSearch, Selection, check_settings, found
from bertsecrets.pruning.sets import cost
from bertsecrets.pruning.settings import PruneSettings, check_class_loss
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import Run
from bertsecrets.results.views import Array

_log = logging.getLogger(__name__)


_BATCHES = (1, 32)
"""Batch sizes of the measured latency."""


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
        store = context.store.of(model)
        columns = self._columns(context.run)
        searches = Searches.of(context.run, data.evaluation_dataset(evaluation), context.store)
        place = searches.next()
        context.wait()
        if context.is_first:
            place = searches.begin()
        search = PruningSearch(
            model,
            data.task,
            choosing=lambda: data.training_sample(settings.examples),
            share=lambda: data.training_share(settings.examples),
            testing=lambda: data.evaluation_loader(evaluation),
            split=lambda: data.training_split(settings.examples),
            settings=settings.model_copy(update={"confidence": search_level(settings.confidence, place)}),
            columns=columns,
            context=context.autocast,
            store=store,
            bar=partial(progress_over, visible=context.progress, unit="set·example"),
        )
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
        if store.loaded:
            _log.info(f"Resumed an interrupted search: {store.loaded} steps were already finished.")
        if not context.is_first:
            return
        costs = cost(model, max(1, round(sum(lengths) / len(lengths))))
        timings = self._timings(context, selection, costs.length)
        known, device = searches.folder is not None, context.device.type
        rows = found(orders, selection, columns, data.task, settings, place, known, costs, timings, device)
        finish = partial(self._finish, model, selection, data)
        yield Findings(Pruning(), [_grid(model, selection)], rows, finish=finish)

    def _finish(
        self,
        model: nn.Module,
        selection: Selection,
        data: TaskData,
        run: Run,
        stage: str,
        step: int,
    ) -> None:
        """Write the smaller model."""
        if self.settings.save and selection.step is not None:
            folder = run.folder / "pruned"
            # Copies made in inference mode could not be trained or exported.
            with torch.inference_mode(False):
                smaller = remove_heads(model, sorted(selection.order.sets[selection.step])).cpu().eval()
                write_smaller(smaller, folder, data.tokenizer, self.settings.export, data.max_length)
            _log.info(f"The pruned model is in {folder}; load it with bertsecrets.load_pruned.")

    def _timings(self, context: Context, selection: Selection, length: int) -> list[Timing]:
        """Latencies of the models in the chosen order and of the original."""
        encoder, rounds, timings = context.encoder, self.settings.latency_rounds, list[Timing]()
        try:
            check_removable(encoder)
        except UserError:
            return []
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
