"""A trainer with toy data, for callbacks that take an analysis at the last validation."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from pytorch_lightning.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from bertsecrets.data.module import TaskData
from bertsecrets.data.sampler import BucketedEvalSampler
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit

CLASSES = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))


def trainer_of(split: EncodedSplit, task: Task = CLASSES) -> Any:
    data: Any = TaskData.__new__(TaskData)
    data.task, data.config = task, SimpleNamespace(eval_batch_size=4)
    data.check_evaluation = lambda name: "val"
    data.evaluation_dataset = data.encoded = lambda name: split
    data.loader_of = lambda split, positions=None: DataLoader(
        split, sampler=BucketedEvalSampler(split.lengths, 4, positions=positions), batch_size=None
    )
    data.evaluation_loader = lambda name, max_examples=None: data.loader_of(split)
    return SimpleNamespace(
        datamodule=data,
        precision="32-true",
        precision_plugin=SimpleNamespace(forward_context=nullcontext),
        is_global_zero=True,
        progress_bar_callback=None,
        loggers=[],
        sanity_checking=False,
        state=SimpleNamespace(fn=TrainerFn.VALIDATING),
        global_step=7,
    )
