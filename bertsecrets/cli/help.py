"""What ``--help`` prints: purpose, examples, and the groups of the configuration as its files describe them."""

import re
import sys
import textwrap
from pathlib import Path

from bertsecrets.attention.modes import find_mode, mode_names
from bertsecrets.doors import KINDS, offers
from bertsecrets.keys import COMMANDS, DescribedKeys
from bertsecrets.settings import CONF, configurations, unconfigured

_WIDTH = 120

_PURPOSE = {
    "train": (
        "Fine-tune an encoder on a task, watch every attention head during training, and write a page that shows "
        "which heads changed, which are needed, and how the two relate. Without settings: a small model on a "
        "generated task, about three minutes on two cores, no network."
    ),
    "analyze": (
        "Analyse a fine-tuned model without training: disable its heads, measure them, prune them, or look at them. "
        "checkpoint= is a run folder (which records its task, data and model), a .ckpt file, or the folder or hub "
        "name of a model. Shorthand for your own model and a file of texts and labels: analyze <model> <file>."
    ),
}

_EXAMPLES = {
    "train": (
        ("", "the full analysis on a generated task"),
        ("task=mrpc model=bert_base trainer=gpu", "GLUE from the hub"),
        ("task=mrpc data=tsv data.root=<folder that holds MRPC>", "GLUE from files"),
        ("model=folder model.path=<folder>", "a model of your own"),
        ("data.limit_train=500 data.limit_eval=200 trainer.max_steps=30", "a first look at a large task"),
        ("optimizer.learning_rate=2e-5 task.training.batch_size=16 trainer.max_epochs=2", "other hyperparameters"),
        ("measure=[drift,entropy] '~callbacks.disable'", "other measures; no head disabled"),
        ("-m task=mrpc,rte seed=1,2,3", "a sweep: six runs and a page that compares them"),
        ("resume=<run or sweep folder>", "resume after an interruption"),
        ("logger.wandb.mode=online logger.wandb.project=<project>", "send to Weights & Biases"),
    ),
    "analyze": (
        ("checkpoint=<run folder>", "scores, drift and maps"),
        ("checkpoint=<run folder> analysis=disable", "which heads are needed?"),
        ("checkpoint=<run folder> analysis=prune", "how many heads can be removed together?"),
        ("checkpoint=<run folder> shrink.speedup=2", "a model twice as fast, and the loss in score"),
        ("checkpoint=<run folder> analysis=importance", "which heads matter, estimated without disabling any"),
        ("checkpoint=<run folder> measure=[entropy,patterns] compare_with=[initial]", "measures, before and after"),
        ("<folder or hub name> <file with texts and labels>", "your own model: which heads are needed?"),
        ("checkpoint=<run folder> analysis=redundancy", "which heads back each other up?"),
        ("-m checkpoint=<run folder>,<run folder> analysis=disable", "two runs, one after the other"),
        ("resume=<folder of an analysis>", "resume after an interruption"),
    ),
    "compare": (
        ("runs=[<run folder>,<run folder>]", "one page that compares runs"),
        ("runs=<sweep folder> paper=questions", "with a page that follows a paper or answers questions"),
    ),
    "report": (("run=<run folder>", "rebuild its page"),),
    "plan": (
        ("runs=<run folder>", "from one run: how many examples?"),
        ("runs=[<run folder>,<run folder>]", "from runs that differ in their seed: how many seeds?"),
        ("runs=<run folder> margin=0.5", "for another margin"),
    ),
    "view": (
        ("text='The cat sat.'", "the model before fine-tuning"),
        ("checkpoint=<run folder> text=['The cat sat.','The cat lay.']", "a fine-tuned model on a sentence pair"),
    ),
    "export": (("checkpoint=<run folder> folder=<new folder>", "model, tokenizer, card and table of heads"),),
    "workspace": (("project=<entity>/<project> group=<sweep>", "for the runs of a sweep"),),
}

_LISTED = {"train": "callbacks", "analyze": "analysis"}
"""The group whose choices are each described."""

_KEY = re.compile(r"^(\w+): [^#\n]*(?:# (.*))?$", re.MULTILINE)
_GROUP = re.compile(r"^  - (\w+): .*?(?:  *# (.*))?$", re.MULTILINE)


