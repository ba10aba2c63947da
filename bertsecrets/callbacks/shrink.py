"""Make a finished model smaller and faster, and test what it lost."""

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn

from bertsecrets.callbacks.head_analysis import HeadAnalysis, Result, without_errors
from bertsecrets.callbacks.trainer_state import data_of, shows_progress
from bertsecrets.data.batch import Batch
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.pruning.component_scores import ComponentScores, fisher_information
from bertsecrets.pruning.export import OnnxClassifier, check_onnx, export_int8, write_smaller
from bertsecrets.pruning.guarantee import class_changes, p_of_classes
from bertsecrets.pruning.latency import WARM_UP, compare_latency
from bertsecrets.pruning.latency_table import LatencyTable, measure_latency
from bertsecrets.pruning.removal import Kept, check_removable, keep_only, load_smaller, save_smaller
from bertsecrets.pruning.resume import Finished
from bertsecrets.pruning.searches import Searches, search_level
from bertsecrets.pruning.settings import ShrinkSettings, check_class_loss
from bertsecrets.pruning.shrink import (
    Answers,
    answers,
    as_fast_as_asked,
    check_can_rule_out,
    check_examples,
    length_changes,
    make_smaller,
    paired,
    plan,
    speedups_of,
    tests_of,
)
from bertsecrets.pruning.shrink_card import CARD, LOADERS, shrink_card
from bertsecrets.pruning.shrink_experiment import Shrinking, attempt_in_words, folder_of, shown_of, speedup_of
from bertsecrets.pruning.uniform import JUDGED, Answered, layers_in_turn, uniform_plan
from bertsecrets.results.files import write_text
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import Run

_log = logging.getLogger(__name__)

_DONE = "done"
"""Marks the folder of a smaller model that is complete."""

_INT8, _INT8_FILE = "int8", "model.int8.onnx"

_RESUMED = "shrinking"
"""Folder of what an interrupted search takes up."""

_ROUNDS = 20
"""Timed passes of a finished model."""


class ShrinkModel(HeadAnalysis):
    """Remove heads and neurons when a finished model is validated, and write the fastest model that is shown to be good enough.

    Where none is, the one that failed is written, to a folder whose name says so.

    What goes is chosen, and what remains is fitted and taught, on training examples; the evaluation set takes no part in it and
    judges each smaller model once, from the slowest on up to the first that fails. An interrupted search takes up the models that
    it had made.

    Args:
        run: The run to write results to.
        shrink: How fast, how made, and what must be shown.

    Raises:
        UserError: If a setting does not fit the model, the task or the examples.
    """

    without_labels = "the loss of a smaller model cannot be measured"
    learns = "Making a smaller model"

    def __init__(self, run: Run, shrink: ShrinkSettings | None = None) -> None:
        self.settings = shrink or ShrinkSettings.read("shrink", {})
        super().__init__(run, self.settings.evaluation)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        assert isinstance(pl_module, SequenceClassifier)
        check_removable(describe(pl_module.model))
        if {"onnx", _INT8} & {*self.settings.export}:
            check_onnx(("onnx", "onnxscript", "onnxruntime"))
        if trainer.world_size > 1:
            raise UserError(
                f"A smaller model is made by one process, but there are {trainer.world_size}; set trainer.devices=1 and trainer.num_nodes=1."
            )
        data, settings = data_of(trainer), self.settings
        check_class_loss("shrink", settings.max_class_loss, data.task)
        if data.task.is_regression:
            return
        split = data.evaluation[data.check_evaluation(self.evaluation)]
        count = len(data.encoded(split))
        level = search_level(settings.confidence, _searches(self.run, data.encoded(split)).next())
        _log.info(check_examples(count, settings.max_loss / 100, level))
        if settings.max_class_loss is not None:
            for label, number in enumerate(torch.bincount(data.labels(split)).tolist()):
                what = f"{number:,} examples of class {data.task.labels[label]}"
                if number:
                    check_can_rule_out(what, number, "shrink.max_class_loss", settings.max_class_loss / 100, level)

    def take(self, trainer: pl.Trainer, module: SequenceClassifier) -> Result:
        # Lightning validates in inference mode, whose tensors cannot take part in a backward pass.
        with torch.inference_mode(False), torch.no_grad():
            search = _Search(trainer, module.model, self.settings, self.run)
            attempts = list(search.attempts())
        shown = shown_of(attempts)
        kept_LH = torch.zeros(search.encoder.num_layers, search.encoder.num_heads)
        for layer, heads in enumerate(shown["heads"]):
            kept_LH[layer, heads] = 1
        grid = without_errors(Shrinking(), kept_LH[..., None], len(search.lengths))
        content = search.extras(attempts)
        return Result(Shrinking(), grid, content, finish=partial(search.finish, shown, content))


def _searches(run: Run, examples: EncodedSplit) -> Searches:
    return Searches.of(run, examples, run.folder / _RESUMED / "search.json")


