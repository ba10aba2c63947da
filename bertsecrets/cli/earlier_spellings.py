"""Commands that were settings of ``analyze`` before: the settings still work, and say which command replaces them."""

import re
import shlex
import sys
from collections.abc import Sequence

from bertsecrets.cli.run_settings import command_of_folder
from bertsecrets.errors import UserError
from bertsecrets.keys import COMMANDS, AnalyzeKeys

_COMMANDS = {
    "compare": {"compare": "runs", "compare_heads": "heads"},
    "merge": {"merge": "runs"},
    "report": {"report": "run", "report.heads": "heads"},
    "view": {"view": "text"},
    "export": {"export": "folder"},
    "workspace": {"workspace": "project"},
}
"""Each command: the settings of ``analyze`` that chose it and belonged to it -> its own."""


def other_command(arguments: Sequence[str]) -> list[str] | None:
    """The command line of the command that replaces a setting of ``analyze``, for Hydra; None if there is no such setting.

    Settings that ``analyze`` has and the command does not are left out, as they meant nothing there. A folder that
    another command has written is resumed by that command.

    >>> other_command(["view=The cat sat.", "checkpoint=run", "trainer=cpu"])
    ['--config-name=view', 'text=The cat sat.', 'checkpoint=run']
    >>> other_command(["checkpoint=run"])

    Raises:
        UserError: If two such settings are given.
    """
    values = {key: value for key, separator, value in map(_parts, arguments) if separator}
    commands = [name for name in _COMMANDS if values.get(name, "null") != "null"]
    if len(commands) > 1:
        raise UserError(f"{' and '.join(commands)} are both given; give one of them.")
    if not commands:
        resumed = command_of_folder(values.get("resume"))
        return [f"--config-name={resumed}", *arguments] if resumed in _COMMANDS else None
    (command,) = commands
    renamed, keys = _COMMANDS[command], COMMANDS[command].model_fields
    words = []
    for argument in arguments:
        key, separator, value = _parts(argument)
        if key in renamed:
            words.append(f"{renamed[key]}{separator}{value}")
        elif (section := re.split(r"[.@]", key)[0]) in keys or section not in AnalyzeKeys.model_fields:
            words.append(argument)
    print(  # noqa: T201
        f"'{command}=' of analyze is a command now: {shlex.join(['python', '-m', 'bertsecrets', command, *words])}. The old "
        "spelling still works.",
        file=sys.stderr,
    )
    return [f"--config-name={command}", *words]


def _parts(argument: str) -> tuple[str, str, str]:
    key, separator, value = argument.partition("=")
    return key.lstrip("+~"), separator, value
