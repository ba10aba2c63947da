"""A toy measure and batches for it, and measures as pages see them."""

from collections.abc import Sequence
from pathlib import Path

import torch
from families import batch_of, tiny_batch
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.grid import Column, HeadGrid
from bertsecrets.measures.base import Measure
from bertsecrets.results.run import Run
from bertsecrets.results.views import MeasureView


class Focus(Measure):
    """The mean over queries of the largest weight; examples of fewer than five tokens do not count in the second
    column.
    """

    name = "focus"
    title = "Focus"
    columns = (Column("all", "all examples"), Column("long", "examples of five tokens or more"))

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        real_BQ = batch.attention_mask_BS.to(attention_BHQK)
        mean_BH = (attention_BHQK.amax(-1) * real_BQ[:, None]).sum(-1) / real_BQ.sum(-1)[:, None]
        long_BH = mean_BH.masked_fill((batch.lengths_B < 5)[:, None], torch.nan)
        return torch.stack([mean_BH, long_BH], -1)


def batches() -> list[Batch]:
    built = []
    for start, lengths in ((0, (11, 7, 4)), (3, (9, 9, 3, 6))):
        inputs = tiny_batch(lengths)
        built.append(batch_of({**inputs, "input_ids": (inputs["input_ids"] + start) % 90}, first=start))
    return built


def view_of(
    folder: Path,
    measure: Measure,
    grid: HeadGrid,
    found: Sequence[object] = (),
) -> MeasureView:
    """A measure's numbers, and what it found beside its grid, in the folder of a run."""
    run = Run(folder, "run", "toy", "demo", "pretrained")
    run.declare(measure.declaration())
    run.add(run.rows(grid, "checkpoint", 0))
    run.write_rows(measure.name, "checkpoint", 0, found)
    return MeasureView(run, measure.declaration())
