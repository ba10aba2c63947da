"""Plan how many examples and seeds verdicts take, from finished runs that disabled heads."""

from omegaconf import DictConfig

from bertsecrets.cli.build import run_folder
from bertsecrets.keys import PlanKeys
from bertsecrets.present.console import print_lines
from bertsecrets.reporting.power_page import PowerPlan, plan_runs
from bertsecrets.results.config_copy import plain
from bertsecrets.sweeps.output_folder import keep_results


def plan(config: DictConfig) -> PowerPlan:
    """Simulate the power of larger sweeps, and write the page and its numbers to Hydra's output folder.

    Raises:
        UserError: If a run cannot serve as a pilot.
    """
    keys = PlanKeys.read("", plain(config))
    page = plan_runs([keys.runs] if isinstance(keys.runs, str) else keys.runs, keys.margin, keys.repeats)
    keep_results()
    folder = run_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = page.write(folder)
    print_lines(*page.report.lead, f"Plan: {path}")
    return page
