"""Shard a model's weights over processes, layer by layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from pytorch_lightning.trainer.states import TrainerFn
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from bertsecrets.models.encoder import describe

SHARDED = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)
"""Lightning's strategies in which no process has the whole weights, such as :class:`ShardedStrategy`."""


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the weights of a model in place; a layer's weights are gathered only while it runs (``fully_shard``).

    Args:
        model: Any module that contains a transformers encoder; it can be called as before, whole or layer by layer.
        mesh: The processes to shard over, one-dimensional.
    """
    # A shared layer only once: fully_shard rejects a module that is already sharded.
    for layer in {id(layer): layer for layer in describe(model).layers}.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def set_whole(model: nn.Module, whole: bool) -> None:
    """Gather all weights of a sharded model on every process, or shard them again; do nothing if it is not sharded.

    While they are gathered, processes may run different numbers of forward passes, and weights can be read.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in parts:
        module.set_reshard_after_forward(not whole, recurse=False)
        if whole:
            module.unshard()
        else:
            module.reshard()


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Gather all weights of a sharded model on every process for the block, see :func:`set_whole`."""
    set_whole(model, True)
    try:
        yield
    finally:
        set_whole(model, False)


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for sharded weights over all processes; any number of processes can read its checkpoints."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        # The number of processes is only known after the trainer has counted the devices.
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        module = self.lightning_module
        if module is not None and module.trainer.state.fn == TrainerFn.FITTING:
            return super().load_checkpoint(checkpoint_path, weights_only)
        # After training, the optimizers still exist, but the checkpoint of the best weights has no states for them.
        optimizers, self.optimizers = self.optimizers, []
        try:
            return super().load_checkpoint(checkpoint_path, weights_only)
        finally:
            self.optimizers = optimizers
