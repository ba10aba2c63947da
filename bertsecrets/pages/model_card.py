"""The model card of an exported model: its scores, the heads that matter, and how to reproduce it."""

import importlib.metadata
import json
import math
import platform
import re
import shlex
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

import bertsecrets
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.keys import top_level
from bertsecrets.models.classifier import GATES
from bertsecrets.models.spec import RANDOM_INIT, ModelSpec
from bertsecrets.present.disabling import ablation_sections
from bertsecrets.present.report.content import CSV, PARQUET, HeadsTogether
from bertsecrets.reporting.run_report import heads_together, views_of
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.components import HEAD
from bertsecrets.results.disabled import rows_of
from bertsecrets.results.files import read_yaml
from bertsecrets.results.formatting import (
    low_to_high,
    markdown_table,
    markdown_text,
    number,
    visible,
)
from bertsecrets.results.run import FINISHED, Run, controls_in_words
from bertsecrets.results.scores import RunScores
from bertsecrets.task_heads.sequence import SEQUENCE

CARD = "README.md"

VERSIONS = "versions"
"""Key of the versions of the libraries in a checkpoint's record."""

_LIBRARIES = ("torch", "transformers", "pytorch-lightning")

_HUB_NAMES = {
    "macro_f1": "f1",
    "auc": "roc_auc",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}
"""The hub's names of metrics where they differ."""

_NOT_OF_THE_MODEL = top_level(lambda meaning: not (meaning.numbers and meaning.model)) | {"hydra"}
"""Settings of a command line that say where a run is written and how it is followed or reported."""

_PATH = re.compile(r"(?<![\w:/.~])(?:~[\w.-]*|\.{0,2}|file:/*)/[^\s,\]'\"]")
"""The beginning of an absolute path, or of one from the home or the working folder."""


@dataclass(frozen=True)
class ExportedModel:
    """What a card is about.

    Args:
        name: Name of the model.
        task: The task that it was fine-tuned on.
        spec: The model that it was fine-tuned from.
        record: The facts of its training, from its checkpoint.
        run: The run of the training; None for a checkpoint that lies in no run's folder.
        analyses: Finished analyses of the same weights.
    """

    name: str
    task: Task
    spec: ModelSpec
    record: Mapping[str, Any]
    run: Run | None
    analyses: Sequence[Run] = ()

    @property
    def step(self) -> int:
        """Optimiser steps of the weights."""
        return int(self.record.get("step", 0))

    def scores(self) -> RunScores | None:
        """The scores of these weights; None without a run, or if the run scored other weights."""
        scores = self._scores()
        return scores if scores is not None and scores.lines() else None

    def sweep(self) -> AblationTable | None:
        """The first disabling sweep over single heads of these weights, of the run or of an analysis; None without
        one.
        """
        for run in (self.run, *self.analyses):
            if run is not None and run.ablation_path.is_file():
                table = run.ablation_table().select(step=self.step)
                if rows_of(HEAD, table):
                    return table
        return None

    def heads(self) -> HeadsTogether | None:
        """One row for each head with all that the run and the analyses know about it; None if they know nothing.

        A run measures the weights that it scores, so the table of a run that scored other weights is left out.
        """
        of_run = [self.run] if self.run is not None and self._scores() is not None else []
        return heads_together(dict(ChainMap(*map(views_of, (*of_run, *reversed(self.analyses))))))

    def _scores(self) -> RunScores | None:
        if self.run is None or not self.run.scores_path.is_file():
            return None
        scores = RunScores.read(self.run.scores_path)
        return scores if scores.step == self.step else None


def analyses_of(run: Run, checkpoint: Path, step: int) -> list[Run]:
    """Finished analyses of a run's checkpoint that lie where the commands put them: beside the run, or in
    ``<name>-analysis``.

    Args:
        run: The run.
        checkpoint: The checkpoint file; analyses that are older than it are of other weights.
        step: Its optimiser steps.

    Raises:
        UserError: If the configuration or the scores of one of them cannot be read.
    """
    folder = run.folder.resolve()
    markers = [*folder.parent.glob(f"*/{FINISHED}"), *folder.parent.parent.glob(f"{run.name}-analysis/*/{FINISHED}")]
    # The newest last: of two analyses with one experiment its numbers count.
    finished = sorted({path for path in markers if path.parent != folder}, key=lambda path: path.stat().st_mtime)
    written = checkpoint.stat().st_mtime
    analyses = []
    for marker in finished:
        if marker.stat().st_mtime < written or not (marker.parent / "scores.json").is_file():
            continue
        analysis = Run(marker.parent, run.name, run.model, run.task, run.init)
        config = analysis.config()
        trained = config.get("trained")
        origin = trained.get("folder") if isinstance(trained, dict) else None
        same_task = config.get("task", {}).get("name") == run.task
        of_run = isinstance(origin, str) and Path(origin) == folder and same_task
        if of_run and RunScores.read(analysis.scores_path).step == step:
            analyses.append(Run.open(marker.parent))
    return analyses


