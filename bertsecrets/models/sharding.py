"""Spreads a model's weights over processes, layer by layer."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

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