def help_text(command: str, extra: Path | None = None) -> str:
    """The help of a command.

    Args:
        command: Name of its primary configuration; only ``train`` and ``analyze`` have descriptions apart from its
            comments.
        extra: Folder of the user's configurations, whose choices are listed too.
    """
    script = f"{command}.py"
    call = f"python {script}" if Path(sys.argv[0]).name == script else f"python -m bertsecrets {command}"
    file = CONF / f"{command}.yaml"
    parts = [f"usage: {call} [setting=value ...]", _filled(_PURPOSE.get(command, f"{first_sentence(file)}."))]
    examples = [(f"{call} {arguments}".rstrip(), what) for arguments, what in _EXAMPLES.get(command, ())]
    if examples:
        parts.append("\n".join(["examples:", *(f"  {line}\n      {what}" for line, what in examples)]))
    listed = _LISTED.get(command)
    texts = [path.read_text("utf-8") for path in (file, CONF / "command.yaml")]
    groups = [group for text in texts for group in _GROUP.findall(text)]
    if command not in _PURPOSE:
        keys = [key for text in texts for key in _KEY.findall(text) if key[0] in COMMANDS[command].model_fields]
        parts.append("\n".join(["settings:", *(_filled(f"  {name:<19}{comment}", " " * 21) for name, comment in keys)]))
    parts.append(
        "\n".join(
            [
                "groups, with their choices (<group>=<choice>):",
                *(_group(name, comment, listed, extra, described=command not in _PURPOSE) for name, comment in groups),
            ]
        )
    )
    if listed is not None:
        lines = [f"  {name:<27}{first_sentence(path)}" for name, path in configurations(listed, extra).items()]
        parts.append("\n".join([f"{listed}=", *(_filled(line, " " * 29) for line in lines)]))
    if command in _PURPOSE:
        brought = offers("override_modes")
        modes = [name for name in mode_names(sweeps=True) if name not in brought]
        lines = [f"  {name:<27}{find_mode(name).words}" for name in modes]
        parts.append(
            "\n".join(
                [
                    "ablation.mode=, what replaces the output of a disabled head:",
                    *(_filled(line, " " * 29) for line in lines),
                ]
            )
        )
    if offered := [_offered(kind) for kind in KINDS if offers(kind)]:
        parts.append("\n".join(["from installed packages:", *offered]))
    parts.append(
        _filled(
            f"Every other setting is a key: {call} --cfg job prints all keys with their values, and conf/ describes "
            "them. --hydra-help lists Hydra's own options, among them -m for sweeps and -sc for tab completion "
            "(docs/runs.md)."
        )
    )
    return "\n\n".join(parts)


def first_sentence(path: Path) -> str:
    """The first sentence of the comment that a configuration begins with; empty without one."""
    words: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @"):
            words.append(line.removeprefix("#").strip())
    return re.split(r"(?<=[^.]\.) (?=[A-Z])", " ".join(words))[0].rstrip(".")


def _group(name: str, comment: str, apart: str | None, extra: Path | None, *, described: bool) -> str:
    """A group's line and its choices, unless they are listed separately or come only from other packages."""
    if described and name in DescribedKeys.model_fields:
        return _filled(f"  {name:<12}{comment}", " " * 14)
    files = configurations(name, extra)
    kind = {"measure": "measures", "data": "sources"}.get(name)
    brought = unconfigured(kind, name) if kind is not None else ()
    names = ", ".join(choice for choice in sorted({*files, *brought}) if choice != "default")
    listed = f"see {name}= below" if name == apart else names
    heading = f"  {name:<12}{comment}" if comment else f"  {name}"
    return _filled(heading, " " * 14) + (f"\n{_filled(' ' * 14 + listed, ' ' * 14)}" if listed else "")


def _offered(kind: str) -> str:
    """The items of one kind that installed packages provide, each with its package."""
    packages = {name: point.dist.name if point.dist is not None else "?" for name, point in offers(kind).items()}
    names = ", ".join(name if name == package else f"{name} ({package})" for name, package in packages.items())
    return _filled(f"  {kind.replace('_', ' '):<16}{names}", " " * 18)


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
