"""Build objects from checked settings."""

import logging
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.core.hydra_config import HydraConfig
from pytorch_lightning.accelerators import CPUAccelerator
from pytorch_lightning.strategies import ParallelStrategy
from pytorch_lightning.utilities.exceptions import MisconfigurationException  # type: ignore[attr-defined]
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bertsecrets.analysis import Analysis
from bertsecrets.attention.self_check import check_attention
from bertsecrets.callbacks.run_analysis import RunAnalysis
from bertsecrets.cli.rows import check_rows
from bertsecrets.cli.settings import RunSettings
from bertsecrets.cli.targets import accepted_arguments, build, load_target, make
from bertsecrets.data.annotation import make_annotator
from bertsecrets.data.module import TaskData
from bertsecrets.errors import UserError
from bertsecrets.measures.analysis import MeasureAnalysis
from bertsecrets.models.loading import load_tokenizer, max_positions
from bertsecrets.results.run import Run
from bertsecrets.settings import Section
from bertsecrets.task_heads.labels import CHOICE

_log = logging.getLogger(__name__)

_STARTED_BY = ("MASTER_ADDR", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "LSB_JOBID", "KUBERNETES_PORT")
"""Environment variables set by clusters and multi-node launchers."""
_PROCESSES_PER_CORE = 4
"""More would only slow each other down; a few are allowed for trying out a distributed run on a small machine."""


def run_folder() -> Path:
    """Hydra's output folder of this job."""
    return Path(HydraConfig.get().runtime.output_dir)


def begin(
    settings: RunSettings, choosing: float | None = None, *, apart: bool = False
) -> tuple[PreTrainedTokenizerFast, TaskData]:
    """Seed the generators of every process, and load tokenizer and data.

    Args:
        settings: Settings of the run.
        choosing: As in :class:`TaskData`.
        apart: Whether each sentence of a pair is encoded by itself.

    Raises:
        UserError: If the tokenizer or the data are missing or do not match the settings.
    """
    pl.seed_everything(settings.keys.seed, workers=True, verbose=False)
    pairs = settings.task.texts == 2 or settings.task.kind == CHOICE
    tokenizer = load_tokenizer(settings.model, pairs=pairs and not apart)
    data = make_data(settings, tokenizer, choosing)
    check_rows(settings, data, run_folder())
    return tokenizer, data


def make_data(settings: RunSettings, tokenizer: PreTrainedTokenizerFast, choosing: float | None = None) -> TaskData:
    """The task's data, prepared for training and evaluation.

    Raises:
        UserError: If a section's value is wrong, or the data are missing.
    """
    keys, sizes = settings.keys, settings.training
    data = TaskData(
        settings.task,
        settings.source,
        tokenizer,
        sizes["batch_size"],
        sizes["max_length"],
        keys.seed,
        make_annotator(keys.annotation, keys.progress) if keys.annotation.get("pipeline") else None,
        choosing,
    )
    data.prepare_data()
    data.setup("fit")
    return data


def make_watcher(
    settings: RunSettings,
    run: Run,
    reference: PreTrainedModel | None = None,
    sample: int | None = None,
    **arguments: Any,
) -> list[pl.Callback]:
    """The callback that computes the chosen measures, as a list; empty without measures.

    Args:
        settings: Settings of the run.
        run: The run to write to.
        reference: The model to compare with; None for the model before the first training step.
        sample: As in :class:`RunAnalysis`.
        arguments: Further arguments to :class:`MeasureAnalysis`.
    """
    if not settings.measures:
        return []
    keys = settings.keys
    analysis = MeasureAnalysis([*settings.measures.values()], keys.evaluation, keys.compare_with, **arguments)
    return [RunAnalysis(analysis, run, reference=reference, sample=sample)]


