"""Speed of training, watching and disabling heads on this machine, and the estimated cost of experiment=dark_secrets.

    pip install -e '.[demo]' && python -m benchmarks.throughput --glue <folder that holds MRPC>

BERT-base with random weights, batches of 32 sentence pairs of MRPC's development set. The cost of the whole sweep
follows from the sizes of the seven tasks; on several devices it is divided by their number, assuming linear scaling.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.jobs import ROOT
from benchmarks.watch import MINILM
from bertsecrets.ablation.engine import Engine
from bertsecrets.ablation.plan import Plan, every_head, every_layer
from bertsecrets.attention.watch import watch
from bertsecrets.models.loading import load_tokenizer

TRAINING = {
    "mrpc": 3668,
    "stsb": 5749,
    "sst2": 67349,
    "qqp": 363846,
    "rte": 2490,
    "qnli": 104743,
    "mnli": 392702,
}
"""Training examples of the seven tasks of Kovaleva et al."""

EPOCHS, INITS, SEEDS, WATCHED = 3, 2, 3, 1000
VALIDATIONS = 6
"""Two in each epoch, each of at most ``WATCHED`` examples seen by two models."""


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median time of a call, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return sorted(times[1:])[repeats // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "throughput.json")
    args = parser.parse_args()
    device = torch.device(args.device)
    rows = (args.glue / "MRPC" / "dev.tsv").read_text("utf-8-sig").splitlines()[1:33]
    pairs = [row.split("\t")[3:5] for row in rows]
    tokenizer = load_tokenizer(MINILM)
    inputs = tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt").to(device)
    model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer)))
    model.to(device)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    labels = torch.zeros(len(pairs), dtype=torch.long, device=device)

    def train() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(**inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def watched() -> None:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16), watch(model, lambda layer, maps: None):
            model(**inputs)

    model.train()
    training = len(pairs) / seconds(train, device, args.repeats)
    model.eval()
    watching = len(pairs) / seconds(watched, device, args.repeats)
    variants = (*every_head(12, 12), *every_layer(12, 12))
    engine = Engine(model, Plan("uniform", num_layers=12, num_heads=12, variants=variants))

    def disable() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            engine.run(dict(inputs))

    disabling = len(pairs) / seconds(disable, device, 1)
    hours = {
        task: (examples * EPOCHS / training + VALIDATIONS * 2 * WATCHED / watching + WATCHED / disabling) / 3600
        for task, examples in TRAINING.items()
    }
    jobs = INITS * SEEDS
    result = {
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{torch.get_num_threads()} CPU threads",
        "precision": "bf16 autocast",
        "training_examples_per_second": training,
        "watched_examples_per_second": watching,
        "examples_with_all_heads_and_layers_disabled_per_second": disabling,
        "hours_for_one_run": hours,
        "hours_for_all_runs_on_one_device": jobs * sum(hours.values()),
        "hours_on_eight_devices": jobs * sum(hours.values()) / 8,
        "hours_as_an_array_of_42_tasks": max(hours.values()),
    }
    print(json.dumps(result, indent=1))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
