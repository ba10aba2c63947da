"""Merges, comparisons and other odd combinations of commands."""

from pathlib import Path

from faults.cases import Case, analyze, parametrized, train
from faults.runner import Warm

CASES = [
    Case("train-fine", train(), r"Report: {folder}/outputs/", status=0),
    Case("train-wandb", train(logger="default"), r"Report: {folder}/outputs/", status=0),
    Case("unknown-task", train(task="mrcp"), r"Unknown task 'mrcp'; did you mean 'mrpc'"),
    Case("analysis-fine", analyze(analysis="disable_layers"), r"Report: {folder}/outputs/", status=0),
    Case("merge-nothing", ("analyze.py", "merge={folder}"), r"'{folder}' holds no finished disabling sweep"),
]


@parametrized(CASES)
def test_merges_and_comparisons(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(case, tmp_path)
