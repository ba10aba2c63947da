"""``analyze``: analyse a finished checkpoint."""

import runpy
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bertsecrets.cli.command_line import run_command, stop
from bertsecrets.cli.earlier_spellings import other_command
from bertsecrets.cli.quiet import quiet_task
from bertsecrets.cli.run_settings import resumed, with_run_settings
from bertsecrets.errors import UserError
from bertsecrets.settings import CONF
from bertsecrets.sweeps.job import in_sweep, start_job


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="analyze")
def task(config: DictConfig) -> float | None:
    """Run one analysis, or start one job of a sweep."""
    settings = HydraConfig.get()
    config = with_run_settings(config, settings.overrides.task)
    if in_sweep():
        return start_job(config)
    with quiet_task():
        # Imported late: a mistake on the command line should not wait for PyTorch.
        from bertsecrets.cli.analyze import analyze
        from bertsecrets.cli.build import run_folder

        if config.resume is not None:
            config = resumed(config, run_folder(), settings.overrides.task)
        analyze(config)
    return None


def main() -> None:
    """Run the command line of ``analyze``, or that of the command that replaces what ``analyze`` did before."""
    try:
        arguments = other_command(sys.argv[1:])
    except UserError as error:
        stop(str(error))
    if arguments is None:
        run_command(task, CONF, "analyze")
    else:
        sys.argv[1:] = arguments
        runpy.run_module("bertsecrets.cli.commands.finished", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
