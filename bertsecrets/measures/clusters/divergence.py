"""Jensen-Shannon divergence between the maps of all pairs of heads."""

import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from bertsecrets.float64 import float64_device

_TILE, _DEVICE_TILE, _BLOCK_TILE = 2048, 65_536, 1024
"""Columns per tile: few enough for a CPU cache, enough to keep a GPU busy."""

_BLOCK = 16
"""Number of heads that the compiled function compares with all others at once."""

_COMPILE_FROM = 6e9
"""Number of weight pairs above which compiling pays off: computing this many uncompiled takes about 15 seconds, as long
as compiling.
"""

_TINY = 1e-30
"""Replaces a weight of 0, whose logarithm is infinite; x ln x is then below 1e-28."""

logger = logging.getLogger(__name__)


class PairwiseDivergence:
    """Divergence between heads, map by map; compiled on a CPU once there is enough to compute.

    With s = p + q and G(p, q) = sum of s ln s, the divergence H(s / 2) - (H(p) + H(q)) / 2 of two distributions is
    (G(p, p) + G(q, q)) / 4 - G(p, q) / 2: one logarithm per weight and pair.

    Compiled, the logarithm is a polynomial in the same loop as the sums: three to four times as fast, with a relative
    error below 3e-7. Without a C++ compiler, the uncompiled code is used.

    Args:
        compile_from: Total number of weight pairs above which to compile; infinity for never.
    """

    def __init__(self, compile_from: float = _COMPILE_FROM) -> None:
        self.compile_from = compile_from
        self._seen = 0

    def __call__(self, map_NM: Tensor) -> Tensor:
        """Divergence of N maps in nats, summed over their rows: ``[N, N]`` float64.

        Args:
            map_NM: Weights in 0..1, ``[heads, rows * keys]``, float32 or wider, without padding; each row sums to 1.

        Returns:
            Symmetric, 0 on the diagonal, at most ln 2 times the number of rows.
        """
        count, size = map_NM.shape
        self._seen += count * (count + 1) // 2 * size
        if self._seen < self.compile_from or map_NM.device.type != "cpu" or map_NM.dtype != torch.float32:
            return _divergence(_sums(map_NM))
        try:
            return _divergence(_sums_by_blocks(map_NM, _compiled()))
        except RuntimeError as error:
            # The compiler is missing or fails; an error in the maps themselves recurs right below.
            logger.info("Computing distances between heads without compiling: %s", str(error).splitlines()[0])
            self.compile_from = float("inf")
            return _divergence(_sums(map_NM))


def _divergence(total_NN: Tensor) -> Tensor:
    """The divergences from the upper triangle of the sums of s ln s."""
    diagonal_N = total_NN.diagonal()
    upper_NN = ((diagonal_N[:, None] + diagonal_N) / 4 - total_NN / 2).triu(1).clamp(min=0)
    return upper_NN + upper_NN.T


def _sums(map_NM: Tensor) -> Tensor:
    """Sum of s ln s for all pairs of heads, ``[N, N]`` float64, upper triangle."""
    count, size = map_NM.shape
    tile = min(size, _TILE if map_NM.device.type == "cpu" else _DEVICE_TILE)
    total_NN = torch.zeros((count, count), dtype=torch.float64, device=float64_device(map_NM.device))
    sum_T, log_T = map_NM.new_empty(count * tile), map_NM.new_empty(count * tile)
    for start in range(0, size, tile):
        # Tile by tile, so that both buffers stay in the cache.
        part_NT = map_NM[:, start : start + tile].clamp(min=_TINY)
        width = part_NT.shape[1]
        for head in range(count):
            rest = count - head
            sum_RT, log_RT = (buffer_T[: rest * width].view(rest, width) for buffer_T in (sum_T, log_T))
            torch.add(part_NT[head:], part_NT[head], out=sum_RT)
            torch.log(sum_RT, out=log_RT)
            total_NN[head, head:] += torch.linalg.vecdot(sum_RT, log_RT).to(total_NN.device)
    return total_NN


def _sums_by_blocks(map_NM: Tensor, sums: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The same, with a function of a block of heads and all heads from the block on."""
    count, size = map_NM.shape
    total_NN = torch.zeros((count, count), dtype=torch.float64)
    for start in range(0, size, _BLOCK_TILE):
        part_NT = map_NM[:, start : start + _BLOCK_TILE].clamp(min=_TINY)
        for head in range(0, count, _BLOCK):
            block = slice(head, head + _BLOCK)
            total_NN[block, head:] += sums(part_NT[block], part_NT[head:])
    return total_NN


@cache
def _compiled() -> Callable[[Tensor, Tensor], Tensor]:
    # Multiplying and adding in one instruction is as exact as in two, and twice as fast.
    return torch.compile(sums_of_block, dynamic=True, options={"cpp.enable_floating_point_contract_flag": "fast"})


def sums_of_block(block_BT: Tensor, rest_RT: Tensor) -> Tensor:
    """Sum over T of s ln s, s the sum of a head of the block and one of the rest; ``[B, R]`` float32.

    ln s is e ln 2 + ln(1 + r), with e the exponent and 1 + r in [sqrt(1/2), sqrt(2)] from the bits of a float32, and
    the logarithm's series in r with coefficients that spread its error evenly.
    """
    sum_BRT = block_BT[:, None] + rest_RT
    bits_BRT = sum_BRT.view(torch.int32)
    # 0x3F3504F3 are the bits of sqrt(1/2); 23 bits are the fraction.
    exponent_BRT = (bits_BRT - 0x3F3504F3) >> 23
    r = (bits_BRT - (exponent_BRT << 23)).view(torch.float32) - 1
    series = r * 0.0703768363 - 0.1151461031
    series = series * r + 0.1167699874
    series = series * r - 0.1242014085
    series = series * r + 0.1424932279
    series = series * r - 0.1666805767
    series = series * r + 0.2000071477
    series = series * r - 0.2499999399
    series = series * r + 0.3333333117
    log_BRT = exponent_BRT.to(torch.float32) * 0.6931471806 + ((series * r - 0.5) * r + 1) * r
    return (sum_BRT * log_BRT).sum(-1)
