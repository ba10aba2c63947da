"""Prune a finished model: remove heads by a score, and return the smallest model with a guarantee."""

import logging
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import nn

from bertsecrets.callbacks.trainer_state import current_step, is_last_validation, shows_progress, stage_of
from bertsecrets.data.module import TaskData
from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.models.classifier import SequenceClassifier
from bertsecrets.models.encoder import describe
from bertsecrets.pruning.experiment import Pruning
from bertsecrets.pruning.export import export_onnx, export_program
from bertsecrets.pruning.removal import remove_heads, save_pruned
from bertsecrets.pruning.scores import RANDOM
from bertsecrets.pruning.search import Chosen, as_extras, check_scores, check_settings, search
from bertsecrets.pruning.sets import cost
from bertsecrets.pruning.settings import PruneSettings
from bertsecrets.results.files import folder_write
from bertsecrets.results.progress import progress_over
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.results.views import OWN, Array

_log = logging.getLogger(__name__)


class PruneHeads(pl.Callback):
    """Remove heads when a finished model is validated, and write the smallest model with a guarantee to ``pruned/``.

    The heads are chosen on training examples and tested on an evaluation set, which chose neither them nor their order.

    Args:
        run: The run to write results to.
        prune: Which heads go, how far, and what must be shown.

    Raises:
        UserError: If a setting does not fit the model or the task.
    """

    def __init__(self, run: Run, prune: PruneSettings | None = None) -> None:
        self.run = run
        self.settings = prune or PruneSettings()
        check_scores(self.settings)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, SequenceClassifier)
        data = getattr(trainer, "datamodule", None)
        if isinstance(data, TaskData):
            data.check_evaluation(self.settings.evaluation)
            if not data.task.is_labelled:
                raise UserError(
                    f"Task '{data.task.name}' has no labels, so the loss of a smaller model cannot be measured; choose a "
                    "labelled task."
                )
        check_settings(self.settings, describe(pl_module.model))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not is_last_validation(trainer):
            return
        assert isinstance(pl_module, SequenceClassifier)
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        settings, model = self.settings, pl_module.model
        evaluation = data.check_evaluation(settings.evaluation)
        count = sum(settings.seeds if name == RANDOM else 1 for name in dict.fromkeys(settings.scores))
        with progress_over(count, "ordering heads", visible=shows_progress(trainer), unit="order") as advance:
            orders, chosen = search(
                model,
                data.task,
                lambda: data.training_sample(settings.examples),
                lambda: data.evaluation_loader(evaluation),
                settings,
                self._columns(),
                context=trainer.precision_plugin.forward_context,
                progress=advance,
            )
        if not trainer.is_global_zero:
            return
        lengths = data.evaluation_dataset(evaluation).lengths
        costs = cost(model, max(1, round(sum(lengths) / len(lengths))))
        extras = as_extras(orders, chosen, data.task.metrics[0], settings, costs)
        self.run.folder.mkdir(parents=True, exist_ok=True)
        self.run.write_json(self.run.extras_path(Pruning.name), {OWN: extras})
        self.run.declare(Pruning().declaration())
        self.run.add(self.run.rows(_grid(model, chosen), stage_of(trainer), current_step(trainer, pl_module)))
        if settings.save and chosen.place is not None and self.run.writes:
            # Copies of weights made in inference mode could be neither trained nor exported.
            with torch.inference_mode(False):
                self._save(model, chosen, data)

    def _save(self, model: nn.Module, chosen: Chosen, data: TaskData) -> None:
        assert chosen.place is not None
        folder: Path = self.run.folder / "pruned"
        source = chosen.order.models[chosen.place] if chosen.order.models else model
        try:
            smaller = remove_heads(source, sorted(chosen.order.sets[chosen.place]))
        except UserError as error:
            # The result stands without the files: some families cannot be made physically smaller.
            _log.warning(f"No pruned model is written. {error}")
            return
        smaller = smaller.cpu().eval()
        save_pruned(smaller, folder)
        with folder_write(folder):
            data.tokenizer.save_pretrained(folder)
        for kind in self.settings.export:
            if kind == "program":
                export_program(smaller, folder / "model.pt2", data.max_length)
            else:
                export_onnx(smaller, folder / "model.onnx", data.max_length)
        _log.info(f"The pruned model is in {folder}; load it with bertsecrets.load_pruned.")

    def _columns(self) -> dict[str, Array]:
        """The columns of the run's head table at their last step."""
        columns: dict[str, Array] = {}
        table = self.run.table().select(stage=CHECKPOINT)
        for measure, column in sorted(
            set(zip(*(table.table[name].to_pylist() for name in ("measure", "column")), strict=True))
        ):
            step = table.steps(measure, column, CHECKPOINT)[-1]
            columns[f"{measure}/{column}"] = table.grid(measure, column, CHECKPOINT, step)[0]
        return columns


def _grid(model: nn.Module, chosen: Chosen) -> HeadGrid:
    """For each head, the number of heads removed with or before it, and whether the returned model keeps it."""
    encoder = describe(model)
    shape = (encoder.num_layers, encoder.num_heads)
    at_LH, kept_LH = torch.full(shape, torch.nan), torch.ones(shape)
    for heads in reversed(chosen.order.sets):
        for layer, head in heads:
            at_LH[layer, head] = len(heads)
    if chosen.place is not None:
        for layer, head in chosen.order.sets[chosen.place]:
            kept_LH[layer, head] = 0
    value_LHC = torch.stack((at_LH, kept_LH), -1)
    count = torch.full_like(value_LHC, chosen.outcome.examples, dtype=torch.int64)
    return HeadGrid(Pruning.name, Pruning.columns, value_LHC, torch.full_like(value_LHC, torch.nan), count)
