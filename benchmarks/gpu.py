"""The engine and a sweep on a GPU: seconds, and the largest difference of a logit; ``tools/gpu_check.sh`` runs it.

    pip install -e '.[demo]' && python -m benchmarks.gpu

The engine disables every head and layer of a BERT-base with random weights (``uniform``), beside one forward pass for
each variant, on random tokens. The sweep fine-tunes with two seeds in two processes.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.ablation import plan
from benchmarks.jobs import ROOT
from benchmarks.sweep import JOB, seconds
from benchmarks.watch import model
from bertsecrets.ablation.engine import Engine
from bertsecrets.attention.override import HeadEdit, override


@torch.no_grad()
def engine(device: torch.device, examples: int, length: int) -> dict[str, float]:
    """Seconds of the engine and of one pass for each variant, and how far their logits differ."""
    network = model("sdpa")
    torch.nn.Module.to(network, device)
    generator = torch.Generator().manual_seed(0)
    ids_BS = torch.randint(5, 30000, (examples, length), generator=generator).to(device)
    inputs = {"input_ids": ids_BS, "attention_mask": torch.ones_like(ids_BS)}
    shared = Engine(network, plan())

    def each() -> Tensor:
        logits = []
        for variant in plan().variants:
            with override(network, [HeadEdit(layer, head, "uniform") for layer, head in variant.heads]):
                logits.append(network(**inputs).logits)
        return torch.stack(logits, 1)

    by_engine, one_by_one = (_best(work, device) for work in (lambda: shared.run(inputs)[1], each))
    difference = (by_engine[1] - one_by_one[1]).abs().max().item()
    return {"engine": by_engine[0], "one pass for each variant": one_by_one[0], "largest difference": difference}


def _best(work: Callable[[], Tensor], device: torch.device, turns: int = 3) -> tuple[float, Tensor]:
    times = []
    for _ in range(turns):
        started = perf_counter()
        result = work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(perf_counter() - started)
    return min(times), result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu.json")
    args = parser.parse_args(arguments)
    device = torch.device(args.device)
    trainer = "gpu" if device.type == "cuda" else "default"
    with tempfile.TemporaryDirectory() as scratch:
        jobs = ("-m", *JOB, "seed=1,2", "launcher=joblib", f"trainer={trainer}", f"hydra.sweep.dir={scratch}/sweep")
        result = {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else args.device,
            "torch": torch.__version__,
            "examples": args.examples,
            "length": args.length,
            "seconds": engine(device, args.examples, args.length) | {"sweep of two seeds": seconds(*jobs)},
        }
    args.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
