"""Ways to run a layer faster that the engine does not take: torch.compile, fused pointwise parts, rank-64 updates.

    python benchmarks/layer_trials.py

Random weights at base size (768 wide, 3,072 between, 12 heads); the fastest of several calls, in processor time on one thread.
"""

import time
from collections.abc import Callable

import torch
from torch.nn.functional import gelu, layer_norm
from transformers import BertConfig, BertModel

WIDTH, BETWEEN, HEAD = 768, 3072, 64


def milliseconds(work: Callable[[], object], calls: int = 10) -> float:
    work()
    best = float("inf")
    for _ in range(calls):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return 1e3 * best


def compiled(batch: int, length: int) -> None:
    """One layer, eager and compiled, and the parts that a fused kernel could save at most."""
    torch.manual_seed(0)
    layer = BertModel(BertConfig(num_hidden_layers=1)).eval().encoder.layer[0]
    hidden_BSD = torch.randn(batch, length, WIDTH)
    between_BSF = torch.randn(batch, length, BETWEEN)
    fast = torch.compile(layer)
    started = time.perf_counter()
    fast(hidden_BSD)
    seconds = time.perf_counter() - started
    eager = milliseconds(lambda: layer(hidden_BSD))
    pointwise = milliseconds(lambda: gelu(between_BSF)) + 2 * milliseconds(lambda: layer_norm(hidden_BSD, (WIDTH,)))
    print(
        f"layer of {batch} x {length} tokens: eager {eager:.1f} ms, compiled {milliseconds(lambda: fast(hidden_BSD)):.1f} ms "
        f"(compiling took {seconds:.0f} s); GELU and both normalisations {pointwise:.1f} ms"
    )


def low_rank(tokens: int) -> None:
    """A replaced head as a rank-64 change of the output projection and of the first feed-forward product."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    hidden_TD, between_TF, change_Td = random(tokens, WIDTH), random(tokens, BETWEEN), random(tokens, HEAD)
    projection_DD, first_DF = random(WIDTH, WIDTH), random(WIDTH, BETWEEN)
    head_dD, head_dF = random(HEAD, WIDTH), random(HEAD, BETWEEN)
    scale_T1, shift_T1, weight_F = random(tokens, 1), random(tokens, 1), random(BETWEEN)
    whole = milliseconds(lambda: hidden_TD @ projection_DD) + milliseconds(lambda: hidden_TD @ first_DF)
    second = milliseconds(lambda: between_TF @ first_DF.T)
    update = milliseconds(lambda: torch.addmm(hidden_TD, change_Td, head_dD)) + milliseconds(
        lambda: (torch.addmm(between_TF, change_Td, head_dF) - shift_T1 * weight_F) * scale_T1
    )
    print(
        f"{tokens:,} tokens: projection and first product {whole:.1f} ms, as rank-64 updates {update:.1f} ms; "
        f"{(whole - update) / (whole + second):.0%} of the edited layer's rest"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        compiled(8, 64)
        compiled(32, 64)
        low_rank(512)
        low_rank(2048)
