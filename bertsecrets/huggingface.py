"""The callbacks on heads in the Trainer of Hugging Face.

>>> import bertsecrets as bs
>>> callbacks = [bs.HeadsCallback(bs.MeasureHeads("entropy", "drift"), bs.DisableHeads())]
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import nullcontext
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import move_data_to_device
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bertsecrets.ablation.own_outcome import run_on
from bertsecrets.callbacks.own_module import sharded_weights
from bertsecrets.errors import UserError, choices
from bertsecrets.lightning import AnalyseHeads, announce
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
        self.enable_validation = True
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

    Without evaluations (``eval_strategy="no"``), the Trainer evaluates once, after the last step.

    Args:
        callbacks: Of :mod:`bertsecrets.lightning`: ``MeasureHeads("entropy")``, ``DisableHeads()``, ... Findings go to
            ``heads`` in the Trainer's output folder.
        eval_dataset: The name of the data set whose examples are used, where the Trainer's ``eval_dataset`` holds
            several; None for the first.

    Raises:
        UserError: At the start of training, if the Trainer has no such data set, or shards weights.
    """

    def __init__(self, *callbacks: pl.Callback, eval_dataset: str | None = None) -> None:
        self.callbacks, self.eval_dataset = callbacks, eval_dataset
        self._trainer: Any = None
        self._evaluated = -1

    def _forward(self, call: Callable[[Any], object]) -> None:
        for callback in self.callbacks:
            call(callback)

    @property
    def _analyses(self) -> list[AnalyseHeads]:
        return [callback for callback in self.callbacks if isinstance(callback, AnalyseHeads)]

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
        model, calling = given["model"], _calling_trainer()
        if calling.is_fsdp_enabled or calling.is_deepspeed_enabled:
            raise sharded_weights("DistributedDataParallel (neither fsdp nor deepspeed)")
        if calling.eval_dataset is None and self._analyses:
            raise UserError(
                "Heads are analysed on the Trainer's eval_dataset, and it has none; give Trainer(eval_dataset=...)."
            )
        self._chosen_of(calling.eval_dataset)
        self._evaluated = -1
        self._begin(args, state, model, given.get("processing_class"), "fit")
        self._forward(lambda callback: callback.on_fit_start(self._trainer, model))
        self._forward(lambda callback: callback.on_train_start(self._trainer, model))

    def _chosen_of(self, sets: Any) -> str | None:
        """The name of the chosen one of several evaluation sets; None where there is one."""
        names = [*map(str, sets)] if isinstance(sets, Mapping) else []
        if self.eval_dataset is not None and self.eval_dataset not in names:
            raise UserError(
                f"eval_dataset is '{self.eval_dataset}', which the Trainer's eval_dataset does not have; "
                + (f"{choices(self.eval_dataset, names)}." if names else "leave it out, as there is one data set.")
            )
        return self.eval_dataset or next(iter(names), None)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._forward(
            lambda callback: callback.on_before_optimizer_step(self._trainer, given["model"], given["optimizer"])
        )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        self._forward(lambda callback: callback.on_train_batch_end(self._trainer, given["model"], None, None, 0))
        self._ask_for_evaluation(args, state, control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        self._ask_for_evaluation(args, state, control)

    def _ask_for_evaluation(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Let a Trainer that does not evaluate do so after its last step."""
        ends = control.should_training_stop or state.global_step >= state.max_steps
        if args.eval_strategy == "no" and ends and self._evaluated != state.global_step and self._analyses:
            control.should_evaluate = True

    @isolate_rng()
    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        model, loader = given["model"], given["eval_dataloader"]
        sets = _calling_trainer().eval_dataset
        evaluated = _evaluated_set(given.get("metrics") or (), sets if isinstance(sets, Mapping) else ())
        if evaluated not in (None, self._chosen_of(sets)):
            return
        if self._trainer is None or self._trainer.fn != "fit":
            self._begin(args, state, model, given.get("processing_class"), "validate")
        trainer = self._trainer
        self._evaluated = state.global_step
        trainer.val_dataloaders = loader
        for recorder in {
            id(recorder): recorder for recorder in (one.own.recorder(model) for one in self._analyses)
        }.values():
            recorder.clear()
            with evaluating(model), torch.no_grad():
                for batch, index_B in _numbered(loader, args):
                    on_device = move_data_to_device(batch, model.device)
                    with recorder.recording(on_device, index_B=index_B):
                        run_on(model, on_device)
        self._forward(lambda callback: callback.on_validation_epoch_end(trainer, model))
        self._forward(lambda callback: callback.on_validation_end(trainer, model))
        if trainer.fn != "fit":
            announce()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        self._forward(lambda callback: callback.on_train_end(self._trainer, given["model"]))
        self._trainer.fn = "validate"
        announce()


def _calling_trainer() -> Any:
    """The Trainer that calls a callback, to which it hands all but itself."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if hasattr(caller, "eval_dataset") and hasattr(caller, "callback_handler"):
            return caller
        frame = frame.f_back
    raise UserError("HeadsCallback is called by no Trainer; give it to one: Trainer(..., callbacks=[heads]).")


def _evaluated_set(metrics: Iterable[str], names: Iterable[Any]) -> str | None:
    """The name of the evaluation set that metrics are of: they begin with it; None if it is none of several."""
    own = [metric for metric in metrics if metric != "epoch"]
    fitting = [str(name) for name in names if all(metric.startswith(f"eval_{name}_") for metric in own)]
    return max(fitting, key=len, default=None)


def _numbered(loader: Any, args: TrainingArguments) -> Iterator[tuple[Any, Tensor | None]]:
    """A process's batches, and the number of each example in the order of the loader: the processes take whole batches
    in turn, and the last ones repeat examples, which are number -1.
    """
    whole = len(loader.dataset) if isinstance(loader.dataset, Sized) else None
    # The loader of one process knows only the size of its batches as they come.
    size = getattr(loader, "total_batch_size", None) or args.eval_batch_size * args.world_size
    begun = 0
    for step, batch in enumerate(loader):
        count = next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()), 0)
        if args.world_size == 1:
            yield batch, torch.arange(begun, begun + count)
        elif whole is None:
            yield batch, None
        else:
            index_B = step * size + args.process_index * (size // args.world_size) + torch.arange(count)
            yield batch, index_B.where(index_B < whole, -1)
        begun += count
