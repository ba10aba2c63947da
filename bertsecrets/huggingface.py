"""The callbacks on heads in the Trainer of Hugging Face.

>>> import bertsecrets as bs
>>> callbacks = [bs.HeadsCallback(bs.MeasureHeads("entropy", "drift"), bs.DisableHeads())]
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import move_data_to_device
from pytorch_lightning.utilities.seed import isolate_rng
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bertsecrets.ablation.own_outcome import run_on
from bertsecrets.errors import UserError
from bertsecrets.lightning import AnalyseHeads
from bertsecrets.models.encoder import evaluating


class _Trainer:
    """What the callbacks ask of a trainer, answered by the Trainer's arguments and state."""

    ckpt_path = None
    sanity_checking = False
    progress_bar_callback = None
    loggers: tuple[Any, ...] = ()
    convert_module = staticmethod(lambda module: module)
    forward_context = nullcontext

    def __init__(self, args: TrainingArguments, state: TrainerState) -> None:
        self.fn = "validate"
        self.args, self.hf_state = args, state
        self.enable_validation = args.eval_strategy != "no"
        self.default_root_dir = args.output_dir
        self.global_rank, self.world_size = args.process_index, args.world_size
        self.tokenizer: Any = None
        self.val_dataloaders: Any = None
        # Everything that Lightning keeps elsewhere is here.
        self.state = self.strategy = self.precision_plugin = self.datamodule = self

    @property
    def global_step(self) -> int:
        return self.hf_state.global_step

    @property
    def estimated_stepping_batches(self) -> int:
        return self.hf_state.max_steps

    @property
    def is_global_zero(self) -> bool:
        return self.hf_state.is_world_process_zero

    def broadcast(self, value: Any) -> Any:
        shared = [value]
        if self.world_size > 1:
            torch.distributed.broadcast_object_list(shared)
        return shared[0]


class HeadsCallback(TrainerCallback):
    """Run callbacks on heads in ``transformers.Trainer``: at every evaluation, as they say, and at the end of training.

    Args:
        callbacks: Of :mod:`bertsecrets.lightning`: ``MeasureHeads("entropy")``, ``DisableHeads()``, ... Findings go to
            ``heads`` in the Trainer's output folder.
    """

    def __init__(self, *callbacks: pl.Callback) -> None:
        self.callbacks = callbacks
        self._trainer: Any = None
        self._evaluated: tuple[int, set[str]] | None = None

    def _forward(self, call: Callable[[Any], object]) -> None:
        for callback in self.callbacks:
            call(callback)

    def _begin(
        self, args: TrainingArguments, state: TrainerState, model: PreTrainedModel, tokenizer: Any, fn: str
    ) -> None:
        if self._trainer is None or self._trainer.args is not args:
            self._trainer = _Trainer(args, state)
        self._trainer.fn, self._trainer.hf_state, self._trainer.tokenizer = fn, state, tokenizer
        self._forward(lambda callback: callback.setup(self._trainer, model, fn))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        model = given["model"]
        self._evaluated = None
        self._begin(args, state, model, given.get("processing_class"), "fit")
        self._forward(lambda callback: callback.on_fit_start(self._trainer, model))
        self._forward(lambda callback: callback.on_train_start(self._trainer, model))

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._forward(
            lambda callback: callback.on_before_optimizer_step(self._trainer, given["model"], given["optimizer"])
        )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        self._forward(lambda callback: callback.on_train_batch_end(self._trainer, given["model"], None, None, 0))

    @isolate_rng()
    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        model, loader = given["model"], given["eval_dataloader"]
        if self._trainer is None or self._trainer.fn != "fit":
            self._begin(args, state, model, given.get("processing_class"), "validate")
        trainer = self._trainer
        names = set(given.get("metrics") or ())
        step, earlier = self._evaluated or (-1, names)
        # With several evaluation sets, only the prefix of the metrics tells which one this is.
        if trainer.fn == "fit" and step == state.global_step and names != earlier:
            raise UserError(
                "This training has several evaluation sets, and heads are analysed on one; give the Trainer one data "
                "set as eval_dataset."
            )
        self._evaluated = state.global_step, names
        trainer.val_dataloaders = loader
        own = [callback for callback in self.callbacks if isinstance(callback, AnalyseHeads)]
        for recorder in {id(recorder): recorder for recorder in (one.own.recorder(model) for one in own)}.values():
            recorder.clear()
            with evaluating(model), torch.no_grad():
                for batch in loader:
                    on_device = move_data_to_device(batch, model.device)
                    with recorder.recording(on_device):
                        run_on(model, on_device)
        self._forward(lambda callback: callback.on_validation_epoch_end(trainer, model))
        self._forward(lambda callback: callback.on_validation_end(trainer, model))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        self._forward(lambda callback: callback.on_train_end(self._trainer, given["model"]))
        self._trainer.fn = "validate"
