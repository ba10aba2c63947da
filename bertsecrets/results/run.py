"""A run's folder: the run's identity, its files and its copy of the configuration."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from bertsecrets.errors import UserError
from bertsecrets.grid import HeadGrid
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.components import HEAD
from bertsecrets.results.experiment import INITIAL as INITIAL
from bertsecrets.results.experiment import RANDOM as RANDOM
from bertsecrets.results.experiment import Declaration as Declaration
from bertsecrets.results.experiment import check_name
from bertsecrets.results.files import atomic_write, check_yaml, copied, on_page, write_text
from bertsecrets.results.rows import Identity, write_rows
from bertsecrets.results.table import HeadTable
from bertsecrets.settings import shown

TRAINING, CHECKPOINT = "training", "checkpoint"
"""Stages of numbers from training, and of a finished checkpoint."""

CONFIG_COPY = "config.yaml"
"""Name of the copy in the run's folder."""

LAYER_DECAY, ONLY, PERMUTED = "optimizer.layer_decay", "data.only", "data.permute_labels"
DROPOUT = "model.attention_dropout"
"""Controls: settings of a training that test what a run's numbers mean."""

CAPTURES = "captures"
"""Name of the folder of captured maps in a run's folder."""

PREDICTIONS = "predictions"
"""Name of the folder of a run's predictions, one table per evaluation set."""

FINISHED = "finished.json"
"""Name of the marker file of a finished run."""

SWEEP_FILE = "sweep.json"
"""Name of the file that marks a sweep's folder."""


def difference_stage(stage: str, other: str) -> str:
    """The stage of paired differences between the numbers of two stages, e.g. ``checkpoint-initial``."""
    return f"{stage}-{other}"


def is_first_process() -> bool:
    """Whether this is the first process of a distributed run, however launched, or the only process."""
    # RANK counts the processes of all machines, LOCAL_RANK those of one.
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    if "LOCAL_RANK" in os.environ:
        return os.environ["LOCAL_RANK"] == "0" and os.environ.get("NODE_RANK", "0") == "0"
    return os.environ.get("SLURM_PROCID", "0") == "0"


class _Place:
    """A file or folder in a run's folder.

    Args:
        names: The path's components below the run's folder.
    """

    def __init__(self, *names: str) -> None:
        self.names = names

    def __get__(self, run: "Run", kind: "type[Run]") -> Path:
        return run.folder.joinpath(*self.names)


