"""``train``: fine-tune a model on a task and watch every attention head while it learns."""

import hydra
from omegaconf import DictConfig

from bertsecrets.cli.command_line import run_command
from bertsecrets.cli.quiet import quiet_task
from bertsecrets.settings import CONF
from bertsecrets.sweeps.job import in_sweep, start_job


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def task(config: DictConfig) -> float | None:
    """Run one training, or start one job of a sweep."""
    if in_sweep():
        return start_job(config)
    with quiet_task():
        # Imported late: a mistake on the command line should not wait for PyTorch.
        from bertsecrets.cli.train import train

        train(config)
    return None


def main() -> None:
    """Run the command line of ``train``."""
    run_command(task, CONF, "train")


if __name__ == "__main__":
    main()
