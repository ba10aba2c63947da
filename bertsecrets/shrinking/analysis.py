"""Make a fine-tuned model smaller and faster, and test its loss."""

import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import EvalResult, ModelCardData
from pydantic import TypeAdapter
from torch import nn
from transformers import PreTrainedModel

from bertsecrets.ablation.predictions import PairedPredictions, judged_metrics
from bertsecrets.ablation.verdicts import losses_ruled_out
from bertsecrets.analysis import Analysis, Context, Findings, without_errors
from bertsecrets.data.batch import Batch
from bertsecrets.data.module import example_count, example_lengths
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import Autocast
from bertsecrets.models.metrics import Answers, answers
from bertsecrets.present.report.content import Table
from bertsecrets.present.shrink import (
    answer_in_words,
    attempt_in_words,
    frontier_table,
    groups_table,
    how_in_words,
    summary_in_words,
    tests_table,
)
from bertsecrets.pruning.export import OnnxClassifier, check_onnx, export_int8, write_smaller
from bertsecrets.pruning.guarantee import Searches, class_changes, group_changes, guarantee, p_of_classes, search_level
from bertsecrets.pruning.latency import WARM_UP, compare_latency
from bertsecrets.pruning.removal import Kept, check_removable, keep_only, load_pruned, save_pruned
from bertsecrets.pruning.rows import Attempt, Cost, Group, Layer, MetricTest, Shrinking, ShrinkSearch, Shrunk, Smaller
from bertsecrets.pruning.settings import SPEEDUPS, ShrinkSettings, check_class_loss
from bertsecrets.results.files import write_text
from bertsecrets.results.formatting import level_text, markdown_table, markdown_text, percentage, points, rounded_up
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import Run
from bertsecrets.shrinking.distillation import distill
from bertsecrets.shrinking.latency import LatencyTable, measure_latency
from bertsecrets.shrinking.plan import ComponentScores, as_fast_as_asked, fisher_information, plan
from bertsecrets.shrinking.refit import refitted
from bertsecrets.statistics.non_inferiority import paired_loss, smallest_ruled_out
from bertsecrets.statistics.power import examples_to_rule_out, loss_ruled_out
from bertsecrets.task_heads.sequence import ACCURACY

_log = logging.getLogger(__name__)

_INT8, _INT8_FILE = "int8", "model.int8.onnx"

_ROUNDS = 20
"""Timed passes of a final model."""

_PLAN = TypeAdapter(tuple[Kept, float])
"""The kept parts of a model, and its predicted speed-up."""

_CHANGED = 0.02
"""Share of changed predictions for which :func:`check_examples` states the smallest loss that can be excluded."""

Batches = Callable[[], Iterable[Batch]]


def speedups_of(settings: ShrinkSettings, table: LatencyTable) -> list[float]:
    """The speed-ups to try, in order.

    Raises:
        UserError: If a requested speed-up is out of reach, or they are not ascending.
    """
    if settings.speedup is None:
        return [speedup for speedup in SPEEDUPS if speedup < table.fastest] or [SPEEDUPS[0]]
    requested = settings.speedup if isinstance(settings.speedup, list) else [settings.speedup]
    if not requested or sorted(set(requested)) != requested:
        raise UserError(f"shrink.speedup is {requested}; expected ascending numbers above 1, tested in this order.")
    if requested[-1] >= table.fastest:
        raise UserError(
            f"shrink.speedup is {requested[-1]:g}, but even with a single head, this model is only "
            f"{table.fastest:.1f} times as fast at batch size {table.batch_size} with {table.length} tokens; request "
            "less, or start from a model with fewer layers."
        )
    return list(requested)


