"""What people type by habit of other tools, and the setting that it means here."""

from pathlib import Path

from bertsecrets.cli.trainer_settings import trainer_arguments
from bertsecrets.keys import COMMANDS
from bertsecrets.settings import CONF

_MEANT = {
    "accumulate": "trainer.accumulate_grad_batches",
    "batch_size": "task.training.batch_size",
    "batchsize": "task.training.batch_size",
    "bs": "task.training.batch_size",
    "data.dataset": "data=hub data.dataset",
    "data.label": "data=csv data.label",
    "data.text": "data=csv data.text",
    "data_dir": "data.root",
    "csv": "data=csv data.path",
    "data_path": "data.path",
    "dataset": "data=hub data.dataset",
    "dataset_name": "data=hub data.dataset",
    "epochs": "trainer.max_epochs",
    "eval_batch_size": "data.eval_batch_size",
    "gpus": "trainer.devices",
    "gradient_accumulation_steps": "trainer.accumulate_grad_batches",
    "learning_rate": "optimizer.learning_rate",
    "limit_eval": "data.limit_eval",
    "limit_train": "data.limit_train",
    "limit_val": "data.limit_eval",
    "logging_steps": "trainer.log_every_n_steps",
    "lr": "optimizer.learning_rate",
    "max_eval_samples": "data.limit_eval",
    "max_grad_norm": "trainer.gradient_clip_val",
    "max_len": "task.training.max_length",
    "max_length": "task.training.max_length",
    "max_seq_length": "task.training.max_length",
    "max_train_samples": "data.limit_train",
    "measures": "measure",
    "n_epochs": "trainer.max_epochs",
    "num_epochs": "trainer.max_epochs",
    "num_gpus": "trainer.devices",
    "num_train_epochs": "trainer.max_epochs",
    "num_workers": "data.num_workers",
    "optimizer.lr": "optimizer.learning_rate",
    "out": "hydra.run.dir",
    "output": "hydra.run.dir",
    "output_dir": "hydra.run.dir",
    "per_device_eval_batch_size": "data.eval_batch_size",
    "per_device_train_batch_size": "task.training.batch_size",
    "project": "logger.wandb.project",
    "random_seed": "seed",
    "resume_from_checkpoint": "resume",
    "run_name": "name",
    "save_steps": "checkpoint.every_n_steps",
    "steps": "trainer.max_steps",
    "task_name": "task",
    "train_batch_size": "task.training.batch_size",
    "trainer.batch_size": "task.training.batch_size",
    "trainer.epochs": "trainer.max_epochs",
    "trainer.learning_rate": "optimizer.learning_rate",
    "trainer.lr": "optimizer.learning_rate",
    "wandb.project": "logger.wandb.project",
    "wandb_project": "logger.wandb.project",
    "warmup_ratio": "optimizer.warmup_fraction",
    "weight_decay": "optimizer.weight_decay",
}
"""Names of other tools -> the setting here."""

_MEANT_WITH_VALUE = {
    "bf16": "trainer.precision=bf16-mixed",
    "cpu": "trainer=cpu",
    "cuda": "trainer=gpu",
    "debugging": "debug=true",
    "fp16": "trainer.precision=16-mixed",
    "gpu": "trainer=gpu",
    "no_wandb": "logger=csv",
    "quiet": "progress=false",
}
"""Switches of other tools -> the whole setting here."""

_MODELS = ("model_name", "model_name_or_path", "model_path", "pretrained_model", "pretrained_model_name_or_path")
_ANALYSED = ("ckpt", "ckpt_path", "folder", "run", "run_dir", "run_folder")


def meant(key: str, value: str, command: str) -> str | None:
    """The setting that a name from another tool stands for, as it is written on the command line; None if unknown.

    Args:
        key: The name.
        value: Its value, as given; may be empty.
        command: ``train`` or ``analyze``.

    >>> meant("lr", "1e-4", "train"), meant("max_steps", "5", "train"), meant("fp16", "true", "train")
    ('optimizer.learning_rate=1e-4', 'trainer.max_steps=5', 'trainer.precision=16-mixed')
    """
    value = value or "<value>"
    if key in _MEANT_WITH_VALUE:
        return _MEANT_WITH_VALUE[key]
    if key in _MODELS and (command == "train" or key != "model_path"):
        return f"model=folder model.path={value}"
    if command in ("analyze", "view", "export") and key in (*_ANALYSED, "model_path"):
        return f"checkpoint={value}"
    if key in _MEANT:
        return f"{_MEANT[key]}={value}"
    return f"trainer.{key}={value}" if key in trainer_arguments() else None


def of_the_other_command(key: str, value: str, command: str) -> str | None:
    """What to write instead of a setting that only the other command has; None for any other.

    >>> of_the_other_command("callbacks", "disable", "analyze")
    'analyze.py has analysis=disable for that'
    """
    value = value or "<name>"
    if command == "train" and key == "analysis":
        later = f"after training run python -m bertsecrets analyze checkpoint=<run folder> analysis={value}"
        together = (CONF / "callbacks" / f"{value}.yaml").is_file()
        return f"{later}{f', or write callbacks={value} to have it at the end of training' if together else ''}"
    if command == "analyze" and key == "callbacks":
        if (CONF / "analysis" / f"{value}.yaml").is_file():
            return f"analyze.py has analysis={value} for that"
        return "analyze.py has analysis=<name> for that; analyze.py --help lists them"
    return None


def commands_with(key: str, command: str) -> str | None:
    """The other commands that have a setting, as advice; None if this command has it or none does.

    >>> commands_with("runs", "train")
    'that is a setting of python -m bertsecrets compare and of merge and of plan'
    """
    commands = [name for name, keys in COMMANDS.items() if key in keys.model_fields]
    if commands and command not in commands:
        return f"that is a setting of python -m bertsecrets {' and of '.join(commands)}"
    return None


def as_setting(option: str, following: str | None, command: str) -> str:
    """An option with dashes as a setting.

    Args:
        option: ``--key`` or ``--key=value``.
        following: The next argument, if it may be the option's value.
        command: ``train`` or ``analyze``.

    >>> as_setting("--max-steps", "5", "train"), as_setting("--seed=3", None, "train")
    ('trainer.max_steps=5', 'seed=3')
    """
    name, separator, value = option.lstrip("-").partition("=")
    key = name.replace("-", "_")
    if not separator and following is not None and not following.startswith("-") and "=" not in following:
        value = following
    return meant(key, value, command) or f"{key}={value or '<value>'}"


def group_of(word: str) -> str | None:
    """The group of the configuration that has a choice of this name; None if none or several do.

    >>> group_of("mrpc"), group_of("nonsense")
    ('task', None)
    """
    groups = [path.parent.name for path in Path(CONF).glob(f"*/{word}.yaml")] if word.isidentifier() else []
    return groups[0] if len(groups) == 1 else None
