"""Folders of strangers: nothing in them is run, nothing of the environment gets out, and hostile text stays text."""

import json
import re
from dataclasses import replace
from pathlib import Path

from faults.cases import CLAIMED, Case, Outcome, analyze, parametrized, train, view
from faults.places import (
    Arrange,
    as_bin,
    json_keys,
    model,
    pickle_bytes,
    remove,
    run,
    torch_pickle,
    unfinished,
    write,
    yaml_keys,
)
from faults.runner import Warm

SECRET = "s3cr3t-0123456789abcdef0123456789abcdef"
"""Forty characters, as W&B wants of a key."""

_REFUSED = r"names {}=.*, which is not part of bertsecrets; if you trust it, repeat it on the command line"
_RESUME = ("train.py", "resume=r")
_SHELL = {"_target_": "os.system", "command": "touch pwned"}


def resumed(name: str, sentence: str, *edits: Arrange, words: tuple[str, ...] = _RESUME, status: int = 1) -> Case:
    return Case(f"resume-{name}", words, sentence, status=status, arrange=unfinished(*edits))


def configured(name: str, key: str, **values: object) -> Case:
    """A stranger's run, resumed, whose configuration names code at ``key``."""
    return resumed(f"target-{name}", _REFUSED.format(re.escape(key)), yaml_keys(**values))


def page(name: str, sentence: str, *edits: Arrange, status: int = 1) -> Case:
    """A report of a stranger's run, made again."""
    words = ("report", "run=r")
    return Case(f"report-{name}", words, sentence, status=status, arrange=run(*edits), check=nothing_imported)


def bomb(folder: Path) -> None:
    """Ten levels of ten aliases each."""
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 11))]
    path = folder / "config.yaml"
    path.write_text(path.read_text("utf-8") + "\n".join(lines) + "\n", "utf-8")


def declared(experiment: str, name: str = "entropy") -> Arrange:
    def arrange(folder: Path) -> None:
        path = folder / "experiments.json"
        entries = json.loads(path.read_text("utf-8"))
        entries[0] |= {"experiment": experiment, "name": name}
        path.write_text(json.dumps(entries), "utf-8")

    return arrange


def link(name: str, target: str) -> Arrange:
    def arrange(folder: Path) -> None:
        (folder / name).symlink_to(folder.parent / target)

    return arrange


EVIL = "open('pwned', 'w').close()\n"
"""A module that must not be imported, in the folder where the command runs."""


def nothing_imported(folder: Path, outcome: Outcome) -> None:
    """The module ``this``, which prints a poem when it is imported, was not."""
    assert "Zen of Python" not in outcome.stdout


PICKLES = [
    Case("bin", train(model__path="m"), "are not a file of tensors", arrange=model(as_bin(pickled=True))),
    Case(
        "bin-legacy",
        train(model__path="m"),
        "are not a file of tensors",
        arrange=model(as_bin(pickled=True, legacy=True)),
    ),
    Case("checkpoint", analyze(checkpoint="x.ckpt"), "cannot be read as a check", arrange=torch_pickle("x.ckpt")),
    resumed("last-checkpoint", "cannot be read as a checkpoint", torch_pickle("checkpoints/last.ckpt")),
    page("scores", "cannot be read", write("scores.json", pickle_bytes())),
    page("configuration", "cannot be read", write("config.yaml", pickle_bytes())),
    Case(
        "rerun",
        ("train.py", "--experimental-rerun", "config.pickle"),
        "--experimental-rerun",
        arrange=write("config.pickle", pickle_bytes()),
    ),
    Case(
        "custom-code",
        train(model__path="m"),
        "contains custom code",
        arrange=model(
            json_keys("config.json", model_type="mine", auto_map={"AutoConfig": "code.Mine"}),
            write("code.py", "open('pwned', 'w').close()\n"),
        ),
    ),
    Case(
        "kernel",
        train(model__path="m"),
        "requires the attention code 'owner/kernel'",
        arrange=model(json_keys("config.json", attn_implementation="owner/kernel")),
    ),
]

TARGETS = [
    configured("callback", "callbacks.x._target_", callbacks__x=_SHELL),
    configured("nested", "callbacks.x.points._target_", callbacks__x={"_target_": "bertsecrets.callbacks.gradient_flow.GradientFlow", "points": _SHELL}),
    configured("through-the-project", "callbacks.x._target_", callbacks__x={"_target_": "bertsecrets.sweeps.job_processes.subprocess.Popen", "args": ["touch", "pwned"]}),
    resumed("score", _REFUSED.format("prune.scores"), yaml_keys(prune__scores=["r.evil:score"]), write("evil.py", EVIL)),
    resumed(
        "target-named-on-the-command-line",
        "Report:",
        yaml_keys(callbacks__x={"_target_": "pytorch_lightning.callbacks.Timer"}),
        words=(*_RESUME, "++callbacks.x._target_=pytorch_lightning.callbacks.Timer"),
        status=0,
    ),
    resumed(
        "another-target-named-on-the-command-line",
        _REFUSED.format("callbacks.x._target_"),
        yaml_keys(callbacks__x=_SHELL),
        words=(*_RESUME, "++callbacks.x._target_=pytorch_lightning.callbacks.Timer"),
    ),
]  # fmt: skip

