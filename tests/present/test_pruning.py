"""Pages of removed heads and of gates, against rows put together by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from papers.paper_runs import chosen, point, prune_search
from reporting.finished_runs import make_run

from bertsecrets.present.pruning import (
    PRESENTER,
    _steps,
    answer_in_words,
    begins_in_words,
    guarantee_in_words,
    search_in_words,
)
from bertsecrets.pruning.guarantee import search_level
from bertsecrets.pruning.rows import Chosen, Group, Pruned, Pruning
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.run import Run
from bertsecrets.results.views import Comparison, MeasureView, Replicates

SEARCH = prune_search(heads=72, examples=408)


def pruned(outcome: Chosen, **facts: object) -> Pruned:
    curve = [point(outcome.score, outcome.kept, Estimate(outcome.change, -0.02, 0.02))]
    return Pruned(replace(SEARCH, **facts), outcome, curve, [], [])


@pytest.mark.parametrize(
    ("needed", "hopeless", "expected"),
    [
        (5825, False, "; about 5,825 examples would show it with 80 % power"),
        (4_714_200, False, "so close to the margin that it would take more than 100,000 examples"),
        (None, True, "more examples would not help"),
        (None, False, "a loss above 1.9 ruled out)."),
    ],
)
def test_how_many_examples_it_would_take_in_words(needed: int | None, hopeless: bool, expected: str) -> None:
    outcome = chosen("exact", 65, change=-0.005, bound=0.0184, needed=needed, hopeless=hopeless)
    assert expected in guarantee_in_words(pruned(outcome))


@pytest.mark.parametrize(
    ("from_table", "expected"),
    [
        (False, "on 408 examples that chose neither the heads nor their order ("),
        (True, "(if the head table is of others)"),
    ],
)
def test_a_head_table_may_be_of_the_tested_examples(from_table: bool, expected: str) -> None:
    found = pruned(chosen("drift/cosine", 58, holds=True, change=0.001, bound=0.007))
    found = replace(found, points=[replace(at, from_table=from_table) for at in found.points])
    assert expected in guarantee_in_words(found)


IS_RULED_OUT = "a loss of accuracy of 1.0 point or more is ruled out"


@pytest.mark.parametrize(
    ("asked", "holds", "expected"),
    [
        (False, True, f"14 of 72 heads can be removed together, without training: {IS_RULED_OUT}"),
        (False, False, "With 14 of 72 heads removed together and no training, accuracy loses at most 1.9 points"),
        (True, True, f"With 58 of 72 heads, {IS_RULED_OUT}"),
        (True, False, "With 58 of 72 heads, accuracy loses at most 1.9 points"),
    ],
)
def test_the_title_of_the_page_is_the_outcome(asked: bool, holds: bool, expected: str) -> None:
    found = pruned(chosen("exact", 58, asked=asked, holds=holds, bound=0.007 if holds else 0.0184))
    assert answer_in_words(found) == f"{expected}."
    groups = [
        Group(0, "class", "class no", 100, 0.9, 0.91, Estimate(0.01, -0.05, 0.07)),
        Group(0, "class", "class yes", 100, 0.8, 0.7, Estimate(-0.1, -0.16, -0.04)),
    ]
    lost = "class yes loses most, 0.800 → 0.700, −10.0 points (−16.0 to −4.0)"
    assert answer_in_words(replace(found, groups=groups)) == f"{expected}; {lost}."


def test_a_loss_that_is_not_ruled_out_is_offered_as_the_next_one(tmp_path: Path) -> None:
    view = MeasureView(Run.open(make_run(tmp_path / "run")), Pruning().declaration())
    outcome = chosen("exact", 65, change=-0.005, bound=0.0184, needed=408)
    (step,) = _steps(view.run, pruned(outcome))
    assert step.settles == (
        "How many heads can be removed if a loss of 1.9 points is acceptable? (408 examples could rule out 1.0 point)"
    )
    assert step.command == f"{view.run.analyze_command} analysis=prune prune.max_loss=1.9"
    assert _steps(view.run, pruned(replace(outcome, holds=True, bound=0.007))) == []


@pytest.mark.parametrize(
    ("highs", "words"),
    [
        ((0.01, -0.01, -0.02), "The loss begins between 60 and 40 heads kept."),
        ((-0.01, -0.01, -0.02), "The score falls from the first step on, at 60 heads kept."),
        ((-0.01, 0.01, 0.02), "No loss is significant down to 20 heads kept."),
    ],
)
def test_the_title_says_where_the_loss_begins(highs: tuple[float, ...], words: str) -> None:
    curve = [point("exact", kept, Estimate(-0.03, -0.05, high)) for kept, high in zip((60, 40, 20), highs, strict=True)]
    assert begins_in_words(replace(pruned(chosen("exact", 60)), points=curve)) == words


def test_a_loss_is_in_the_unit_of_its_metric() -> None:
    metric = "pseudo_log_likelihood"
    found = pruned(chosen("exact", 65, change=-0.005, bound=0.0184), metric=metric)
    assert answer_in_words(found).endswith("loses at most 1.9 hundredths of a nat.")
    assert "of 1.0 hundredth of a nat or more is not ruled out" in guarantee_in_words(found)


def test_a_class_that_fails_alone_is_said_in_the_title() -> None:
    found = pruned(chosen("exact", 58, bound=0.007), class_margin=0.05)
    assert answer_in_words(found) == (
        "With 14 of 72 heads removed together and no training, a loss of accuracy of 1.0 point or more is ruled out, "
        "one of 5.0 points of accuracy within a class is not."
    )


def test_the_search_is_said_with_what_it_spends() -> None:
    search = replace(SEARCH, number=2, level=search_level(0.9, 2), confidence=0.9)
    assert search_in_words(search).endswith("have a joint confidence of 90 %: this one is tested at 97.78 %.")
    assert search_in_words(search).startswith("This is search 2 for a smaller model on these examples; each")
    assert "search 1 for a smaller model on these examples as far as is known;" in search_in_words(
        replace(search, number=1, counted=False)
    )
    assert search_in_words(replace(search, number=0)) == ""


def test_seeds_are_compared_by_their_mean_curves(tmp_path: Path) -> None:
    views = []
    for seed, changes in enumerate(((-0.01, -0.2), (-0.03, -0.4))):
        measured = [("checkpoint", "pruning", {"kept": np.ones((3, 4))})]
        run = Run.open(make_run(tmp_path / str(seed), seed=seed, measured=measured))
        points = [point("exact", kept, Estimate(change, -1, 1)) for kept, change in zip((6, 2), changes, strict=True)]
        outcome = chosen("exact", 6, holds=seed == 0)
        run.write_rows("pruning", "checkpoint", 0, [prune_search(heads=12), outcome, *points])
        views.append(MeasureView(run, Pruning().declaration()))
    assert dict(PRESENTER.scalars(views[0])) == {"heads_kept": 6.0}
    assert PRESENTER.curves(views[0])["pruning/heads_kept"][0] == {
        "pruning/heads_kept": 2.0,
        "pruning/change_of_accuracy/exact": pytest.approx(-20),
    }
    section = PRESENTER.comparison(Comparison({"mrpc": Replicates(views)}))
    assert section.findings[0].startswith(
        "mrpc: 6 and 0 of 12 heads can be removed in the 2 seeds with a loss of accuracy"
    )
    assert section.findings[0].endswith("on 400 examples not used for choosing them (0: none).")
    # Student's t with one degree of freedom: 12.706 times a standard error of one point.
    assert list(section.tables[0].rows) == [["mrpc", "effects of single heads", "2", "6", "−2.0", "−14.7 to 10.7"]]
    assert [len(block.figure.axes) for block in section.figures] == [1]
