"""Settings: what is wrong with a value is said in one sentence, before anything is loaded."""

import textwrap
from pathlib import Path

from faults.cases import LATE, Case, analyze, bounded, parametrized, train
from faults.places import Arrange, replaced, run, unfinished, write
from faults.runner import Warm

REFUSED: dict[str, dict[str, str]] = {
    "train.py": {
        "name=../../x": r"name is '\.\./\.\./x'; expected a name for folders",
        "evaluation=dev": "evaluation is 'dev', which task 'demo_sentiment' does not have; valid names: val",
        "task.training.max_epochs=null": "max_epochs",
        "task.training=null": "task.training",
        "trainer.max_epochs=null": "trainer.max_epochs is null, so training would not end",
        "trainer.use_distributed_sampler=true": "the data module distributes the examples itself",
        "trainer.devices=abc": "trainer.devices is 'abc'",
        "trainer.accelerator=gqu": "Unknown trainer.accelerator 'gqu'; did you mean 'gpu'",
        "+trainer.overfit_batches=1": "trainer.overfit_batches is 1; expected 0; to overfit a few examples set "
        "data.limit_train",
        "+trainer.fast_dev_run=true": "trainer.fast_dev_run is true; expected false",
        "hydra.job.chdir=true": "hydra.job.chdir is true; expected false",
        "+trainer.logger=true": "trainer.logger is set by the program; choose logger=<name>",
        "trainer._target_=torch.nn.Linear": "which is not a Trainer",
        "measure.drift.tracked=[cosin]": "measure.drift.tracked names the column 'cosin'; did you mean 'cosine'",
        "+measure.drift.pading=exclude": "Unknown key 'measure.drift.pading'; did you mean 'padding'",
        "ablation.group_size=99999999999999999999": "ablation.group_size is 99999999999999999999",
        "callbacks=prune callbacks.prune.keep=1000": "callbacks.prune.keep is 1000, but the model has 72 heads",
        "~nothing": "Unknown config key 'nothing'",
        "~callbacks.nothing": "Unknown config key 'callbacks.nothing'",
        "task=": "Unknown task ''",
        "task=null": "task is null; .*mrpc",
        "++task=mrpc": "task=mrpc",
        "hydra.run.dir=": "hydra.run.dir is ''; expected the path of a folder",
        "hydra.nothing=1": "Unknown config key 'hydra.nothing'",
        "seed=${sed}": "'sed' not found",
        "name=${name}": "Recursive interpolation",
        "+callbacks.x._target_=no.such.Class": r"callbacks.x._target_ .* No module named 'no'",
        "+callbacks.x._target_=torch.nn.Linear": "callbacks.x.in_features has no value",
        "+callbacks.x.points=5": "callbacks.x has no _target_",
        "+measure.x._target_=no.such.Class": r"measure.x._target_ .* No module named 'no'",
        "+measure.x._target_=bertsecrets.measures.drift.Drft": "has no 'Drft'; did you mean 'Drift'",
        "+measure.x._target_=torch.nn.Linear": "measure.x._target_ is torch.nn.Linear, which is not a Measure",
        "-m launcher=joblib seed=1,2 hydra.launcher.n_jobs=two": "n_jobs is 'two'; expected a whole number",
        "-m seed=1,1": "'seed=1,1' lists 'seed=1' twice; list each value once",
        "+logger.x._target_=no.such.Logger": r"logger.x._target_ .* No module named 'no'",
    },
    "analyze.py": {
        "checkpoint=5": "checkpoint is 5",
        "checkpoint=x framenet.root=/no": "FrameNet folder '/no' does not exist",
        "checkpoint=x task=stsb analysis=shrink shrink.max_class_loss=5": "task 'stsb' does not predict one class",
        "checkpoint=x task=stsb analysis=prune prune.max_class_loss=5": "prune.max_class_loss is 5, but task 'stsb' "
        "does not predict one class",
        "checkpoint=x analysis=prune prune.step=0": "prune.step is 0; expected a number between 0 and 1",
        "checkpoint=x optimizer.learning_rate=1": "Unknown config key 'optimizer.learning_rate'",
    },
    "compare": {
        "runs=a statements=[b]": r"statements is \['b'\], which only affects the page of statements",
        "runs=a paper=statements statements=[clark_sep]": "Unknown statement 'clark_sep'; did you mean 'clark_sep_cut'",
        "runs=a paper=voita": "paper is 'voita'; expected .*voita2019",
    },
    "export": {
        "folder=x": "export writes a fine-tuned model; give checkpoint=",
        "folder=5 checkpoint=x": "folder is 5; expected",
        "folder=/dev/null checkpoint=x": "/dev/null' is a file; choose another folder",
        "folder=/etc checkpoint=x": "which is not empty",
    },
    "report": {
        "run=5": "run is 5",
        "run=a paper=yes": "'a' is not a directory",
    },
}
"""Command lines -> what the answer says."""


