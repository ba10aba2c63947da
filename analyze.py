"""Analyse a finished checkpoint: everything that train.py writes, without training."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from bertsecrets.doors.command_line import run_door

CONF = Path(__file__).parent / "conf"


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="analyze")
def main(config: DictConfig) -> None:
    from bertsecrets.doors.analyze import analyze
    from bertsecrets.doors.merge import merge_runs

    if config.merge is not None:
        merge_runs(config)
    else:
        analyze(config)


if __name__ == "__main__":
    run_door(main, CONF, "analyze")
