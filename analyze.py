"""Analyse a finished checkpoint: everything that train.py writes, without training."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from bertsecrets.doors.command_line import run_door
from bertsecrets.doors.job import in_sweep, start_job

CONF = Path(__file__).parent / "conf"


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="analyze")
def main(config: DictConfig) -> float | None:
    if in_sweep():
        return start_job(config, __file__)
    from bertsecrets.doors.analyze import analyze
    from bertsecrets.doors.annotate import take_labels
    from bertsecrets.doors.compare import compare_runs
    from bertsecrets.doors.merge import merge_runs
    from bertsecrets.doors.train_patterns import train_patterns
    from bertsecrets.doors.workspace import save_workspace

    if config.merge is not None:
        merge_runs(config)
    elif config.compare is not None:
        compare_runs(config)
    elif config.labelling.labels is not None:
        take_labels(config)
    elif config.train_patterns is not None:
        train_patterns(config)
    elif config.workspace is not None:
        save_workspace(config)
    else:
        analyze(config)
    return None


if __name__ == "__main__":
    run_door(main, CONF, "analyze")
