"""An analysis of a tiny model on a few examples, without a trainer, and what rows of a judged sweep share."""

from pathlib import Path

from torch import nn

from bertsecrets.analysis import Analysis, Context, find, record
from bertsecrets.data.task import Task
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.results.run import CHECKPOINT, Run
from bertsecrets.results.views import MeasureView

CLASSES = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b", "c"))

JUDGED = {
    "metric": "accuracy",
    "margin": 0.01,
    "level": 0.95,
    "correction": "family_wise",
    "false_discovery_rate": 0.05,
    "sweep": "exact",
}


def analysed(analysis: Analysis, model: nn.Module, split: EncodedSplit, folder: Path) -> MeasureView:
    """What an analysis finds on examples in batches of one, written to a folder and read back."""
    run = Run(folder, "run", "tiny", "toy", "pretrained")
    context = Context.of_split(model, CLASSES, split, 1, progress=False, output=run)
    record(run, find(analysis, context), CHECKPOINT, 7)
    context.store.clear()
    (declaration,) = run.declarations()
    return MeasureView(run, declaration)
