"""Cost of a disabling sweep at BERT-base size: our engine compared with one forward pass for each variant.

    pip install -e '.[demo,bench]' && python -m benchmarks.ablation --glue <folder that holds MRPC>

The plan is every head and every whole layer, ``uniform``. Weights are random: time does not depend on them. Lengths are
those of the real MRPC development set. Every condition runs in a separate process to measure
its peak of memory; the floor is the least number of layer-forwards that an exact sweep needs, times the time of one
SDPA layer.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from benchmarks.jobs import in_process
from benchmarks.watch import BATCH, evaluation, model
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, Variant, every_head, every_layer
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.batch import Batch

LAYERS, HEADS = 12, 12
CONDITIONS = ("evaluation", "engine", "per_variant", "per_variant_padded", "layer")
PADDED = 128


def plan() -> Plan:
    variants = [*every_head(LAYERS, HEADS), *every_layer(LAYERS, HEADS)]
    return Plan("uniform", LAYERS, HEADS, tuple(variants))


def layer_forwards() -> float:
    """Least number of layer-forwards of an exact sweep of heads and layers, in units of one whole layer.

    Of a layer's 12 D^2 multiplications for each token (attention scores are about one percent at these lengths), query,
    key and value take 3, the output projection 1, the feed-forward network 8. The clean pass is 12 layers, the last of
    them for one token. A variant of layer l needs that layer's projection and feed-forward network, 9 of 12 (in the
    last layer for one token: nothing), and all layers above it, the last of them for one token: keys and values are
    needed there for all tokens by the usual order of the sums, which takes 2 of 12, but this is avoidable; the
    floor counts nothing.
    """
    clean = LAYERS - 1
    above = sum(HEADS * (9 / 12 + LAYERS - 2 - layer) for layer in range(LAYERS - 1))
    layers = sum(9 / 12 + LAYERS - 2 - layer for layer in range(LAYERS - 1))
    return clean + above + layers


def forward_each(network: torch.nn.Module, batches: Iterable[dict[str, Tensor]], variants: tuple[Variant, ...]) -> None:
    for batch in batches:
        network(**batch)
        for variant in variants:
            with override(network, [HeadEdit(layer, head, "uniform") for layer, head in variant.heads]):
                network(**batch)


def padded(batch: Batch) -> dict[str, Tensor]:
    return {
        name: torch.nn.functional.pad(tensor, (0, PADDED - tensor.shape[1])) for name, tensor in batch.inputs().items()
    }


def run(kind: str, glue: Path, examples: int, precision: str) -> dict[str, float]:
    batches = evaluation(glue, examples)
    network = model("sdpa")
    context = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()
    if precision == "bf16-true":
        network = network.bfloat16()
    variants = plan().variants
    engine = Engine(network, plan())
    seconds: dict[str, Callable[[], float]] = {
        "evaluation": lambda: timed(lambda: [network(**batch.inputs()) for batch in batches]),
        "engine": lambda: timed(lambda: [engine.run(batch.inputs()) for batch in batches]),
        "per_variant": lambda: timed(lambda: forward_each(network, [batch.inputs() for batch in batches], variants)),
        "per_variant_padded": lambda: timed(lambda: forward_each(network, map(padded, batches), variants)),
        "layer": lambda: sum(one_layer(network, batch.inputs()["attention_mask"]) for batch in batches),
    }
    with torch.no_grad(), context:
        network(**batches[0].inputs())
        return {"seconds": seconds[kind](), "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def one_layer(network: BertForSequenceClassification, mask_BS: Tensor, repeats: int = 5) -> float:
    """Median time of one SDPA layer on a batch of this shape."""
    layer: Any = network.bert.encoder.layer[0]
    hidden_BSD = torch.randn(*mask_BS.shape, 768, dtype=network.dtype)
    mask_B1QK = mask_BS.bool()[:, None, None, :].expand(-1, 1, mask_BS.shape[1], -1)
    times = sorted(timed(lambda: layer(hidden_BSD, mask_B1QK)) for _ in range(repeats + 1))
    return times[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=32, help="examples of the development set, over all lengths")
    parser.add_argument("--precision", choices=("fp32", "bf16", "bf16-true"), default="fp32")
    parser.add_argument("--only", nargs="*", choices=CONDITIONS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--condition", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(2)
    if args.condition:
        print(json.dumps(run(args.condition, args.glue, args.examples, args.precision)))
        return
    results = {}
    for name in args.only or CONDITIONS:
        options = ["--glue", str(args.glue.resolve()), "--examples", str(args.examples), "--precision", args.precision]
        results[name] = in_process("benchmarks.ablation", *options, "--condition", name)
        print(name, results[name], flush=True)
    report = {"torch": torch.__version__, "threads": 2, "precision": args.precision, "examples": args.examples}
    report |= {"batch": BATCH, "results": results}
    if set(results) == set(CONDITIONS):
        seconds = {name: result["seconds"] for name, result in results.items()}
        floor = layer_forwards() * seconds["layer"]
        report["ratios"] = {
            "one forward per variant / engine": seconds["per_variant"] / seconds["engine"],
            "one forward per variant padded to 128 / engine": seconds["per_variant_padded"] / seconds["engine"],
            "engine / floor": seconds["engine"] / floor,
            "layer-forwards of the floor": layer_forwards(),
            "memory, engine / evaluation": results["engine"]["megabytes"] / results["evaluation"]["megabytes"],
        }
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
