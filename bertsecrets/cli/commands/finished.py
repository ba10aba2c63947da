"""The commands about finished runs and their models: ``compare``, ``report``, ``merge``, ``view``, ``export``, ``workspace``.

``--config-name`` says which; ``python -m bertsecrets <command>`` adds it.
"""

import importlib
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bertsecrets.cli.command_line import run_command
from bertsecrets.cli.quiet import quiet_task
from bertsecrets.cli.run_settings import resumed, with_run_settings
from bertsecrets.settings import CONF
from bertsecrets.sweeps.job import in_sweep, start_job
from bertsecrets.sweeps.run_folder import exclusive_run

_FUNCTIONS = {
    "compare": ("bertsecrets.cli.pages", "compare_runs"),
    "report": ("bertsecrets.cli.pages", "report_again"),
    "merge": ("bertsecrets.cli.merge", "merge_runs"),
    "view": ("bertsecrets.cli.view", "view"),
    "export": ("bertsecrets.cli.export", "export_model"),
    "workspace": ("bertsecrets.cli.workspace", "save_workspace"),
}
_OPTION = "--config-name="
_RUNS = ("compare", "merge")
"""The commands whose output folder is a run, which can be finished and resumed."""


@hydra.main(version_base="1.3", config_path=str(CONF))
def task(config: DictConfig) -> float | None:
    """Run the command, or start one job of a sweep."""
    settings = HydraConfig.get()
    config = with_run_settings(config, settings.overrides.task)
    if in_sweep():
        return start_job(config)
    with quiet_task():
        # Imported late: a mistake on the command line should not wait for PyTorch.
        from bertsecrets.cli.build import run_folder

        command = str(settings.job.config_name)
        if config.resume is not None:
            config = resumed(config, run_folder(), settings.overrides.task)
        module, function = _FUNCTIONS[command]
        run = getattr(importlib.import_module(module), function)
        if command in _RUNS:
            with exclusive_run(config, run_folder()):
                run(config)
        else:
            run(config)
    return None


def main() -> None:
    """Run the command line."""
    option = next(argument for argument in sys.argv if argument.startswith(_OPTION))
    run_command(task, CONF, option.removeprefix(_OPTION))


if __name__ == "__main__":
    main()