class _Search:
    """A search for smaller models: its data, the whole model's answers, and what is tried."""

    def __init__(self, trainer: pl.Trainer, model: nn.Module, settings: ShrinkSettings, run: Run) -> None:
        self.model, self.settings, self.run = model, settings, run
        self.encoder = describe(model)
        self.device = next(self.encoder.model.parameters()).device
        self.data = data_of(trainer)
        self.evaluation = self.data.check_evaluation(settings.evaluation)
        self.context = trainer.precision_plugin.forward_context
        self.bar = partial(progress_over, visible=shows_progress(trainer))
        self.finished = Finished(run.folder / _RESUMED, [trainer.precision, self.data.task.name])
        self.lengths = self.data.evaluation_dataset(self.evaluation).lengths
        self.length = settings.length or max(2, round(sum(self.lengths) / len(self.lengths)))
        self.table = self._timed()
        self.speedups = speedups_of(settings, self.table)
        self.whole = self._answers(self.encoder.model)
        self.searches = _searches(run, self.data.evaluation_dataset(self.evaluation))
        self.search = 0

    def attempts(self) -> Iterator[dict[str, Any]]:
        """What each speed-up gave, up to the first that fails its tests."""
        settings = self.settings
        with self.bar(settings.examples, "scoring heads and neurons", unit="example") as advance:
            batches = _counted(self.data.training_sample(settings.examples), advance)
            scores = fisher_information(self.model, batches, context=self.context, seed=settings.seed)
        last: dict[str, Any] | None = None
        # Leaving out layers takes minutes, which a resumed search whose plans are made does without.
        planner = cache(partial(self._planner, scores))
        for speedup in self.speedups:
            attempt = self._attempt(speedup, *self._planned(planner, speedup))
            _log.info(attempt_in_words(attempt, self.extras([attempt])))
            yield attempt
            if not attempt["passed"]:
                break
            last = attempt
        if last is not None and _INT8 in settings.export:
            # The next step of the same fixed sequence; after one that failed, a search of its own.
            if not attempt["passed"]:
                self.search = self.searches.begin(anew=True)
            attempt = self._quantised(last)
            _log.info(attempt_in_words(attempt, self.extras([attempt])))
            yield attempt

    def extras(self, attempts: list[dict[str, Any]]) -> dict[str, Any]:
        """The results as plain values for the run's folder."""
        settings, search = self.settings, shown_of(attempts)["search"]
        training = len(self.data.training_split(max(settings.distilled_on, settings.examples)))
        return {
            "attempts": [{name: value for name, value in attempt.items() if name != "folder"} for attempt in attempts],
            "shape": settings.shape,
            "export": list(settings.export),
            "margin": settings.max_loss / 100,
            "class_margin": None if settings.max_class_loss is None else settings.max_class_loss / 100,
            "confidence": settings.confidence,
            "search": search,
            "level": search_level(settings.confidence, search),
            "counted": self.searches.folder is not None,
            "judged_on": len(self.lengths),
            "chosen_on": min(settings.examples, training),
            "taught_on": min(settings.distilled_on, training) if settings.epochs else 0,
            "epochs": settings.epochs,
            "parameters": sum(parameter.numel() for parameter in self.encoder.model.parameters()),
            "total_heads": self.encoder.num_heads,
            "total_neurons": self.table.widths[-1],
            "table": self.table.as_dict(),
        }

    def finish(self, shown: Mapping[str, Any], content: dict[str, Any]) -> None:
        """Write the fastest model that holds, or the first that failed, with its card; then remove what an interrupted search would take up."""
        # Weights made in inference mode could be neither trained nor exported.
        with torch.inference_mode(False):
            smaller, folder = load_smaller(Path(shown["folder"])), self.run.folder / folder_of(content["attempts"])
            write_smaller(smaller, folder, self.data.tokenizer, self.settings.export, self.data.max_length)
            if shown["int8"]:
                shutil.copyfile(Path(shown["folder"]) / _INT8_FILE, folder / _INT8_FILE)
        write_text(folder / CARD, shrink_card(content, self.run.name, self.data.task))
        _log.info(f"The smaller model is in {folder}; load it with {'.'.join(LOADERS[self.settings.shape])}.")
        self.finished.clear()

    def _timed(self) -> LatencyTable:
        """The latency table, of the interrupted search if there was one: another would lead to other models."""
        path = self.finished.folder / f"latency-{self.settings.batch_size}-{self.length}.json"
        if path.is_file():
            return LatencyTable.from_dict(json.loads(path.read_text("utf-8")))
        rounds = self.settings.latency_rounds
        with self.bar(rounds + WARM_UP, "timing layers", unit="round") as advance:
            table = measure_latency(
                self.model, batch_size=self.settings.batch_size, length=self.length, rounds=rounds, advance=advance
            )
        write_text(path, json.dumps(table.as_dict()))
        return table

    def _planner(self, scores: ComponentScores) -> Callable[[LatencyTable, float], Kept]:
        """What gives the plan for a speed-up, by a table."""
        if self.settings.shape == "free":
            return partial(plan, scores)
        count = min(JUDGED, self.settings.examples)
        answered = Answered(self.model, self.data.training_sample(count), self.context)
        layers = self.encoder.num_layers
        with self.bar(layers * (layers + 1) // 2 - 1, "leaving out layers", unit="set") as advance:
            layer_sets = layers_in_turn(answered, advance)
        return partial(uniform_plan, answered, layer_sets, scores)

    def _planned(
        self, planner: Callable[[], Callable[[LatencyTable, float], Kept]], speedup: float
    ) -> tuple[Kept, float]:
        """What a model keeps that is measured to be as fast as asked, and its predicted speed-up; of the interrupted search if it had
        come so far.
        """
        settings = self.settings
        path = self.finished.folder / f"plan-{settings.shape}-{speedup:g}-{settings.seed}-{settings.examples}.json"
        if path.is_file():
            content = json.loads(path.read_text("utf-8"))
            return Kept.from_dict(content["kept"]), content["predicted"]

        def measure(kept: Kept) -> float:
            smaller = keep_only(self.model, kept).eval()
            size, rounds = settings.batch_size, settings.latency_rounds + 1
            latency = compare_latency(self.encoder.model, smaller, self.length, [size], rounds)[size]
            return latency.whole / latency.smaller

        kept, predicted = as_fast_as_asked(planner(), self.table, speedup, measure)
        write_text(path, json.dumps({"kept": asdict(kept), "predicted": predicted}))
        return kept, predicted

    def _attempt(self, speedup: float, kept: Kept, predicted: float) -> dict[str, Any]:
        """Make, time and test one smaller model."""
        settings = self.settings
        recipe = (
            kept,
            settings.examples,
            settings.epochs,
            settings.distilled_on,
            settings.learning_rate,
            settings.seed,
        )
        folder = self.finished.model_file(self.model, frozenset(), recipe).with_suffix("")
        if (folder / _DONE).is_file():
            smaller = load_smaller(folder)
            _log.info(f"Resumed an interrupted search: the model for a speed-up of {speedup:g} was already made.")
        else:
            examples = min(settings.distilled_on, len(self.data.training_split(settings.distilled_on)))
            with self.bar(settings.epochs * examples, f"teaching, {speedup:g}x", unit="example") as advance:
                smaller = make_smaller(
                    self.model,
                    kept,
                    lambda: self.data.training_sample(settings.examples),
                    lambda: self.data.training_sample(settings.distilled_on),
                    settings,
                    context=self.context,
                    advance=advance,
                )
            save_smaller(smaller, folder)
            (folder / _DONE).touch()
        torch.nn.Module.to(smaller, self.device).eval()
        return {
            **self._judged(smaller, speedup),
            "asked": speedup,
            "folder": str(folder),
            "int8": False,
            "predicted": predicted,
            "parameters": sum(parameter.numel() for parameter in smaller.parameters()),
            "heads": [list(heads) for heads in kept.layers],
            "neurons": [len(neurons) for neurons in kept.neurons or ()],
        }

    def _quantised(self, attempt: dict[str, Any]) -> dict[str, Any]:
        """The same model with 8-bit weights, timed and tested in ONNX Runtime."""
        path = Path(attempt["folder"]) / _INT8_FILE
        if not path.is_file():
            export_int8(load_smaller(Path(attempt["folder"])), path, self.data.max_length)
        return {**attempt, **self._judged(OnnxClassifier(path), attempt["asked"]), "int8": True, "predicted": None}

    def _judged(self, smaller: Callable[..., Any], speedup: float) -> dict[str, Any]:
        """Times and tests of a smaller model."""
        settings, task = self.settings, self.data.task
        latencies = compare_latency(self.encoder.model, smaller, self.length, sorted({1, settings.batch_size}), _ROUNDS)
        latency = {str(size): latency.as_dict() for size, latency in latencies.items()}
        self.search = self.search or self.searches.begin()
        level, later = (search_level(settings.confidence, self.search + more) for more in (0, 1))
        pair, margin = (self.whole, self._answers(smaller)), settings.max_loss / 100
        tests, ruled_out = tests_of(*pair, task, margin, level)
        class_ruled_out = None
        if settings.max_class_loss is not None:
            # All tests must be passed, so none is corrected (Berger 1982).
            p_1 = p_of_classes(paired(*pair), settings.max_class_loss / 100)
            class_ruled_out = bool(p_1[0] <= 1 - level)
        # What a further search on the same examples would rule out.
        for test, of_later in zip(tests, tests_of(*pair, task, margin, later)[0], strict=True):
            test["bound_later"] = of_later["bound"]
        return {
            "latency": latency,
            # Without a speed-up asked for, none is missed.
            "missed": settings.speedup is not None and speedup_of({"latency": latency}, settings.batch_size) < speedup,
            "tests": tests,
            "classes": class_changes(paired(*pair), task, settings.confidence),
            "lengths": length_changes(*pair, task, self.lengths, settings.confidence),
            "search": self.search,
            "ruled_out": ruled_out,
            "class_ruled_out": class_ruled_out,
            "passed": ruled_out and class_ruled_out is not False,
        }

    def _answers(self, model: Callable[..., Any]) -> Answers:
        batches = self.data.evaluation_loader(self.evaluation)
        return answers(model, batches, self.data.task, self.context, self.device)


def _counted(batches: Iterable[Batch], advance: Callable[..., object]) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        advance(batch.size)