def _refused() -> list[Case]:
    return [
        Case(f"{program.partition('.')[0]}-{line}", (program, *line.split()), f"^error: .*{sentence}.*$")
        for program, lines in REFUSED.items()
        for line, sentence in lines.items()
    ]


def own_measure(body: str) -> Arrange:
    """A measure of the user's own in ``mine.py``, with this class body."""
    code = """
    from bertsecrets import Column, Measure

    class Mine(Measure):
        name, title = "mine", "Mine"
        columns = (Column("value", "value"),)
    BODY
        def per_example(self, attention_BHQK, batch, reference_BHQK):
            return attention_BHQK.mean((-1, -2))[..., None]
    """
    indented = textwrap.indent(textwrap.dedent(body), "    ")
    return write("mine.py", textwrap.dedent(code).replace("BODY", indented))


BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


CASES = [
    *_refused(),
    Case("devices", train(trainer__devices=99), r"trainer\.devices is 99, but this machine has \d+ cores"),
    Case("gpu-without-one", train(trainer__accelerator="gpu"), "The trainer could not be built .*check the trainer"),
    Case(
        "nodes", train(trainer__num_nodes=2), "trainer.num_nodes is 2, but nothing has started this run on other nodes"
    ),
    *(
        Case(
            f"slurm-shell-{name}",
            train(trainer__devices=2),
            r"SLURM_NTASKS=\d is set, .* srun has not started a process for each device; .* unset SLURM_NTASKS",
            environment={"SLURM_JOB_ID": "1", **variables},
        )
        for name, variables in {
            "without-ranks": {"SLURM_NTASKS": "1"},
            "tasks": {"SLURM_NTASKS": "4"},
            "tasks-per-node": {
                "SLURM_NTASKS": "4",
                "SLURM_NTASKS_PER_NODE": "4",
                **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
            },
        }.items()
    ),
    Case(
        "nodes-of-a-job",
        (*train(trainer__num_nodes="1,2", launcher="basic"), "-m"),
        r"trainer.num_nodes is 2, but a job of a sweep runs on one node; .* srun --nodes=2 .*\(In the job "
        r".*trainer.num_nodes=2",
    ),
    Case(
        "validation-interval",
        train(trainer__val_check_interval=5000),
        "trainer.val_check_interval is 5000, but an epoch has 3 batches; set at most 3",
        leaves=LATE,
    ),
    Case("strategy", (*train(), "+trainer.strategy=ddpp"), "The trainer could not be built .*ddpp"),
    Case("task-bomb", ("train.py", "task=p.yaml"), "uses the alias", arrange=write("p.yaml", BOMB)),
    Case(
        "task-python",
        ("train.py", "task=p.yaml"),
        "cannot be read",
        arrange=write("p.yaml", "!!python/name:os.system x"),
    ),
    Case("long-value", ("train.py", f"task={'x' * 100_000}"), "too long: .*xxx", check=bounded),
    Case(
        "long-seed",
        ("train.py", f"seed={'x' * 100_000}"),
        r"name is 'demo_sentiment-minilm-pretrained-sxxx",
        check=bounded,
    ),
    Case(
        "escape-in-name", ("train.py", "name='a\x1b]0;owned\x07b'"), r"name is 'a\\x1b\]0;owned\\x07b'", check=bounded
    ),
    Case("direction-in-task", ("train.py", "task='a\u202eb'"), r"a\\u202eb", check=bounded),
    Case("many-values", ("train.py", "-m", "seed=range(0,1000000)"), "lists more than 1,000 values"),
    *(
        Case(
            f"monitor-{kind}",
            (
                *train(),
                f"+callbacks.mine._target_=pytorch_lightning.callbacks.{kind}",
                "+callbacks.mine.monitor=val/acc",
            ),
            "callbacks.mine.monitor is 'val/acc'; did you mean 'val/accuracy'. Valid names: .*train/loss",
        )
        for kind in ("EarlyStopping", "ModelCheckpoint")
    ),
    Case(
        "monitor-of-no-choice",
        (
            *train(checkpoint__report="last"),
            "+callbacks.mine._target_=pytorch_lightning.callbacks.EarlyStopping",
            "+callbacks.mine.monitor=choosing/accuracy",
        ),
        r"callbacks.mine.monitor is 'choosing/accuracy'; (?!.*Valid names: .*choosing/).*val/accuracy",
    ),
    *(
        Case(
            f"subdir-{name}",
            (*train(hydra__sweep__subdir=subdir, hydra__sweep__dir="{folder}/s", seed="1,2"), "-m"),
            "2 finished, 0 skipped, 0 failed",
            status=0,
            seconds=180,
        )
        for name, subdir in (("num", "'${hydra.job.num}'"), ("id", "'${hydra:job.id}'"))
    ),
    Case(
        "subdir-nothing",
        (*train(hydra__sweep__subdir="'${nothing}'", seed="1,2"), "-m"),
        r"hydra.sweep.subdir cannot be resolved \(Interpolation key 'nothing' not found\)",
    ),
    Case(
        "home-read-only",
        train(logger="wandb", logger__wandb__mode="offline"),
        "Report: ",
        status=0,
        environment={"HOME": "/proc"},
    ),
    Case("long-tags", train(logger="wandb", model__name="m" * 80), "Report: ", status=0),
    Case(
        "measure-import",
        ("train.py", "+measure.x._target_=mine.Mine"),
        "No module named 'nothing_here'",
        arrange=write("mine.py", "import nothing_here"),
        environment={"PYTHONPATH": "{folder}"},
        leaves=("__pycache__/*",),
    ),
]


