"""How alike the maps of any two heads are, over all layers."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from bertsecrets.attention.watch import watch
from bertsecrets.data.batch import Batch
from bertsecrets.models.encoder import describe, unwrap


def jensen_shannon_between(attention_HQK: Tensor) -> Tensor:
    """Jensen-Shannon divergence between the maps of every two heads of one example, in nats.

    The mean over query positions of H((p + q) / 2) - (H(p) + H(q)) / 2 (Clark et al. 2019, section 6, who sum over
    positions).

    Args:
        attention_HQK: Maps over real tokens alone, rows summing to one.

    Returns:
        ``[H, H]``, symmetric, 0 on the diagonal, at most ln 2.
    """
    heads = len(attention_HQK)
    entropy_HQ = torch.special.entr(attention_HQK).sum(-1)
    divergence_HH = attention_HQK.new_zeros(heads, heads)
    for head in range(heads - 1):
        mixed_GQK = (attention_HQK[head + 1 :] + attention_HQK[head]) / 2
        between_G = (torch.special.entr(mixed_GQK).sum(-1) - (entropy_HQ[head + 1 :] + entropy_HQ[head]) / 2).mean(-1)
        divergence_HH[head, head + 1 :] = between_G.clamp(min=0)
    return divergence_HH + divergence_HH.T


class HeadDistance(Metric):
    """Jensen-Shannon distance (square root of the divergence) between all heads, averaged over examples."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(num_heads, num_heads, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, attention_HQK: Tensor) -> None:
        """Adds one example: the maps of all layers' heads, real tokens alone."""
        self.total += jensen_shannon_between(attention_HQK).to(self.total)
        self.count += 1

    def compute(self) -> Tensor:
        """``[H, H]``, in 0 to sqrt(ln 2), heads in order of layer and head."""
        return (self.total / self.count).sqrt().cpu()


@torch.no_grad()
def head_distances(
    model: nn.Module,
    batches: Iterable[Batch],
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    progress: Callable[[], object] | None = None,
) -> Tensor:
    """Distances between all heads of a model, ``[L * H, L * H]``, reduced over all processes.

    All maps of one batch are alive at once: give small batches.
    """
    network, encoder = unwrap(model), describe(model)
    device = next(network.parameters()).device
    distance = HeadDistance(encoder.num_layers * encoder.num_heads)
    if device.type != "mps":
        distance = distance.to(device)
    training = network.training
    network.eval()
    try:
        for on_host in batches:
            batch = on_host.to(device)
            maps: list[Tensor] = []

            def observe(_: int, attention_BHQK: Tensor, maps: list[Tensor] = maps) -> None:
                maps.append(attention_BHQK)

            with context(), watch(network, observe):
                network(**batch.inputs())
            for row, length in enumerate(batch.lengths_B.tolist()):
                distance.update(torch.cat([each[row, :, :length, :length] for each in maps]))
            if progress is not None:
                progress()
    finally:
        network.train(training)
    result: Tensor = distance.compute()
    return result