@dataclass(frozen=True)
class Run:
    """The identity of a run and the files in its folder.

    Args:
        folder: The folder for all results.
        name, model, task, init: Identity, written to every row of the head table.
        writes: Whether this process writes (the first one of a distributed run).
        seed: The seed of the fine-tuning, written to rows of findings.
    """

    folder: Path
    name: str
    model: str
    task: str
    init: str
    writes: bool = True
    seed: int = 0

    config_path = _Place(CONFIG_COPY)
    heads_path = _Place("heads.parquet")
    ablation_path = _Place("ablation.parquet")
    captures = _Place(CAPTURES)
    scores_path = _Place("scores.json")
    checkpoints = _Place("checkpoints")
    figures = _Place("figures")
    report_path = _Place("report.html")
    experiments_path = _Place("experiments.json")

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Open a finished run's folder, in which only pages and figures are written.

        Raises:
            UserError: If the folder's configuration is missing or cannot be read.
        """
        folder = Path(folder)
        run = cls(folder, folder.name, "", "", "")
        config = run.config()
        trained = config.get("trained", config)
        try:
            names = trained["name"], config["model"]["name"], config["task"]["name"], trained["init"]
        except (KeyError, TypeError) as error:
            raise UserError(
                f"'{run.config_path}' is not the configuration of a run ({error}); give a run's folder."
            ) from error
        for name in names:
            if not isinstance(name, str):
                raise UserError(
                    f"'{run.config_path}' has {shown(name)} as the name of a run, model, task or initialisation; "
                    "expected a text."
                )
        seed = trained.get("seed")
        return cls(folder, *names, seed=seed if type(seed) is int else 0)

    def config(self) -> dict[str, Any]:
        """The run's copy of its resolved configuration, as plain values.

        For an analysis, ``trained.folder`` is the present folder of the analysed run: the recorded path, or the same
        path relative to this folder.

        Raises:
            UserError: If it is missing or cannot be read.
        """
        content = _recorded(self.folder)
        trained = content.get("trained")
        if isinstance(trained, dict) and isinstance(trained.get("from_here"), str):
            moved = (self.folder / trained["from_here"]).resolve()
            if not Path(str(trained.get("folder"))).is_dir() and (moved / CONFIG_COPY).is_file():
                found = _recorded(moved)
                if all(found.get(key) == trained.get(key) for key in ("name", "init", "seed")):
                    trained["folder"] = str(moved)
        return content

    @property
    def foreign(self) -> str | None:
        """The folder of a third-party model that this run analysed; None otherwise."""
        config = self.config()
        trained, checkpoint = config.get("trained"), config.get("checkpoint")
        alone = (
            trained is not None and "folder" not in trained and isinstance(checkpoint, str) and checkpoint != "initial"
        )
        return str(checkpoint) if alone else None

    @property
    def of_own_module(self) -> bool:
        """Whether the run comes from a user's own Trainer, whose module no command can load."""
        return "module" in self.config()

    @property
    def analysed(self) -> str:
        """The folder, as in a command on a page, of the run or model that this run analysed, else its own."""
        trained = self.config().get("trained") or {}
        return on_page(trained.get("folder") or self.foreign or self.folder)

    @property
    def analyze_command(self) -> str:
        """The start of a command that analyses the run, or the run or model that it analysed."""
        words = [f"python -m bertsecrets analyze checkpoint={self.analysed}"]
        if self.foreign is not None:
            # A run records its task and data; a third-party model does not.
            data, task = self.config().get("data") or {}, self.config().get("task") or {}
            own = task.get("table") is not None
            keys = ("path", "eval_path", "root", "dataset", *(("text", "choices", "label") if own else ()))
            words += [*([] if own else [f"task={copied(self.task)}"]), f"data={copied(data.get('source', 'auto'))}"]
            words += [f"data.{key}={copied(data[key])}" for key in keys if data.get(key) is not None]
        return " ".join(words)

    def outcomes_path(self, stage: str, step: int, mode: str) -> Path:
        """File of the outcomes of a disabling sweep."""
        return self.folder / "ablation" / f"{stage}-{step:08d}-{mode}.safetensors"

    def declare(self, *declarations: Declaration) -> None:
        """Add experiments to the run's declarations, replacing earlier ones of the same name.

        Raises:
            UserError: If :func:`check_name` rejects a name.
        """
        for declaration in declarations:
            check_name(declaration.name)
        earlier = self.declarations()
        by_name = {declaration.name: declaration for declaration in (*earlier, *declarations)}
        # Every validation declares the same ones again.
        if [*by_name.values()] != earlier:
            self.write_json(self.experiments_path, [asdict(declaration) for declaration in by_name.values()])

    def declarations(self) -> list[Declaration]:
        """The run's experiments, in the order of their declaration.

        Raises:
            UserError: If the record cannot be read, or was written by a version that kept findings in other files.
        """
        if not self.experiments_path.is_file():
            return []
        try:
            content = self.experiments_path.read_bytes()
            declarations = _DECLARATIONS.validate_json(content)
        except ValidationError as error:
            reason = f"{'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
            raise UserError(f"'{self.experiments_path}' cannot be read ({reason}); run the analysis again.") from error
        if any("shown" not in entry for entry in json.loads(content)):
            raise UserError(
                f"'{self.folder}' was written in another format by version {code_of(self.folder) or '0.1.0'}; run it "
                "again."
            )
        for declaration in declarations:
            check_name(declaration.name)
        return declarations

    def write_rows(
        self, experiment: str, stage: str, step: int, rows: Sequence[Any], kinds: Sequence[type] = (), **equal: str
    ) -> None:
        """Write an experiment's rows of findings; does nothing in a process that does not write.

        Args:
            experiment: Name of the experiment.
            stage, step: Stage and step of the numbers.
            rows: The rows.
            kinds, equal: The earlier rows to replace, see :func:`~bertsecrets.results.rows.write_rows`.
        """
        if self.writes:
            identity = Identity(self.name, self.model, self.task, self.init, self.seed, stage, step)
            write_rows(self.folder, experiment, identity, rows, kinds, **equal)

    def rows(self, grid: HeadGrid, stage: str, step: int) -> HeadTable:
        """A grid as rows of the head table."""
        return HeadTable.from_grid(
            grid, run=self.name, model=self.model, task=self.task, init=self.init, stage=stage, step=step
        )

    def add(self, *tables: HeadTable) -> None:
        """Add rows to the run's head table on disk; rows with the same key are replaced."""
        if self.writes and tables:
            HeadTable.concat([self.table(), *tables]).write(self.heads_path)

    def table(self) -> HeadTable:
        """The run's head table so far."""
        return HeadTable.read(self.heads_path) if self.heads_path.is_file() else HeadTable.empty()

    def size(self) -> tuple[int, int] | None:
        """Number of layers and heads; None if no table has heads."""
        cells = self.table().table.select(["layer", "head"]).to_pylist()
        cells += HEAD.of(self.ablation_table().rows())
        heads = [(cell["layer"], cell["head"]) for cell in cells if cell["head"] is not None]
        if not heads:
            return None
        return max(layer for layer, _ in heads) + 1, max(head for _, head in heads) + 1

    def ablation_table(self) -> AblationTable:
        """The run's ablation table so far."""
        if self.ablation_path.is_file():
            return AblationTable.read(self.ablation_path)
        return AblationTable.from_rows([])

    def write_json(self, path: Path, content: Any) -> None:
        """Write plain values atomically; does nothing in a process that does not write."""
        if self.writes:
            write_text(path, json.dumps(content, indent=1, ensure_ascii=False))


