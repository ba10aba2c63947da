"""Jensen-Shannon divergence between the maps of all pairs of heads."""

import torch
from torch import Tensor

_TILE, _DEVICE_TILE = 2048, 65_536
"""Columns of a tile: few enough for a processor's cache, many enough to keep a GPU busy."""

_TINY = 1e-30
"""Stands in for a weight of 0, whose logarithm is infinite; x ln x is then below 1e-28."""


def pairwise_divergence(map_NM: Tensor) -> Tensor:
    """Divergence of N maps from each other, in nats, summed over their rows: ``[N, N]`` float64.

    With s = p + q and G(p, q) = sum of s ln s, the divergence H(s / 2) - (H(p) + H(q)) / 2 of two distributions is
    (G(p, p) + G(q, q)) / 4 - G(p, q) / 2: one logarithm for each weight of each pair, and none twice.

    Args:
        map_NM: Weights in 0..1, ``[heads, rows * keys]``, float32 or wider, without padding; each row sums to 1.

    Returns:
        Symmetric, 0 on the diagonal, at most ln 2 times the number of rows.
    """
    count, size = map_NM.shape
    tile = min(size, _TILE if map_NM.device.type == "cpu" else _DEVICE_TILE)
    # MPS has no float64.
    host = "cpu" if map_NM.device.type == "mps" else map_NM.device
    total_NN = torch.zeros((count, count), dtype=torch.float64, device=host)
    sum_T, log_T = map_NM.new_empty(count * tile), map_NM.new_empty(count * tile)
    for start in range(0, size, tile):
        part_NT = map_NM[:, start : start + tile].clamp(min=_TINY)
        width = part_NT.shape[1]
        for head in range(count):
            rest = count - head
            sum_RT, log_RT = (buffer_T[: rest * width].view(rest, width) for buffer_T in (sum_T, log_T))
            torch.add(part_NT[head:], part_NT[head], out=sum_RT)
            torch.log(sum_RT, out=log_RT)
            total_NN[head, head:] += torch.linalg.vecdot(sum_RT, log_RT).to(host)
    own_N = total_NN.diagonal()
    upper_NN = ((own_N[:, None] + own_N) / 4 - total_NN / 2).triu(1).clamp(min=0)
    return upper_NN + upper_NN.T
