"""The ``trainer`` section: Lightning's own arguments, with types and ranges where a run depends on them."""

import ast
import functools
import importlib.util
import inspect
from pathlib import Path

from bertsecrets.cli.targets import check_arguments, check_names, load_target
from bertsecrets.errors import UserError
from bertsecrets.keys import StrategySettings, TrainerSettings
from bertsecrets.settings import Section

_TRAINER = "pytorch_lightning.Trainer"
SET_BY_THE_PROGRAM = {
    "callbacks": "choose callbacks=<name> or analysis=<name>",
    "logger": "choose logger=<name>",
    "default_root_dir": "give hydra.run.dir=<folder>",
    "enable_progress_bar": "give progress=true or false",
    "plugins": "leave it out",
}
"""Trainer arguments set by the program -> what to do instead."""


@functools.cache
def trainer_arguments() -> tuple[str, ...]:
    """The argument names of Lightning's ``Trainer``, each available as ``trainer.<name>=``.

    Read from its source, because importing Lightning takes seconds and help and errors should not wait for it.
    """
    package = importlib.util.find_spec("pytorch_lightning")
    assert package is not None
    assert package.origin is not None
    source = (Path(package.origin).parent / "trainer" / "trainer.py").read_text("utf-8")
    trainer = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Trainer")
    constructor = next(node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    arguments = (*constructor.args.args, *constructor.args.kwonlyargs)
    return tuple(argument.arg for argument in arguments if argument.arg != "self")


def read_trainer(section: Section) -> TrainerSettings:
    """Read the ``trainer`` section.

    Raises:
        UserError: If an argument does not exist, does not fit or is set by the program, or if training would never end.
    """
    for name, advice in SET_BY_THE_PROGRAM.items():
        if name in section:
            raise UserError(f"trainer.{name} is set by the program; {advice}.")
    if section.get("_target_") == _TRAINER:
        # Arguments set by the program were rejected above.
        valid = [argument for argument in trainer_arguments() if argument not in SET_BY_THE_PROGRAM]
        check_names("trainer", _without_target(section), valid)
    else:
        from pytorch_lightning import Trainer

        target = load_target("trainer", section)
        if not (inspect.isclass(target) and issubclass(target, Trainer)):
            raise UserError(f"trainer._target_ is {section['_target_']}, which is not a Trainer; name {_TRAINER}.")
        check_arguments("trainer", section)
    settings = TrainerSettings.read("trainer", _without_target(section))
    if isinstance(settings.strategy, dict):
        check_arguments("trainer.strategy", settings.strategy)
        StrategySettings.read("trainer.strategy", _without_target(settings.strategy))
    if settings.max_epochs is None and settings.max_steps == -1 and section.get("max_time") is None:
        raise UserError(
            "trainer.max_epochs is null, so training would not end; set a whole number from 1, or add "
            "trainer.max_steps."
        )
    return settings


def _without_target(section: Section) -> Section:
    return {key: value for key, value in section.items() if key != "_target_"}