CONFIGURATIONS = [
    resumed("environment", r"has name=.\$\{oc\.env:HOME\}", yaml_keys(name="${oc.env:HOME}")),
    resumed("interpolation", r"has group=", yaml_keys(group="${name}")),
    resumed("hydra-section", "has a section 'hydra'", yaml_keys(hydra={"run": {"dir": "/tmp/elsewhere"}})),
    resumed(
        "python-tag", "cannot be read", write("config.yaml", "name: !!python/object/apply:os.system [touch pwned]")
    ),
    resumed("aliases", "it uses the alias", bomb),
    resumed("deep", "nested more than 50 levels deep", write("config.yaml", "a: " + "[" * 100_000)),
    Case(
        "analyze-environment",
        analyze(checkpoint="r"),
        r"has model\.name=",
        arrange=run(yaml_keys(model__name="${oc.env:HOME}")),
    ),
    Case(
        "analyze-dotted-package",
        analyze(checkpoint="r"),
        r"model\.package is 'this\.part'",
        arrange=run(yaml_keys(model__package="this.part")),
        check=nothing_imported,
    ),
]

_ONLINE = {"_target_": "bertsecrets.cli.loggers.wandb_logger", "project": "x", "entity": "stranger", "mode": "online", "job_type": "train"}  # fmt: skip

OUTSIDE = [
    resumed(
        "save", r"asks to write or send .*\(save=out\), or continue without it \(save=null\)", yaml_keys(save="out")
    ),
    resumed("without-save", "Report:", yaml_keys(save="out"), words=(*_RESUME, "save=null"), status=0),
    resumed(
        "offline",
        "Report:",
        yaml_keys(logger__wandb=_ONLINE),
        words=(*_RESUME, "logger.wandb.mode=offline", "logger.wandb.entity=null"),
        status=0,
    ),
    resumed("linked-log", "'r/train.log' is a symbolic link to", remove("train.log"), link("train.log", "diary")),
    page("linked-log", "'r/diary.log' is a symbolic link to", link("diary.log", "elsewhere")),
]

EXPERIMENTS = [
    page("experiment-of-another-module", "Report:", declared("this:Mine"), status=0),
    page("experiment-path", "is not the name of a file", declared("this:Mine", "../../x")),
    page("name-section", "expected a text", yaml_keys(name={"a": 1})),
    Case(
        "compare-experiment",
        ("compare", "runs=[r,{run}]"),
        "Comparison:",
        status=0,
        arrange=run(declared("this:Mine"), name="second"),
        check=nothing_imported,
    ),
]

SWEEP = {
    "command": "train",
    "arguments": ["-m", "seed=1,2", "hydra.launcher.setup=[touch pwned]"],
    "fixed": {},
    "swept": ["seed"],
    "code": "0",
}
SWEEPS = [
    # What else a stranger's sweep may not bring, test_trust.py tells.
    Case(
        "sweep-launcher-shell",
        ("train.py", "resume=sw"),
        r"The sweep in 'sw' was started with .*repeat the sweep's own",
        arrange=write("sw/sweep.json", json.dumps(SWEEP)),
    ),
    Case(
        "sweep-arguments-of-numbers",
        ("train.py", "resume=sw"),
        r"sweep\.json cannot be read",
        arrange=write("sw/sweep.json", '{"command": "train", "arguments": [1], "fixed": {}, "swept": []}'),
    ),
]  # fmt: skip


def not_printed(folder: Path, outcome: Outcome) -> None:
    assert SECRET not in outcome.stdout + outcome.stderr
    assert all(SECRET.encode() not in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def no_secret(folder: Path, outcome: Outcome) -> None:
    """No file of the run, and nothing printed, holds a secret of the environment."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files) or outcome.status
    leaks = [path for path in files if SECRET.encode() in path.read_bytes()]
    assert not leaks
    assert SECRET not in outcome.stdout + outcome.stderr


_SECRETS = dict.fromkeys(("WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MY_PASSWORD"), SECRET)

SECRETS = [
    Case("secrets-of-a-run", train(logger="default"), "Report:", status=0, environment=_SECRETS, check=no_secret),
    Case("secrets-of-a-failure", train(model__path="owner/name"), "hub", environment=_SECRETS, check=no_secret),
    Case(
        "secrets-of-an-analysis",
        analyze(logger="default"),
        "Report:",
        status=0,
        environment=_SECRETS,
        check=no_secret,
    ),
]

TEXTS = [
    Case(
        f"{name}-is-text",
        view(text),
        "View:",
        status=0,
        environment=_SECRETS,
        check=not_printed,
    )
    for name, text in {
        "sentence": "It is ${oc.env:MY_PASSWORD}.",
        "quoted-sentence": "'It is ${oc.env:MY_PASSWORD}.'",
        "pair": "['It is ${oc.env:MY_PASSWORD}.',two]",
    }.items()
]

CASES = [*TEXTS, *OUTSIDE, *PICKLES, *TARGETS, *CONFIGURATIONS, *EXPERIMENTS, *SWEEPS, *SECRETS]


@parametrized(CASES)
def test_security(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(replace(case, leaves=CLAIMED), tmp_path)
    assert not list(tmp_path.rglob("pwned"))
