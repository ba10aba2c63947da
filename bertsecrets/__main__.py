"""``python -m bertsecrets <command> ...`` runs a command from any folder, without a checkout of the repository."""

import os
import sys

# Python looks in the working directory first: a random.py or csv.py there would stand for the standard library's.
if sys.path[:1] == [os.getcwd()]:
    sys.path.append(sys.path.pop(0))

from typing import NoReturn

from bertsecrets.errors import UserError, choices
from bertsecrets.sweeps.signals import exit_on_signals

COMMANDS = {
    "train": "fine-tune a model on a task and watch every attention head",
    "analyze": "analyse a checkpoint: disable, measure or prune its heads; analyze <model> <file> for your own",
    "compare": "compare finished runs on one page",
    "report": "write the pages of a run or a sweep again, without a model",
    "view": "show every head's attention to a sentence",
    "plan": "say how many examples and seeds verdicts on heads take",
    "export": "write a fine-tuned model as a Hugging Face folder",
    "workspace": "create a W&B workspace and report",
    "resume": "continue an interrupted run or sweep: resume folder=<its folder>",
}

_USAGE = "\n".join(
    [
        "usage: python -m bertsecrets <command> [setting=value ...]",
        "",
        *(f"  {name:<11}{description}" for name, description in COMMANDS.items()),
        "",
        "python -m bertsecrets <command> --help lists the settings of a command.",
    ]
)


_OPTION = "--config-name="
"""Names the command in the arguments of processes and jobs that a command starts with ``-m bertsecrets.__main__``."""


_COMPLETION = "-sc"
"""Hydra's option for the completion of a shell."""


def main() -> None:
    """Run the command that the first argument names with the remaining arguments."""
    exit_on_signals()
    if not any(argument.startswith(_OPTION) for argument in sys.argv[1:]):
        command = sys.argv[1] if len(sys.argv) > 1 else "--help"
        if command == _COMPLETION:
            if "".join(sys.argv[2:3]).startswith("query="):
                _complete()
                return
            # The script that a shell reads is the same for every command.
            command = "train"
            sys.argv.insert(1, command)
        if command in ("-h", "--help"):
            print(_USAGE)  # noqa: T201
            return
        if command not in COMMANDS:
            print(_USAGE, file=sys.stderr)  # noqa: T201
            _stop(f"Unknown command '{command}'; {choices(command, COMMANDS)}.")
        del sys.argv[1]
        if command == "resume":
            command = _resumed()
        sys.argv.insert(1, f"{_OPTION}{command}")
    from bertsecrets.cli.command_line import run_command

    run_command("train")


def _complete() -> None:
    """Print what may follow on the command line that a shell completes: a command, then what Hydra offers for it."""
    line, point = os.environ.get("COMP_LINE", ""), int(os.environ.get("COMP_POINT", "0"))
    program, _, typed = line[:point].partition(" ")
    command, space, settings = typed.lstrip().partition(" ")
    if not space:
        print(" ".join(name for name in COMMANDS if name.startswith(command)))  # noqa: T201
    elif command in COMMANDS:
        rest = f"{program} {settings}"
        os.environ.update(COMP_LINE=rest, COMP_POINT=str(len(rest)))
        sys.argv.insert(1, f"{_OPTION}{'train' if command == 'resume' else command}")
        from bertsecrets.cli.command_line import run_command

        run_command("train")


def _resumed() -> str:
    """The command that wrote the folder to resume; the arguments become its own."""
    from bertsecrets.cli.run_settings import command_of_folder

    folders = [argument for argument in sys.argv[1:] if argument.startswith("folder=")]
    folder = folders[-1].removeprefix("folder=") if folders else None
    try:
        command = command_of_folder(folder)
    except UserError as error:
        _stop(str(error))
    if command is None:
        _stop(
            f"Folder '{folder}' holds no run and no sweep; give resume folder=<folder of an interrupted run or sweep>."
        )
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument not in folders] + [f"resume={folder}"]
    return command


def _stop(sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)  # noqa: T201
    sys.exit(1)


if __name__ == "__main__":
    main()