def check_examples(count: int, margin: float, confidence: float) -> str:
    """Check in advance what the examples can show.

    Raises:
        UserError: If they cannot exclude a loss of the margin even if no prediction changes.
    """
    check_can_rule_out(f"{count:,} examples", count, "shrink.max_loss", margin, confidence)
    changed = np.array([round(_CHANGED * count / 2)])
    (loss,) = smallest_ruled_out(paired_loss(changed, changed, count), 1 - confidence, 1.0)
    return (
        f"{count:,} examples can rule out a loss of {points(rounded_up(float(loss)) / 100)} or more if "
        f"{percentage(_CHANGED)} of the predictions change (half of them for the better), and of "
        f"{points(rounded_up(loss_ruled_out(count, confidence)) / 100)} or more if none change."
    )


def check_can_rule_out(what: str, count: int, setting: str, margin: float, confidence: float) -> None:
    """Raise UserError if the examples cannot exclude a loss of accuracy even if no prediction changes.

    Args:
        setting: The setting with the margin.
    """
    least = loss_ruled_out(count, confidence)
    if least >= margin:
        needed = math.floor(examples_to_rule_out(margin, confidence)) + 1
        counted_points = f"{100 * margin:g} point{'s' if 100 * margin != 1 else ''}"
        raise UserError(
            f"{what} cannot rule out a loss of {counted_points} at {level_text(confidence)} confidence, even if no "
            f"prediction changes; the smallest loss they can rule out is {rounded_up(least):.1f}. Test on at least "
            f"{needed:,}, or set {setting}={rounded_up(least):g} or more."
        )


def make_smaller(
    model: nn.Module,
    kept: Kept,
    choosing: Batches,
    teaching: Batches,
    settings: ShrinkSettings,
    *,
    context: Autocast,
    advance: Callable[[int], object] | None = None,
) -> PreTrainedModel:
    """The smaller model: refitted to the original, cut, and distilled from it.

    Args:
        teaching: Batches for distillation.
        advance: Called with the number of finished examples of the distillation.
    """
    smaller = keep_only(refitted(model, kept, choosing(), context=context), kept)
    smaller.eval()
    if settings.epochs:
        distill(
            model,
            smaller,
            teaching,
            epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            context=context,
            advance=advance,
        )
    return smaller


def paired(whole: Answers, smaller: Answers) -> PairedPredictions:
    """The predictions of both models on the same examples."""
    predictions = (whole.label_N, whole.prediction_N, smaller.prediction_N[None])
    return PairedPredictions(*predictions, group_N=whole.group_N)


def metric_tests(
    whole: Answers,
    smaller: Answers,
    task: Task,
    margin: float,
    confidence: float,
    later: float | None = None,
    attempt: int = 0,
) -> list[MetricTest]:
    """Test every metric; a smaller model must pass all tests, so no correction is needed (Berger 1982).

    Args:
        later: Confidence of a further search on the same examples; None for the same.
    """
    results, reverse = paired(whole, smaller), paired(smaller, whole)
    tests = []
    for metric in judged_metrics(task):
        before, (after,) = results.scores(metric)
        outcome = guarantee(results, metric, margin, confidence)
        (bound_later,) = losses_ruled_out(metric, results, 1 - (later or confidence))
        # The gain of the smaller model is the loss of the original relative to it.
        (gain,) = losses_ruled_out(metric, reverse, 1 - confidence)
        lost, won = map(int, np.concatenate(results.discordant(metric))) if metric.events else (None, None)
        tests.append(
            MetricTest(
                attempt,
                metric.name,
                whole=before,
                smaller=float(after),
                bound=float(outcome.bound_V[0]),
                high=float(gain),
                bound_later=float(bound_later),
                p_margin=float(outcome.p_V[0]),
                needed=outcome.needed,
                lost=lost,
                won=won,
            )
        )
    return tests


