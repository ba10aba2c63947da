"""The runs of ``docs/dark_secrets.md``: every analysis of Kovaleva et al. on two models that have learned their tasks.

    python benchmarks/dark_secrets.py --glue <GLUE folder> --treebank <UD_English-EWT> --framenet <FrameNet folder> \\
        --base <all-mpnet-base-v2> --out <folder> [--jobs 2] [--precision bf16-mixed] [--only minilm]

MiniLM: seven tasks (at most 9,000 training examples, which is all of MRPC, RTE, STS-B and CoLA), from pre-trained and from
random weights (their scores alone), three seeds. all-mpnet-base-v2: MRPC, RTE and CoLA, two seeds pre-trained and one random, and
SST-2 once. Three epochs each. A run that is finished is not run again and an interrupted one goes on, so that the command can be
repeated until all are done; those of seed 1 come first. Words are annotated by a small pipeline that is trained on the treebank
first. At the end ``<out>/page-minilm`` and ``<out>/page-mpnet`` follow the paper; ``dark_secrets_tables.py`` prints the tables of
both.

    python benchmarks/dark_secrets.py ... --only minilm --tasks mrpc rte --seeds 4 5 6 7 8 9 10 --inits pretrained

makes the further seeds of ``benchmarks/seed_study.py``, which have only what it reads: drift, patterns and disabling.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TASKS = ("mrpc", "rte", "stsb", "cola", "sst2", "qqp", "mnli")
BASE_TASKS = ("mrpc", "rte", "cola")
INITS = ("pretrained", "random_normal")
SEEDS = (1, 2, 3)
"""Seeds of the page."""
EVALUATED = 1000
"""Development examples of a measure and of disabling, as in the paper."""


@dataclass(frozen=True)
class Job:
    """One fine-tuning with every analysis."""

    model: str
    task: str
    init: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.task}-{self.init}-{self.seed}"


def jobs(options: argparse.Namespace) -> list[Job]:
    """The chosen ones, seed 1 of each model first."""
    minilm = [Job("minilm", task, init, seed) for seed in options.seeds for init in INITS for task in TASKS]
    base = [Job("mpnet", task, "pretrained", seed) for seed in (1, 2) for task in BASE_TASKS]
    base += [Job("mpnet", task, "random_normal", 1) for task in BASE_TASKS]
    base.insert(len(BASE_TASKS), Job("mpnet", "sst2", "pretrained", 1))
    chosen = [
        job
        for job in minilm + base
        if options.only in (None, job.model)
        and (job.task in options.tasks and job.seed in options.seeds and job.init in options.inits)
    ]
    return sorted(chosen, key=lambda job: (job.seed, job.init))


def arguments(job: Job, options: argparse.Namespace) -> Iterator[str]:
    folder: Path = options.out / job.name
    if (folder / "begun.json").is_file():
        yield f"resume={folder}"
        return
    yield from (f"hydra.run.dir={folder}", "logger=none", "progress=false")
    yield from (f"task={job.task}", f"init={job.init}", f"seed={job.seed}", "data=tsv", f"data.root={options.glue}")
    if job.model == "mpnet":
        yield from ("model=folder", f"model.path={options.base}", "model.name=mpnet")
    else:
        yield "model=minilm"
    measures = []
    if job.init == "pretrained":
        measures += ["drift", "patterns"]
        yield "measure.drift.every_n_validations=null"
        if job.seed in SEEDS:
            measures += ["offsets", "features", "token_to_token"]
            yield from (
                "callbacks=dark_secrets",
                "annotation=spacy",
                f"annotation.pipeline={options.out / 'annotator'}",
            )
            yield f"framenet.root={options.framenet}"
        else:
            yield from (f"measure=[{','.join(measures)}]", "measure.patterns.every_n_validations=null")
    else:
        # The paper has their scores alone; whole layers are disabled for the predictions.
        yield from ("measure=[]", "callbacks.disable.plans=[layers]")
    yield from (f"measure.{name}.max_examples={EVALUATED}" for name in measures)
    yield "ablation.sweep=exact"
    yield from (f"ablation.max_examples={EVALUATED}", "callbacks.disable.limit=null")
    yield from (
        "data.limit_train=9000",
        f"data.limit_eval={EVALUATED}",
        "trainer.max_epochs=3",
        "trainer.val_check_interval=1.0",
    )
    yield from (f"trainer.precision={options.precision}", "checkpoint.every_n_steps=100")


def run(job: Job, options: argparse.Namespace) -> None:
    """Run one job, unless it is finished; a failure is told at the end."""
    if not (options.out / job.name / "finished.json").is_file():
        log = options.out / "logs" / f"{job.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as output:
            command = [sys.executable, "train.py", *arguments(job, options)]
            done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
        print(f"{job.name}: {'finished' if done.returncode == 0 else f'failed, see {log}'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("glue", "treebank", "framenet", "base", "out"):
        parser.add_argument(f"--{name}", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--precision", default="32-true", help="bf16-mixed where the processor is fast in it")
    parser.add_argument("--only", choices=["minilm", "mpnet"])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--inits", nargs="+", choices=INITS, default=INITS)
    options = parser.parse_args()
    chosen = jobs(options)
    if not (options.out / "annotator").is_dir():
        script = ROOT / "benchmarks" / "annotator.py"
        command = [sys.executable, script, "--treebank", options.treebank, "--out", options.out / "annotator"]
        subprocess.run(command, check=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda job: run(job, options), chosen))
    finished = [job for job in chosen if (options.out / job.name / "finished.json").is_file()]
    print(f"{len(finished)} of {len(chosen)} runs are finished", flush=True)
    # Pages compare head by head, so that each size of model has its own.
    for model in ("minilm", "mpnet"):
        own = [str(options.out / job.name) for job in finished if job.model == model and job.seed in SEEDS]
        if own:
            page = f"hydra.run.dir={options.out / f'page-{model}'}"
            command = [sys.executable, "-m", "bertsecrets", "compare", f"runs=[{','.join(own)}]", "paper=true", page]
            subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
