"""``python -m bertsecrets <command> ...`` runs a command from any folder, without a checkout of the repository."""

import runpy
import sys

from bertsecrets.errors import choices
from bertsecrets.sweeps.signals import exit_on_signals

COMMANDS = {
    "train": "fine-tune a model on a task and watch every attention head",
    "analyze": "analyse a checkpoint, or compare finished runs",
}

_USAGE = "\n".join(
    [
        "usage: python -m bertsecrets <command> [setting=value ...]",
        "",
        *(f"  {name:<9}{description}" for name, description in COMMANDS.items()),
        "",
        "python -m bertsecrets <command> --help lists the settings of a command.",
    ]
)


def main() -> None:
    """Run the command that the first argument names with the remaining arguments."""
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("-h", "--help"):
        print(_USAGE)  # noqa: T201
        return
    if command not in COMMANDS:
        print(_USAGE, file=sys.stderr)  # noqa: T201
        print(f"error: Unknown command '{command}'; {choices(command, COMMANDS)}.", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    del sys.argv[1]
    exit_on_signals()
    # The command becomes the main module, so that Lightning and sweeps start their processes with `-m` and its name.
    runpy.run_module(f"bertsecrets.cli.commands.{command}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