def length_changes(
    whole: Answers, smaller: Answers, task: Task, lengths: Sequence[int], confidence: float, attempt: int = 0
) -> list[Group]:
    """:func:`bertsecrets.pruning.guarantee.group_changes` by thirds of length; empty for a task that predicts a score.

    Args:
        lengths: Tokens of each example, in the same order.
    """
    if task.is_regression:
        return []
    length_N = np.asarray(lengths)
    short, long = np.quantile(length_N, [1 / 3, 2 / 3])
    member_GN = {
        f"up to {short:.0f} tokens": length_N <= short,
        f"{short:.0f} to {long:.0f} tokens": (length_N > short) & (length_N <= long),
        f"more than {long:.0f} tokens": length_N > long,
    }
    metric = ACCURACY if task.head.classifies else judged_metrics(task)[0]
    return group_changes(paired(whole, smaller), "length", member_GN, confidence, attempt, metric)


class ShrinkModel(Analysis):
    """Remove heads and neurons from a fine-tuned model, and write the fastest model that passes its tests.

    If none passes, the failed one is written to a folder named accordingly.

    Selection, refitting and distillation use training examples only; the evaluation set tests each smaller model once,
    from the slowest up to the first failure. An interrupted search reuses its finished models.

    Args:
        shrink: Speed-up, method and required tests.

    Raises:
        UserError: If a setting does not fit the model, the task or the examples.
    """

    without_labels = "the loss of a smaller model cannot be measured"
    learns = "Making a smaller model"
    tests_loss = True

    def __init__(self, shrink: ShrinkSettings | None = None) -> None:
        self.settings = shrink or ShrinkSettings.read("shrink", {})
        super().__init__(self.settings.evaluation)

    def check(self, context: Context) -> None:
        super().check(context)
        check_removable(context.encoder)
        if {"onnx", _INT8} & {*self.settings.export}:
            check_onnx(("onnx", "onnxscript", "onnxruntime"))
        if context.processes > 1:
            raise UserError(
                f"Shrinking runs in one process, but there are {context.processes}; set trainer.devices=1 and "
                "trainer.num_nodes=1."
            )
        data, settings = context.data, self.settings
        check_class_loss("shrink", settings.max_class_loss, data.task)
        if not data.task.head.classifies:
            return
        split = data.evaluation[data.check_evaluation(self.evaluation)]
        count = example_count(data.encoded(split))
        level = search_level(settings.confidence, Searches.of(context.run, data.encoded(split), context.store).next())
        _log.info(check_examples(count, settings.max_loss / 100, level))
        if settings.max_class_loss is not None:
            for label, number in enumerate(torch.bincount(data.labels(split)).tolist()):
                what = f"{number:,} examples of class {data.task.labels[label]}"
                if number:
                    check_can_rule_out(what, number, "shrink.max_class_loss", settings.max_class_loss / 100, level)

    def run(self, context: Context) -> Iterator[Findings]:
        # Lightning validates in inference mode, whose tensors cannot take part in a backward pass.
        with torch.inference_mode(False), torch.no_grad():
            search = _Search(context, self.settings)
            shrunk = search.found()
        written = shrunk.written
        kept_LH = torch.zeros(search.encoder.num_layers, search.encoder.num_heads)
        for layer in written.layers:
            kept_LH[layer.layer, [int(head) for head in layer.heads.split()]] = 1
        grid = without_errors(Shrinking(), kept_LH[..., None], len(search.lengths))
        rows = [shrunk.search, *search.costs(), *(row for attempt in shrunk.attempts for row in attempt.rows)]
        yield Findings(Shrinking(), [grid], rows, finish=partial(search.finish, shrunk))