def code_of(folder: Path) -> str:
    """The code version of a run; empty if its folder does not record it.

    Raises:
        UserError: If the marker of a finished run cannot be read.
    """
    path = folder / FINISHED
    try:
        content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise UserError(f"'{path}' cannot be read ({error}); repeat the run.") from error
    return str(content.get("code", "")) if isinstance(content, dict) else ""


_DECLARATIONS = TypeAdapter(list[Declaration])


def plain(config: DictConfig) -> dict[str, Any]:
    """A section of the configuration as plain values, interpolations resolved."""
    content = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def write_config(config: DictConfig, folder: Path) -> None:
    """Write a run's copy of its configuration, interpolations resolved; for an analysis, also the relative path of its
    run.
    """
    trained = (config.get("trained") or {}).get("folder")
    if trained is not None:
        config = config.copy()
        OmegaConf.update(config, "trained.from_here", os.path.relpath(trained, folder.resolve()), force_add=True)
    with atomic_write(folder / CONFIG_COPY) as temporary:
        OmegaConf.save(config, temporary, resolve=True)


def read_config(folder: Path) -> DictConfig:
    """Read a run's copy of its configuration.

    Raises:
        UserError: If it cannot be read, or is empty.
    """
    return OmegaConf.create(_recorded(folder))


def _recorded(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_COPY
    try:
        content = _parsed(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = (
            error.strerror if isinstance(error, OSError) else (str(error).splitlines() or [type(error).__name__])[0]
        )
        raise UserError(f"'{path}' cannot be read ({reason}); run it again in another folder.") from error
    if not isinstance(content, dict) or not content:
        raise UserError(f"'{path}' has no configuration; run it again in another folder.")
    foreign = _not_plain(content)
    if foreign is not None:
        raise UserError(
            f"'{path}' has {foreign}, which a run never writes, so it was edited or made by another program; run it "
            "again in another folder."
        )
    return {str(key): deepcopy(value) for key, value in content.items()}


@cache
def _parsed(text: str) -> Any:
    """Cached, because a page reads a run's configuration many times."""
    check_yaml(text)
    return OmegaConf.to_container(OmegaConf.create(text), resolve=False)


def _not_plain(content: Any, key: str = "") -> str | None:
    """The first entry that is not a plain value, in words: an interpolation, which may read the environment, or Hydra's
    section.
    """
    if isinstance(content, dict):
        if not key and "hydra" in content:
            return "a section 'hydra'"
        entries: Iterable[tuple[Any, Any]] = content.items()
    elif isinstance(content, list):
        entries = enumerate(content)
    elif isinstance(content, str) and ("${" in content or content == "???"):
        return f"{key}={shown(content)}"
    else:
        return None
    entries_by_key = ((f"{key}.{name}" if key else str(name), value) for name, value in entries)
    return next(
        (foreign for full_key, value in entries_by_key if (foreign := _not_plain(value, full_key)) is not None), None
    )


def controls(config: Mapping[str, Any]) -> dict[str, str]:
    """The value of every control by key; for an analysis, those of the analysed run.

    A run of an earlier version, which has no such keys, has the values of a run without controls.
    """
    trained = config.get("trained") or {}
    data = config.get("data") or {}
    decay = trained.get("layer_decay", (config.get("optimizer") or {}).get("layer_decay", 1.0))
    dropout = trained.get("attention_dropout", (config.get("model") or {}).get("attention_dropout"))
    return {
        LAYER_DECAY: _number(decay),
        DROPOUT: _number(dropout),
        ONLY: str(data.get("only")),
        PERMUTED: str(data.get("permute_labels", False)),
    }


def controls_in_words(config: Mapping[str, Any]) -> list[str]:
    """What each control of a run changes, in words; empty without controls."""
    return words_of_controls(controls(config))


def words_of_controls(values: Mapping[str, str]) -> list[str]:
    """What controls change, by their values; those that are left out are not used."""
    values = {**controls({}), **values}
    words = []
    if values[LAYER_DECAY] != "1.0":
        words.append(f"learning rate × {values[LAYER_DECAY]} per layer downwards")
    if values[DROPOUT] != "None":
        words.append(f"attention dropout {values[DROPOUT]}" if float(values[DROPOUT]) else "no attention dropout")
    if values[ONLY] != "None":
        words.append(f"{values[ONLY]} sentence only")
    if values[PERMUTED] == "True":
        words.append("training labels shuffled")
    return words


def _number(value: object) -> str:
    return str(float(value)) if isinstance(value, (int, float)) else str(value)
