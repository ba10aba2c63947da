"""Fine-tune a model on a task and watch every attention head while it learns."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from bertsecrets.doors.command_line import run_door
from bertsecrets.doors.job import in_sweep, start_job

CONF = Path(__file__).parent / "conf"


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def main(config: DictConfig) -> float | None:
    if in_sweep():
        return start_job(config, __file__)
    from bertsecrets.doors.train import train

    train(config)
    return None


if __name__ == "__main__":
    run_door(main, CONF, "train")