class _Search:
    """A search for smaller models: its data, the original model's predictions, and its attempts."""

    def __init__(self, context: Context, settings: ShrinkSettings) -> None:
        self.model, self.settings = context.model, settings
        self.encoder, self.device, self.data = context.encoder, context.device, context.data
        self.evaluation = self.data.check_evaluation(settings.evaluation)
        self.autocast = context.autocast
        self.bar = partial(progress_over, visible=context.progress)
        self.store = context.store.of(context.model)
        examples = self.data.evaluation_dataset(self.evaluation)
        self.lengths = example_lengths(examples)
        # What is timed is a pass, of one window of a text.
        self.length = settings.length or max(2, round(sum(examples.lengths) / len(examples)))
        self.table = self._timed()
        self.speedups = speedups_of(settings, self.table)
        self.whole = self._answers(self.encoder.model)
        self.searches = Searches.of(context.run, examples, context.store)
        self.number = 0
        self.attempts: list[Smaller] = []
        self.folders: list[Path] = []

    def found(self) -> Shrunk:
        """Build and test smaller models for each speed-up, up to the first failure."""
        settings = self.settings
        with self.bar(settings.examples, "scoring heads and neurons", unit="example") as advance:
            batches = _counted(self.data.training_sample(settings.examples), advance)
            scores = fisher_information(self.model, batches, context=self.autocast, seed=settings.seed)
        for speedup in self.speedups:
            kept, predicted = self._planned(scores, speedup)
            attempt = self._attempt(speedup, kept, predicted)
            if not attempt.attempt.passed:
                break
        passed = [attempt for attempt in self.attempts if attempt.attempt.passed]
        if passed and _INT8 in settings.export:
            # The next step of the same fixed sequence, or a separate search after a failure.
            if not attempt.attempt.passed:
                self.number = self.searches.begin(anew=True)
            self._quantise(passed[-1])
        shrunk = Shrunk(self._facts(self.number), self.attempts)
        return replace(shrunk, search=self._facts(shrunk.written.attempt.search))

    def _facts(self, number: int) -> ShrinkSearch:
        """The search's test settings, if it is the search with this number on its examples."""
        settings, table = self.settings, self.table
        training = len(self.data.training_split(max(settings.distilled_on, settings.examples)))
        return ShrinkSearch(
            margin=settings.max_loss / 100,
            class_margin=None if settings.max_class_loss is None else settings.max_class_loss / 100,
            confidence=settings.confidence,
            number=number,
            level=search_level(settings.confidence, number),
            counted=self.searches.folder is not None,
            examples=len(self.lengths),
            choosing=min(settings.examples, training),
            parameters=sum(parameter.numel() for parameter in self.encoder.model.parameters()),
            length=table.length,
            device=table.device,
            threads=table.threads,
            onnx="onnx" in settings.export,
            taught_on=min(settings.distilled_on, training) if settings.epochs else 0,
            epochs=settings.epochs,
            heads=self.encoder.num_heads,
            neurons=table.widths[-1],
            batch_size=table.batch_size,
            fixed=table.fixed,
            processor=table.processor,
        )

    def costs(self) -> list[Cost]:
        """The latency table as rows."""
        table = self.table
        heads = [Cost("heads", kept, float(cost)) for kept, cost in enumerate(table.heads_H)]
        neurons = zip(table.widths, table.neurons_W, strict=True)
        return [*heads, *(Cost("neurons", kept, float(cost)) for kept, cost in neurons)]

    def finish(self, shrunk: Shrunk, run: Run, stage: str, step: int) -> None:
        """Write the fastest model that holds, or the first that failed, with its card."""
        made = self.folders[shrunk.written.attempt.attempt]
        # Weights created in inference mode could not be trained or exported.
        with torch.inference_mode(False):
            smaller, folder = load_pruned(made), run.folder / shrunk.folder
            write_smaller(smaller, folder, self.data.tokenizer, self.settings.export, self.data.max_length)
            if shrunk.written.attempt.int8:
                shutil.copyfile(made / _INT8_FILE, folder / _INT8_FILE)
        write_text(folder / CARD, shrink_card(shrunk, run.name, self.data.task))
        _log.info(f"The smaller model is in {folder}; load it with bertsecrets.load_pruned.")

    def _timed(self) -> LatencyTable:
        """The latency table, from the interrupted search if any, because a new table would lead to other models."""
        size, rounds = self.settings.batch_size, self.settings.latency_rounds

        def measure() -> dict[str, Any]:
            with self.bar(rounds + WARM_UP, "timing layers", unit="round") as advance:
                table = measure_latency(self.model, batch_size=size, length=self.length, rounds=rounds, advance=advance)
            return table.as_dict()

        return LatencyTable.from_dict(self.store.once(measure, "latency", size, self.length))

    def _planned(self, scores: ComponentScores, speedup: float) -> tuple[Kept, float]:
        """The kept parts of a model measured to be as fast as requested, and its predicted speed-up; reused from an
        interrupted search if available.
        """
        settings = self.settings

        def measure(kept: Kept) -> float:
            smaller = keep_only(self.model, kept).eval()
            size, rounds = settings.batch_size, settings.latency_rounds + 1
            return compare_latency(self.encoder.model, smaller, self.length, [size], rounds)[0].speedup

        def planned() -> Any:
            return _PLAN.dump_python(as_fast_as_asked(partial(plan, scores), self.table, speedup, measure), mode="json")

        return _PLAN.validate_python(self.store.once(planned, "plan", speedup, settings.seed, settings.examples))

    def _attempt(self, speedup: float, kept: Kept, predicted: float) -> Smaller:
        """Build, time and test one smaller model."""
        settings = self.settings
        recipe = (
            kept,
            settings.examples,
            settings.epochs,
            settings.distilled_on,
            settings.learning_rate,
            settings.seed,
        )

        def fill(folder: Path) -> None:
            examples = min(settings.distilled_on, len(self.data.training_split(settings.distilled_on)))
            with self.bar(settings.epochs * examples, f"teaching, {speedup:g}x", unit="example") as advance:
                smaller = make_smaller(
                    self.model,
                    kept,
                    lambda: self.data.training_sample(settings.examples),
                    lambda: self.data.training_sample(settings.distilled_on),
                    settings,
                    context=self.autocast,
                    advance=advance,
                )
            save_pruned(smaller, folder)

        made_before = self.store.loaded
        folder = self.store.folder_once(fill, *recipe)
        if self.store.loaded > made_before:
            _log.info(f"Resumed an interrupted search: the model for a speed-up of {speedup:g} already exists.")
        smaller = load_pruned(folder)
        torch.nn.Module.to(smaller, self.device).eval()
        parameters = sum(parameter.numel() for parameter in smaller.parameters())
        neurons = [len(kept_neurons) for kept_neurons in kept.neurons or ()]
        parts = [
            Layer(len(self.attempts), layer, " ".join(map(str, heads)), count)
            for layer, (heads, count) in enumerate(zip(kept.layers, neurons, strict=True))
        ]
        return self._judged(smaller, speedup, folder, predicted, parameters, parts)

    def _quantise(self, attempt: Smaller) -> None:
        """The same model with 8-bit weights, timed and tested in ONNX Runtime."""
        folder = self.folders[attempt.attempt.attempt]
        path = folder / _INT8_FILE
        if not path.is_file():
            export_int8(load_pruned(folder), path, self.data.max_length)
        parts = [replace(layer, attempt=len(self.attempts)) for layer in attempt.layers]
        facts = attempt.attempt
        self._judged(OnnxClassifier(path), facts.asked, folder, None, facts.parameters, parts)

    def _judged(
        self,
        smaller: Callable[..., Any],
        speedup: float,
        folder: Path,
        predicted: float | None,
        parameters: int,
        layers: list[Layer],
    ) -> Smaller:
        """Times and tests of a smaller model, which becomes the next attempt."""
        settings, task, place, size = self.settings, self.data.task, len(self.attempts), self.settings.batch_size
        timings = compare_latency(self.encoder.model, smaller, self.length, sorted({1, size}), _ROUNDS, place)
        measured = next(timing.speedup for timing in timings if timing.batch == size)
        self.number = self.number or self.searches.begin()
        level, later = (search_level(settings.confidence, self.number + more) for more in (0, 1))
        pair = (self.whole, self._answers(smaller))
        tests = metric_tests(*pair, task, settings.max_loss / 100, level, later, place)
        ruled_out, class_ruled_out = all(test.p_margin <= 1 - level for test in tests), None
        if settings.max_class_loss is not None:
            # All tests must be passed, so none is corrected (Berger 1982).
            class_ruled_out = bool(p_of_classes(paired(*pair), settings.max_class_loss / 100)[0] <= 1 - level)
        groups = class_changes(paired(*pair), task, settings.confidence, place)
        groups += length_changes(*pair, task, self.lengths, settings.confidence, place)
        attempt = Smaller(
            Attempt(
                place,
                speedup,
                int8=predicted is None,
                predicted=predicted,
                # Without a requested speed-up, none can be missed.
                missed=settings.speedup is not None and measured < speedup,
                parameters=parameters,
                search=self.number,
                ruled_out=ruled_out,
                class_ruled_out=class_ruled_out,
                passed=ruled_out and class_ruled_out is not False,
            ),
            tests,
            timings,
            layers,
            groups,
        )
        self.attempts.append(attempt)
        self.folders.append(folder)
        _log.info(attempt_in_words(attempt, self._facts(self.number)))
        return attempt

    def _answers(self, model: Callable[..., Any]) -> Answers:
        batches = self.data.evaluation_loader(self.evaluation)
        return answers(model, batches, self.data.task, self.autocast, self.device)