def versions() -> dict[str, str]:
    """Versions of this package, of Python and of the libraries that make numbers."""
    return {
        "bertsecrets": bertsecrets.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def model_card(model: ExportedModel, location: str, has_heads: bool) -> str:
    """The card in Markdown, with the hub's metadata as YAML in front.

    Args:
        model: What the card is about.
        location: Where a reader loads the model from: a repository of the hub or a folder.
        has_heads: Whether the table of all heads lies beside the card.

    Raises:
        UserError: If the run's scores, tables or configuration cannot be read.
    """
    scores, sweep = model.scores(), model.sweep()
    config = {} if model.run is None else model.run.config()
    parts = [
        f"---\n{_metadata(model, scores, config).to_yaml()}\n---",
        f"# {markdown_text(model.name)}",
        _introduction(model, config),
        "## Use",
        _usage(model, location, config),
        "## Scores",
        _scores(scores),
        "## Attention heads that matter",
        *_heads(model, scores, sweep),
    ]
    if has_heads:
        parts.append(
            f"`{CSV}` and `{PARQUET}` hold one row for each head with all that was measured. Layers and "
            "heads are counted from 0."
        )
    parts += ["## How to reproduce", *_reproduction(model, config)]
    return "\n\n".join(parts) + "\n"


def _metadata(model: ExportedModel, scores: RunScores | None, config: Mapping[str, Any]) -> ModelCardData:
    hub = model.task.hub if _section(config, "data").get("source") in ("auto", "hub") else None
    # A path of this machine is no data set of the hub.
    dataset = None if hub is None or _section(config, "data").get("path") is not None else hub.path
    results = [
        EvalResult(
            task_type=model.task.head.pipeline,
            dataset_type=dataset or model.task.name,
            dataset_name=model.task.name,
            dataset_config=hub.name if hub is not None and dataset else None,
            dataset_split=model.task.evaluation.get(line.name.rpartition("/")[0]),
            metric_type=_HUB_NAMES.get(metric := line.name.rpartition("/")[2], metric),
            metric_value=line.value,
            metric_name=line.name,
        )
        for line in (() if scores is None else scores.lines())
        if math.isfinite(line.value)
    ]
    return ModelCardData(
        base_model=model.spec.path if model.spec.folder() is None else None,
        datasets=dataset,
        eval_results=results or None,
        library_name="transformers",
        metrics=[_HUB_NAMES.get(name, name) for name in model.task.metrics],
        model_name=model.name,
        pipeline_tag=model.task.head.pipeline,
        tags=["bertsecrets", "attention-heads"],
    )


def _introduction(model: ExportedModel, config: Mapping[str, Any]) -> str:
    task, init = model.task, model.record.get("init")
    answer = (
        f"a score from {task.label_range[0]:g} to {task.label_range[1]:g}" if task.label_range else _listed(task.labels)
    )
    start = "the untrained architecture of" if init == RANDOM_INIT else "the pre-trained model"
    texts = "sentence pairs" if task.texts == 2 else "sentences"
    head = task.head
    what = f"{head.noun} of {texts}" if head.pipeline == SEQUENCE.pipeline else head.noun
    sentences = [
        f"A {what} fine-tuned on the task `{markdown_text(task.name)}` from {start} "
        f"`{markdown_text(_source(model.spec))}`{f'; its answer is {answer}' if answer else ''}."
    ]
    if GATES in model.record:
        sentences.append("Each head's gate is multiplied into its columns of the output projection.")
    changed = controls_in_words(config)
    if changed:
        sentences.append(f"It is a control, not a model of the task: {', '.join(changed)}.")
    return " ".join(sentences)


def _source(spec: ModelSpec) -> str:
    """Where the pre-trained model is from; of a local folder its last name only."""
    if spec.package is not None:
        return f"{spec.name} (Python package {spec.package})"
    return spec.path if spec.folder() is None else Path(spec.path).name


def _usage(model: ExportedModel, location: str, config: Mapping[str, Any]) -> str:
    length = _section(config, "task", "training").get("max_length")
    limit = f", truncation=True, max_length={length}" if isinstance(length, int) else ""
    count = 1 if _section(config, "data").get("only") is not None else model.task.texts
    texts = ", ".join(['"The cat sat."', '"The cat lay."'][:count])
    quoted, auto = json.dumps(location, ensure_ascii=False), model.task.head.auto
    lines = [
        "```python",
        f"from transformers import {auto}, AutoTokenizer",
        "",
        f"model = {auto}.from_pretrained({quoted})",
        f"tokenizer = AutoTokenizer.from_pretrained({quoted})",
        f'inputs = tokenizer({texts}{limit}, return_tensors="pt")',
        "output = model(**inputs)",
        "```",
    ]
    return "\n".join(lines)


def _scores(scores: RunScores | None) -> str:
    if scores is None:
        return "These weights were not scored by the run that they come from."
    rows = [
        [
            line.name,
            number(line.value),
            low_to_high(line.low, line.high),
            number(line.baseline),
            str(scores.sets[line.name.rpartition("/")[0]].count),
        ]
        for line in scores.lines()
    ]
    sentences = [f"The majority baseline always answers “{scores.constant_answer}”."]
    if scores.learned is False:
        sentences.append("The model does not significantly beat it on the first set, so it learned nothing measurable.")
    table = markdown_table(["metric", "model", "95 % interval", "majority baseline", "examples"], rows)
    return f"{table}\n\n{markdown_text(' '.join(sentences))}"


def _heads(model: ExportedModel, scores: RunScores | None, sweep: AblationTable | None) -> list[str]:
    if sweep is None:
        return [
            "No disabling sweep of these weights was found. Run "
            "`python -m bertsecrets analyze checkpoint=<run folder> analysis=disable`, then export again."
        ]
    if scores is not None and scores.learned is False:
        return ["The model does not significantly beat the majority baseline, so its heads are not interpreted."]
    first = ablation_sections(sweep, ())[0]
    table = first.tables[0]
    return [markdown_text(first.findings[0]), table.caption + ":", markdown_table(table.header, table.rows)]


def _reproduction(model: ExportedModel, config: Mapping[str, Any]) -> list[str]:
    parts = []
    if model.run is not None:
        parts.append(f"```bash\n{_command(model.run, config)}\n```")
    training, trainer = _section(config, "task", "training"), _section(config, "trainer")
    settings = {
        "seed": model.record.get("seed"),
        "initialisation": model.record.get("init"),
        "optimiser steps of these weights": model.step,
        **_section(config, "optimizer"),
        **{name: training.get(name) for name in ("batch_size", "max_length")},
        **{name: trainer.get(name) for name in ("max_epochs", "precision", "devices")},
        "training examples": _section(config, "data").get("limit_train") or ("all" if config else None),
    }
    rows = [[name.replace("_", " "), str(value)] for name, value in settings.items() if value not in (None, [])]
    parts.append(markdown_table(["setting", "value"], rows))
    used = model.record.get(VERSIONS)
    trained = used if isinstance(used, dict) else versions()
    listed = ", ".join(f"{name} {version}" for name, version in trained.items())
    parts.append(f"{'Trained' if isinstance(used, dict) else 'Exported'} with {markdown_text(listed)}.")
    return parts


def _command(run: Run, config: Mapping[str, Any]) -> str:
    """The command that trained a run, without where it wrote to; paths of the machine it ran on are left open."""
    path = run.folder / ".hydra" / "overrides.yaml"
    overrides: Any = None
    if path.is_file():
        overrides = read_yaml(path, "the settings of the run", "restore the file, or delete it")
        if not isinstance(overrides, list):
            raise UserError(f"'{path}' holds no list of settings; restore the file, or delete it.")
    if overrides is None:
        overrides = [f"task={run.task}", f"model={run.model}", f"init={run.init}", f"seed={config.get('seed')}"]
    kept = [str(line) for line in overrides if re.split(r"[.=@]", str(line).lstrip("+~"))[0] not in _NOT_OF_THE_MODEL]
    # A whole value is left open if it holds a path: where a path ends cannot be told.
    open_ended = [f"{line.partition('=')[0]}=<path>" if _PATH.search(line.partition("=")[2]) else line for line in kept]
    words = map(shlex.quote, open_ended)
    # A fence inside the text would end the block.
    return visible(" ".join(["python -m bertsecrets train", *words])).replace("```", "")


def _section(config: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A section of a recorded configuration; empty where it is missing."""
    for name in names:
        part = config.get(name)
        config = part if isinstance(part, dict) else {}
    return config


def _listed(names: Sequence[str]) -> str:
    quoted = [f"“{markdown_text(name)}”" for name in names]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else "".join(quoted)
