"""Build objects from checked settings."""

import functools
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hydra
import pytorch_lightning as pl
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.exceptions import MisconfigurationException  # type: ignore[attr-defined]
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bertsecrets.callbacks.measures import MeasureHeads, Watched
from bertsecrets.cli.checkpoint_files import AtomicCheckpointIO
from bertsecrets.cli.settings import MeasureSection, RunSettings, Section
from bertsecrets.data.module import TaskData
from bertsecrets.errors import UserError
from bertsecrets.measures.base import Measure
from bertsecrets.models.loading import max_positions
from bertsecrets.results.run import Run

_log = logging.getLogger(__name__)


def make(section: Section, /, **arguments: Any) -> Any:
    """Build the object of a ``_target_`` section.

    Args:
        section: ``_target_`` and arguments, as plain values.
        arguments: Further arguments, of any type.

    Raises:
        UserError: If the section does not fit its target, or the target cannot be imported.
    """
    try:
        target = hydra.utils.instantiate({**section, "_partial_": True, "_convert_": "all"})
        return target(**arguments)
    except InstantiationException as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from error
        cause = str(error.__cause__ or error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"{section.get('_target_')} could not be built ({cause}); check its section.") from error
    except TypeError as error:
        raise UserError(f"{section.get('_target_')} could not be built ({error}); check its section.") from error


def run_folder() -> Path:
    """Hydra's output folder of this job."""
    return Path(HydraConfig.get().runtime.output_dir)


def make_loggers(settings: RunSettings, run: Run) -> list[Logger]:
    """The loggers of ``conf/logger``."""
    return [make(section, run=run, config=settings.config) for section in settings.keys.logger.values() if section]


def make_data(settings: RunSettings, tokenizer: PreTrainedTokenizerFast) -> TaskData:
    """The task's data, prepared for training and evaluation.

    Raises:
        UserError: If a section's value is wrong, or the data are missing.
    """
    keys = settings.keys
    data = TaskData.from_config(
        keys.data,
        settings.task,
        tokenizer,
        settings.training,
        seed=keys.seed,
        annotation=keys.annotation,
        progress=keys.progress,
    )
    data.prepare_data()
    data.setup("fit")
    return data


def make_watcher(settings: RunSettings, **arguments: Any) -> list[pl.Callback]:
    """The callback that takes the chosen measures, as a list; empty without measures.

    Args:
        settings: Settings of the run.
        arguments: Further arguments to :class:`MeasureHeads`.
    """
    if not settings.measures:
        return []
    watched = [
        Watched(
            functools.partial(_make_measure, section),
            section.watch.every_n_validations,
            None if section.watch.tracked is None else tuple(section.watch.tracked),
        )
        for section in settings.measures
    ]
    keys = settings.keys
    return [MeasureHeads(watched, evaluation=keys.evaluation, compare_with=keys.compare_with, **arguments)]


def _make_measure(section: MeasureSection, num_layers: int, num_heads: int) -> Measure:
    measure = make(section.target, num_layers=num_layers, num_heads=num_heads)
    if not isinstance(measure, Measure):
        raise UserError(
            f"measure.{section.name}._target_ is {section.target['_target_']}, which is not a Measure; name a subclass "
            "of bertsecrets.measures.base.Measure."
        )
    return measure


def make_callbacks(sections: Mapping[str, Section], **offered: Any) -> list[pl.Callback]:
    """The callbacks of ``conf/callbacks`` or ``conf/analysis``, including a user's own Lightning callbacks.

    Args:
        sections: ``_target_`` sections by name.
        offered: Arguments passed to each callback that accepts them.
    """
    callbacks = []
    for name, section in sections.items():
        if "_target_" not in section:
            raise UserError(f"Callback '{name}' has no _target_; name its class, e.g. _target_: my_package.MyCallback.")
        try:
            target = hydra.utils.get_class(section["_target_"])
        except (ImportError, ValueError) as error:
            raise UserError(
                f"Callback '{name}' names the class '{section['_target_']}', which cannot be imported ({error}); check its "
                "_target_."
            ) from error
        accepted = inspect.signature(target).parameters
        accepted_offers = {key: value for key, value in offered.items() if key in accepted and key not in section}
        callbacks.append(make(section, **accepted_offers))
    return callbacks


def trusted_classes(settings: RunSettings) -> list[str]:
    """Classes named by the current configuration, as ``module:class``; they may be imported to describe their results."""
    targets = [section.target["_target_"] for section in settings.measures]
    targets += [section["_target_"] for section in settings.callbacks.values() if "_target_" in section]
    return [":".join(str(target).rsplit(".", 1)) for target in targets]


def make_trainer(
    settings: RunSettings, callbacks: list[pl.Callback], loggers: list[Logger], folder: Path
) -> pl.Trainer:
    """The trainer of ``conf/trainer``.

    Raises:
        UserError: If a setting does not exist or does not fit the machine.
    """
    try:
        trainer: pl.Trainer = hydra.utils.instantiate(
            settings.keys.trainer,
            callbacks=callbacks,
            logger=loggers or False,
            default_root_dir=str(folder),
            enable_progress_bar=settings.keys.progress,
            plugins=AtomicCheckpointIO(),
        )
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, (MisconfigurationException, TypeError, ValueError, RuntimeError)):
            reason = " ".join(str(cause).split()).rstrip(".")
            raise UserError(f"The trainer could not be built ({reason}); check the trainer.* settings.") from error
        raise
    return trainer


def check_length(model: PreTrainedModel, max_length: int) -> None:
    """Raise UserError if sequences may be longer than the model has positions for."""
    limit = max_positions(model)
    if limit is not None and max_length > limit:
        raise UserError(
            f"task.training.max_length is {max_length}, but the model has positions for {limit} tokens; set "
            f"task.training.max_length={limit} or less."
        )
