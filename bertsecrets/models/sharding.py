"""Spreads a model's weights over processes, layer by layer."""

from pytorch_lightning.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from bertsecrets.models.encoder import describe


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shards the weights of a model in place; a layer's are whole only while it runs (torch's ``fully_shard``).

    Args:
        model: Any module that holds a transformers encoder; may be called itself, or layer by layer, as before.
        mesh: One-dimensional: the processes to spread over.
    """
    for layer in {id(layer): layer for layer in describe(model).layers}.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def set_whole(model: nn.Module, whole: bool) -> None:
    """Gathers all weights of a sharded model on every process, or spreads them again; nothing if it is not sharded.

    While they are whole, processes may run different numbers of forward passes, and weights may be read.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in parts:
        module.set_reshard_after_forward(not whole, recurse=False)
        if whole:
            module.unshard()
        else:
            module.reshard()


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for sharded weights, over all processes, with checkpoints that any number of them can read."""

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        # The number of processes is known only now: the trainer has counted the devices.
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()
