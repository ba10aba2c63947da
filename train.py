"""Fine-tune a model on a task and watch every attention head while it learns."""

from bertsecrets.sweeps.signals import exit_on_signals

if __name__ == "__main__":
    exit_on_signals()
    from bertsecrets.cli.command_line import run_command

    run_command("train")
