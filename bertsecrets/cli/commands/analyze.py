"""``analyze``: analyse a finished checkpoint, or compare, merge or export finished runs."""

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bertsecrets.cli.command_line import run_command
from bertsecrets.cli.quiet import quiet_task
from bertsecrets.cli.run_settings import resumed, with_run_settings
from bertsecrets.settings import CONF
from bertsecrets.sweeps.job import in_sweep, start_job
from bertsecrets.sweeps.run_folder import exclusive_run


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="analyze")
def task(config: DictConfig) -> float | None:
    """Run the chosen kind of analysis, or start one job of a sweep."""
    if in_sweep():
        return start_job(with_run_settings(config, HydraConfig.get().overrides.task))
    with quiet_task():
        _analyze(with_run_settings(config, HydraConfig.get().overrides.task))
    return None


def _analyze(config: DictConfig) -> None:
    # Imported late: a mistake on the command line should not wait for PyTorch.
    from bertsecrets.cli.analyze import analyze
    from bertsecrets.cli.build import run_folder
    from bertsecrets.cli.export import export_model
    from bertsecrets.cli.merge import merge_runs
    from bertsecrets.cli.pages import compare_runs, report_again
    from bertsecrets.cli.view import view_text
    from bertsecrets.cli.workspace import save_workspace

    if config.resume is not None:
        config = resumed(config, run_folder(), HydraConfig.get().overrides.task)
    if config.merge is not None:
        with exclusive_run(config, run_folder()):
            merge_runs(config)
    elif config.compare is not None:
        with exclusive_run(config, run_folder()):
            compare_runs(config)
    elif isinstance(config.report, str):
        report_again(config)
    elif config.workspace is not None:
        save_workspace(config)
    elif config.view is not None:
        view_text(config)
    elif config.export is not None:
        export_model(config)
    else:
        analyze(config)


def main() -> None:
    """Run the command line of ``analyze``."""
    run_command(task, CONF, "analyze")


if __name__ == "__main__":
    main()
