"""Gradients and updates by layer and head: do the top layers change more because of larger gradients?"""

import math
from collections.abc import Callable
from typing import Annotated, Any

import pytorch_lightning as pl
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from bertsecrets.analysis import without_errors
from bertsecrets.callbacks.run_analysis import log_grids
from bertsecrets.errors import UserError
from bertsecrets.grid import Column, HeadGrid, Shown
from bertsecrets.models.encoder import Encoder, describe
from bertsecrets.models.sharding import SHARDED
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.run import TRAINING, Run
from bertsecrets.results.table import HeadTable

EVERY_OF_UNKNOWN = 100
"""Interval between recorded steps if the number of steps is unknown."""


class GradientFlow(pl.Callback, Experiment):
    """Record gradient norms and update sizes of each layer and head during training.

    ``gradient_norm`` is the L2 norm of the gradient before clipping; ``update_ratio`` is the norm of one step's change
    over the norm of the weights, |dW| / |W|. A layer's numbers cover all its weights. A head's numbers cover its rows
    of the query, key and value projections and its columns of the output projection. Layers that share their weights
    (ALBERT) share their numbers.

    Recording a step needs one copy of the encoder's weights; other steps cost nothing.

    Args:
        run: The run; numbers go to its head table as measure ``gradient_flow``.
        points: Approximate number of training steps to record, spread evenly, including the first; every 100th if the
            number of steps is unknown.

    Raises:
        UserError: If ``points`` is not positive, or the weights are sharded over processes.
    """

    name = "gradient_flow"
    title = "Gradient flow"
    shown = Shown(compared=False, reads_task=True)
    presenter = "bertsecrets.present.gradient_flow:PRESENTER"
    columns = (
        Column("gradient_norm", "gradient norm before clipping", "gradient norm (L2)"),
        Column("update_ratio", "size of one optimiser step relative to the weights", "update norm ÷ weight norm"),
    )

    def __init__(self, run: Run, points: Annotated[int, Field(ge=1, description="a whole number from 1")] = 30) -> None:
        self.run = run
        self.points = points
        self._encoder: Encoder | None = None
        self._every = 1
        self._before: dict[int, Tensor] = {}
        self._gradients: tuple[Tensor, Tensor] | None = None
        self._rows: list[HeadTable] = []

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if isinstance(trainer.strategy, SHARDED):
            raise UserError(
                "The gradient_flow callback needs unsharded weights, but this strategy shards them; remove it with "
                "'~callbacks.gradient_flow'."
            )
        self._encoder = describe(self.holder(pl_module))
        self.run.declare(self.declaration())

    def holder(self, module: pl.LightningModule) -> nn.Module:
        """The part of a module that contains the encoder."""
        return module

    def log_layers(self, trainer: pl.Trainer, grid: HeadGrid, step: int) -> None:
        """Log the numbers of layers."""
        log_grids(trainer, [grid], step, self)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        steps = trainer.estimated_stepping_batches
        # Infinite or -1 if the end is unknown: data without a length, or unlimited epochs.
        self._every = max(1, int(steps) // self.points) if 0 < steps < math.inf else EVERY_OF_UNKNOWN

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        if not trainer.is_global_zero or trainer.global_step % self._every:
            return
        assert self._encoder is not None
        self._gradients = norms(self._encoder, lambda parameter: parameter.grad)
        self._before = {
            id(parameter): parameter.detach().clone()
            for layer in self._encoder.layers
            for parameter in layer.parameters()
            if parameter.requires_grad
        }

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._gradients is None:
            return
        assert self._encoder is not None
        before = self._before
        change_L, change_LH = norms(
            self._encoder,
            lambda parameter: parameter.detach() - before[id(parameter)] if id(parameter) in before else None,
        )
        weight_L, weight_LH = norms(self._encoder, lambda parameter: parameter.detach())
        gradient_L, gradient_LH = self._gradients
        # The step of the gradients: the counter has already advanced.
        step = trainer.global_step - 1
        layers = self._keep(step, gradient_L[:, None], (change_L / weight_L)[:, None], whole_layers=True)
        self._keep(step, gradient_LH, change_LH / weight_LH, whole_layers=False)
        self.log_layers(trainer, layers, step)
        self._gradients, self._before = None, {}

    def _keep(self, step: int, gradient_LH: Tensor, ratio_LH: Tensor, whole_layers: bool) -> HeadGrid:
        grid = without_errors(self, torch.stack((gradient_LH, ratio_LH), dim=-1), whole_layers=whole_layers)
        self._rows.append(self.run.rows(grid, TRAINING, step))
        return grid

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # Numbers before a checkpoint must be on disk, because a resumed run does not recompute them.
        self._flush()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._flush()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._flush()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        self.run.add(*rows)


@torch.no_grad()
def norms(encoder: Encoder, of: Callable[[nn.Parameter], Tensor | None]) -> tuple[Tensor, Tensor]:
    """L2 norms of a tensor for each parameter, by layer ``[L]`` and by head ``[L, H]``, float64 on the CPU.

    Args:
        encoder: The encoder.
        of: Parameter -> tensor of its shape, or None if there is no tensor (the gradient of a frozen parameter).
    """
    layer_squares: list[Tensor] = []
    head_squares: list[Tensor] = []
    device = next(encoder.base.parameters()).device
    for layer, site in zip(encoder.layers, encoder.sites, strict=True):
        total = torch.zeros((), device=device)
        for parameter in layer.parameters():
            tensor = of(parameter)
            if tensor is not None:
                total = total + tensor.float().square().sum()
        layer_squares.append(total)
        by_head_H = torch.zeros(encoder.num_heads, device=device)
        if encoder.family is None:
            by_head_H = by_head_H + math.nan
        else:
            for parameter, shape, dimension in encoder.family.head_weights(site, encoder.num_heads):
                tensor = of(parameter)
                if tensor is not None:
                    squares = tensor.float().view(shape).square()
                    by_head_H = by_head_H + squares.sum([d for d in range(len(shape)) if d != dimension])
        head_squares.append(by_head_H)
    return torch.stack(layer_squares).sqrt().cpu().double(), torch.stack(head_squares).sqrt().cpu().double()
