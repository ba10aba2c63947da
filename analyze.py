"""Analyse a finished checkpoint: the numbers, figures and report of train.py, without training."""

from bertsecrets.sweeps.signals import exit_on_signals

if __name__ == "__main__":
    exit_on_signals()
    from bertsecrets.cli.command_line import run_command

    run_command("analyze")
