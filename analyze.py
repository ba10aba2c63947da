"""Analyse a finished checkpoint: the numbers, figures and report of train.py, without training."""

from bertsecrets.cli.commands.analyze import main

if __name__ == "__main__":
    main()
