"""Jensen-Shannon divergence of all pairs of heads: ours against the double loop of Clark et al. 2019.

    pip install -e . && python benchmarks/head_distances.py

The double loop compares, text by text, each head with all heads in NumPy, as the published program does, once on maps in
half precision, as that program stores them, and once on the same maps in single precision. Ours is timed compiled and
without a compiler. Maps are random and sharp; time does not depend on them. Implementations take turns, text by text, so that
a busy machine slows all alike; the time of all texts is the median text's times their number, for ours plus compiling.
Memory is the largest of ours after few texts and after many.
"""

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.measures.clusters.divergence import PairwiseDivergence
from bertsecrets.measures.clusters.measure import Clusters

ROOT = Path(__file__).resolve().parent.parent
SMOOTHING = 0.001


def double_loop(map_NTT: NDArray[np.floating]) -> NDArray[np.float64]:
    """Divergence of each head from all heads, summed over rows; every pair is computed twice, in the precision of the maps."""
    heads, length = map_NTT.shape[:2]
    total_NN = np.zeros((heads, heads))
    for head in range(heads):
        one_1TT = SMOOTHING / length + map_NTT[head : head + 1] * (1 - SMOOTHING)
        all_NTT = SMOOTHING / length + map_NTT * (1 - SMOOTHING)
        middle_NTT = (one_1TT + all_NTT) / 2
        divergence_NTT = -one_1TT * np.log(middle_NTT / one_1TT) - all_NTT * np.log(middle_NTT / all_NTT)
        total_NN[head] += (divergence_NTT / 2).sum(-1).sum(-1)
    return total_NN


def ours(divergence: PairwiseDivergence, map_NTT: Tensor) -> Tensor:
    """The same by the measure's function."""
    length = map_NTT.shape[-1]
    return divergence((map_NTT * (1 - SMOOTHING) + SMOOTHING / length).flatten(1))


def memory_after(texts: int, layers: int, heads: int, length: int) -> float:
    """Largest resident memory in MiB after this many texts."""
    measure = Clusters(layers, heads, replicates=50)
    for text in range(texts):
        batch = Batch(
            input_ids_BS=torch.zeros(1, length, dtype=torch.int64),
            attention_mask_BS=torch.ones(1, length, dtype=torch.int64),
            token_type_ids_BS=None,
            special_BS=torch.zeros(1, length, dtype=torch.bool),
            word_BS=torch.zeros(1, length, dtype=torch.int64),
            index_B=torch.tensor([text]),
            label_B=None,
        )
        for layer in range(layers):
            attention = random_maps(heads, length, text * layers + layer)[None]
            measure.update(layer, attention, batch, attention)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def random_maps(heads: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(heads, length, length, generator=generator)).softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--texts", type=int, default=1000, help="texts to which times are extrapolated")
    parser.add_argument("--timed", type=int, default=5, help="texts that are timed")
    parser.add_argument("--half", type=int, default=1, help="of these, timed with the double loop in half precision")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "head_distances.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    count = args.layers * args.heads
    few = memory_after(3, args.layers, args.heads, args.length)
    many = memory_after(12, args.layers, args.heads, args.length)
    seconds: dict[str, list[float]] = {name: [] for name in ("double_loop_half", "double_loop", "uncompiled", "ours")}
    uncompiled, compiled = PairwiseDivergence(float("inf")), PairwiseDivergence(0)
    started = time.perf_counter()
    ours(compiled, random_maps(count, args.length, args.timed))
    compiling = time.perf_counter() - started
    largest = 0.0
    for text in range(args.timed):
        map_NTT = random_maps(count, args.length, text)
        single = map_NTT.numpy()
        if text < args.half:
            half = single.astype(np.float16)
            started = time.perf_counter()
            double_loop(half)
            seconds["double_loop_half"].append(time.perf_counter() - started)
        started = time.perf_counter()
        loop_NN = double_loop(single)
        seconds["double_loop"].append(time.perf_counter() - started)
        started = time.perf_counter()
        ours(uncompiled, map_NTT)
        seconds["uncompiled"].append(time.perf_counter() - started)
        started = time.perf_counter()
        our_NN = ours(compiled, map_NTT)
        seconds["ours"].append(time.perf_counter() - started)
        largest = max(largest, float(np.abs(our_NN.numpy() - loop_NN).max()) / args.length)
    median = {name: statistics.median(times) for name, times in seconds.items() if times}
    total = {name: value * args.texts for name, value in median.items()}
    total["ours"] += compiling
    result = {
        "heads": count,
        "tokens": args.length,
        "threads": args.threads,
        "seconds_for_a_text": {name: round(value, 3) for name, value in median.items()},
        "seconds_to_compile": round(compiling, 1),
        f"minutes_for_{args.texts}_texts": {name: round(value / 60, 1) for name, value in total.items()},
        "times_faster_than_the_double_loop": round(total["double_loop"] / total["ours"], 1),
        "times_faster_without_a_compiler": round(total["double_loop"] / total["uncompiled"], 1),
        "times_faster_than_it_in_half_precision": round(total["double_loop_half"] / total["ours"], 1),
        "largest_difference_in_nats_for_a_token": largest,
        "memory_in_MiB_after_3_and_15_texts": [round(few), round(many)],
    }
    print(json.dumps(result, indent=1))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