def _counted(batches: Iterable[Batch], advance: Callable[..., object]) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        advance(batch.size)


CARD = "README.md"


def shrink_card(shrunk: Shrunk, name: str, task: Task) -> str:
    """The card in Markdown, with the hub's metadata as YAML in front.

    Args:
        name: Name of the run that made it.
    """
    results = [
        EvalResult(
            task_type=task.head.pipeline,
            dataset_type=task.name,
            dataset_name=task.name,
            metric_type=test.metric,
            metric_value=test.smaller,
        )
        for test in shrunk.written.tests
    ]
    metadata = ModelCardData(
        eval_results=results,
        library_name="bertsecrets",
        model_name=name,
        pipeline_tag=task.head.pipeline,
        tags=["bertsecrets", "pruned"],
    )
    texts = ", ".join(['"The cat sat."', '"The cat lay."'][: task.texts])
    usage = [_in_python(texts)]
    if shrunk.written.attempt.int8:
        # This program was timed and tested.
        usage = [_in_onnx_runtime("model.int8.onnx", texts), "With 32-bit weights (slower):", *usage]
    elif shrunk.search.onnx:
        usage += ["Or in ONNX Runtime:", _in_onnx_runtime("model.onnx", texts)]
    parts = [
        f"---\n{metadata.to_yaml()}\n---",
        f"# {markdown_text(name)}: a smaller model of the task `{markdown_text(task.name)}`",
        markdown_text(f"{summary_in_words(shrunk)} {answer_in_words(shrunk)}"),
        "## Use",
        *usage,
        "## Speed",
        _table(frontier_table(shrunk)),
        "## Tests",
        _table(tests_table(shrunk)),
        *(["## Classes and lengths", _table(groups_table(shrunk))] if shrunk.written.groups else []),
        "## How it was made",
        markdown_text(how_in_words(shrunk.search)),
    ]
    return "\n\n".join(parts) + "\n"


def _in_python(texts: str) -> str:
    return f"""```python
from bertsecrets import load_pruned
from transformers import AutoTokenizer

folder = "<this folder>"
model, tokenizer = load_pruned(folder), AutoTokenizer.from_pretrained(folder)
output = model(**tokenizer({texts}, return_tensors="pt"))
```"""


def _in_onnx_runtime(file: str, texts: str) -> str:
    return f"""```python
import onnxruntime
from transformers import AutoTokenizer

folder = "<this folder>"
session = onnxruntime.InferenceSession(f"{{folder}}/{file}")
tokens = AutoTokenizer.from_pretrained(folder)({texts}, return_tensors="np")
(logits,) = session.run(["logits"], {{entry.name: tokens[entry.name] for entry in session.get_inputs()}})
```"""


def _table(table: Table) -> str:
    return f"{table.caption}:\n\n{markdown_table(table.header, table.rows)}"