MEASURES = {
    "no-comma": ('columns = (Column("value", "value"))', r"The columns of Mine are Column\(.*expected a tuple"),
    "raises": (
        "def __init__(self, **sizes):\n    raise KeyError('x')",
        r"mine\.Mine could not be built \(KeyError: 'x'\)",
    ),
    "needs-more": ("def __init__(self, num_layers, num_heads, more):\n    pass", "measure.mine.more has no value"),
}
OWN_MEASURES = [
    Case(
        f"measure-{name}",
        # No model is there: it would be missed if anything were loaded.
        ("train.py", "model=folder", "model.path={folder}/none", "+measure.mine._target_=mine.Mine"),
        sentence,
        arrange=own_measure(body),
        environment={"PYTHONPATH": "{folder}"},
        leaves=("__pycache__/*",),
    )
    for name, (body, sentence) in MEASURES.items()
]

EDITS = {
    "seed": ("seed: 42", "seed: abc", "config.yaml' was changed, or was written by another version: seed is 'abc'"),
    "key": ("seed: 42", "sead: 42", "Unknown key 'sead'; did you mean 'seed'"),
    "section": ("optimizer:", "optimiser:", "is the configuration of a run of analyze;|Unknown key 'optimiser'"),
    "interpolation": ("seed: 42", "seed: ${nothing}", r"config.yaml' has seed='\$\{nothing\}'"),
    "yaml": ("seed: 42", "seed: [", "config.yaml' cannot be read"),
    "alias": ("seed: 42", "seed: &a 42\nmore: *a", r"config.yaml' cannot be read \(it uses the alias \*a"),
}
CONFIGURATIONS = [
    *(
        Case(
            f"edited-{name}",
            ("train.py", "resume=r"),
            sentence,
            arrange=unfinished(replaced("config.yaml", before, after)),
            leaves=LATE,
        )
        for name, (before, after, sentence) in EDITS.items()
    ),
    Case(
        "resumed-by-another-command",
        ("analyze.py", "resume=r"),
        "is the configuration of a run of train; resume it with python -m bertsecrets resume folder=",
        arrange=unfinished(),
        leaves=LATE,
    ),
    *(
        Case(
            f"analysed-without-{section}",
            analyze(checkpoint="r"),
            f"config.yaml' lacks {section}; restore it",
            arrange=run(replaced("config.yaml", f"\n{section}:", f"\n{section}_:")),
        )
        for section in ("data", "seed", "annotation")
    ),
]


@parametrized([*CASES, *OWN_MEASURES, *CONFIGURATIONS])
def test_settings(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(case, tmp_path)
