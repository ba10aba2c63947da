"""What merged screened sweeps may have missed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.rows import ABLATION, Screened
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.cli.merge import Part, screening_of
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError
from bertsecrets.keys import ReportSettings
from bertsecrets.results.run import Run

TASK = Task(name="toy", metrics=("accuracy",), texts=1, labels=("a", "b"))
EXAMPLES = 500


def outcomes(layers: list[int]) -> Outcomes:
    """Of heads of which no pair was evaluated."""
    plan = Plan("uniform", 2, 2, tuple(every_head(2, 2, layers)))
    logits_NVC = torch.zeros(EXAMPLES, len(plan.variants), 2)
    zero_N = torch.zeros(EXAMPLES)
    return Outcomes(plan, zero_N.long(), zero_N, torch.zeros(EXAMPLES, 2), logits_NVC, logits_NVC[..., 0], logits_NVC)


SCREENED = Screened("uniform", 1000, 30, inactive=970, audited=97, missed=0, whole=0, bound=30, each=30)


def part(folder: Path, layer: int, record: Screened | None) -> Part:
    run = Run(folder, "run", "model", "toy", "pretrained")
    run.write_rows(ABLATION, "checkpoint", 1, [] if record is None else [record])
    return Part(run, {}, TASK, AblationSettings(), 1, "code", ReportSettings(), outcomes([layer]), [])


def test_the_bound_is_one_over_all_parts(tmp_path: Path) -> None:
    merged = screening_of(
        [part(tmp_path / "a", 0, SCREENED), part(tmp_path / "b", 1, replace(SCREENED, missed=1))], outcomes([0, 1])
    )
    assert (merged.pairs, merged.evaluated, merged.missed) == (2000, 60, 1)
    # With n changes outside of an audit of 10 %, at most one of n + 2 in it: the first n that is so in less than 5 %.
    chance = next(n for n in range(1000) if 0.9 ** (n + 2) + (n + 2) * 0.1 * 0.9 ** (n + 1) <= 0.05)
    assert merged.bound == chance
    # Nothing was audited: every prediction of a head may have changed.
    assert merged.each == EXAMPLES


def test_a_screened_part_without_a_record_is_refused(tmp_path: Path) -> None:
    parts = [part(tmp_path / "a", 0, SCREENED), part(tmp_path / "b", 1, None)]
    with pytest.raises(UserError, match=r"'.*/b' was screened, but its folder findings"):
        screening_of(parts, outcomes([0, 1]))
