"""Fine-tune a model on a task and watch every attention head while it learns."""

from bertsecrets.cli.commands.train import main

if __name__ == "__main__":
    main()
