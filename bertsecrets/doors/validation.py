"""Checks the values of a composed configuration, before any model or data is touched."""

from omegaconf import DictConfig

from bertsecrets.data.annotation import make_annotator
from bertsecrets.data.framenet.source import FrameNetSource
from bertsecrets.data.task import task_from_config
from bertsecrets.doors.plain import plain
from bertsecrets.errors import UserError, choices
from bertsecrets.models.spec import check_init

WANDB_MODES = ("offline", "online", "disabled")


def validate(config: DictConfig) -> None:
    """Raises UserError if a value that needs neither a model nor data to be judged is wrong."""
    task = task_from_config(plain(config.task))
    if "optimizer" in config and not task.is_labelled:
        raise UserError(f"Task '{task.name}' has no labels, so that nothing can be fine-tuned on it; use analyze.py.")
    check_init(config.init)
    make_annotator(plain(config.annotation))
    if "framenet" in config:
        FrameNetSource.from_config(plain(config.framenet))
    mode = config.logger.get("wandb", {}).get("mode", WANDB_MODES[0])
    if mode not in WANDB_MODES:
        raise UserError(f"Unknown W&B mode '{mode}'; {choices(str(mode), WANDB_MODES)}.")
    scores = [f"{name}/{metric}" for name in task.evaluation for metric in (*task.metrics, "loss")]
    if config.objective is not None and config.objective not in scores:
        raise UserError(f"objective is '{config.objective}'; {choices(str(config.objective), scores)}.")
    if isinstance(config.seed, bool) or not isinstance(config.seed, int) or not 0 <= config.seed < 2**32:
        raise UserError(f"seed is {config.seed}; expected a whole number from 0 to {2**32 - 1}.")