def make_callbacks(sections: Mapping[str, Section], **offered: Any) -> list[pl.Callback]:
    """The runner of the analyses of ``conf/callbacks`` or ``conf/analysis``, and the Lightning callbacks.

    Args:
        sections: ``_target_`` sections by name, checked.
        offered: Arguments passed to each constructor that accepts them; findings go to ``run``.
    """
    made = zip(sections, make_all("callbacks", sections, **offered), strict=True)
    run, before = offered["run"], offered.get("reference")
    return [
        # Analyses that also run before training receive that model when nothing is trained.
        RunAnalysis(one, run, name, before if one.at_start else None) if isinstance(one, Analysis) else one
        for name, one in made
    ]


def make_all(group: str, sections: Mapping[str, Section], **offered: Any) -> list[Any]:
    """The objects of a group's sections; each receives the offered arguments that it accepts."""
    return [
        make(section, **accepted_arguments(load_target(f"{group}.{name}", section), section, offered))
        for name, section in sections.items()
    ]


def check_trainer(settings: RunSettings) -> None:
    """Check that the trainer of ``conf/trainer`` can be built on this machine; call it before anything is loaded.

    Raises:
        UserError: If this machine cannot satisfy a setting.
    """
    num_nodes = settings.trainer.num_nodes
    if num_nodes > 1 and not any(name in os.environ for name in _STARTED_BY):
        # The first node would wait half an hour for the others.
        raise UserError(
            f"trainer.num_nodes is {num_nodes}, but nothing has started this run on other nodes; start it on each "
            f"with torchrun --nnodes={num_nodes} or srun, or set MASTER_ADDR, MASTER_PORT and NODE_RANK there, or "
            "remove trainer.num_nodes."
        )
    log = logging.getLogger("pytorch_lightning")
    before = log.level
    # The trainer built later repeats its messages about the machine.
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = build_trainer(settings, logger=False, enable_progress_bar=False, enable_checkpointing=False)
    finally:
        log.setLevel(before)
    if isinstance(trainer.strategy, ParallelStrategy) and trainer.strategy.cluster_environment is not None:
        try:
            trainer.strategy.cluster_environment.validate_settings(trainer.num_devices, trainer.num_nodes)
        except ValueError as error:
            raise _without_srun() from error
    cores = os.cpu_count() or 1
    if isinstance(trainer.accelerator, CPUAccelerator) and trainer.num_devices > cores * _PROCESSES_PER_CORE:
        raise UserError(
            f"trainer.devices is {trainer.num_devices}, but this machine has {cores} cores; set at most "
            f"{cores * _PROCESSES_PER_CORE} processes, which share them."
        )


def _without_srun() -> UserError:
    return UserError(
        f"SLURM_NTASKS={os.environ.get('SLURM_NTASKS')} is set, as in a shell on a Slurm cluster, but srun has not "
        "started a process for each device; start the command with srun --nodes=<trainer.num_nodes> "
        "--ntasks-per-node=<trainer.devices>, or unset SLURM_NTASKS so that trainer.devices processes start here."
    )


def build_trainer(settings: RunSettings, **arguments: Any) -> pl.Trainer:
    """The trainer of ``conf/trainer``, with further arguments.

    Raises:
        UserError: If a setting does not exist or this machine cannot satisfy it.
    """
    try:
        trainer: pl.Trainer = build(settings.keys.trainer, **arguments)
    except (MisconfigurationException, ImportError, TypeError, ValueError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        # Lightning reads variables that srun has not set, and refuses those of a shell's allocation.
        if "SLURM" in reason:
            raise _without_srun() from error
        raise UserError(f"The trainer could not be built ({reason}); check the trainer.* settings.") from error
    return trainer


def check_model(model: PreTrainedModel, max_length: int) -> None:
    """Check that the model accepts the task's sequence lengths and that its attention can be watched and overridden.

    Raises:
        UserError: If a check fails.
    """
    limit = max_positions(model)
    if limit is not None and max_length > limit:
        raise UserError(
            f"task.training.max_length is {max_length}, but the model has only {limit} positions; set "
            f"task.training.max_length={limit} or less."
        )
    check = check_attention(model)
    _log.debug(
        f"Self-check on one tiny batch: watching attention changes the logits by {check.watched_difference:.0e}, "
        f"zeroing a layer's heads by {min(check.override_differences):.1e} or more."
    )
