import io
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bertsecrets.present.console import print_summary
from bertsecrets.present.report.content import HeadLine, Highlights, NextStep
from bertsecrets.results.scores import Score


def printed(
    scores: list[Score], heads: list[HeadLine], path: Path, width: int = 80, steps: Sequence[NextStep] = ()
) -> str:
    out = io.StringIO()
    highlights = Highlights("Heads that changed most", heads) if heads else None
    print_summary(Console(file=out, width=width), scores, highlights, path, steps=steps)
    return out.getvalue()


def test_summary_shows_scores_heads_and_path() -> None:
    text = printed(
        [Score("accuracy", 0.8631, 0.6838, 0.017), Score("pearson [r]", 0.5, math.nan)],
        [HeadLine(5, 3, "cosine", 0.4123, 0.0101), HeadLine(11, 10, "cosine", 0.5, math.nan)],
        Path("out/report.html"),
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["accuracy", "0.863", "±", "0.017", "0.684"] in rows
    assert ["pearson", "[r]", "0.500", "–"] in rows
    assert "Heads that changed most (± one standard error; layers and heads count from 0)" in text
    assert "layer 5 · head 3     cosine 0.412 ± 0.010\n" in text
    assert "layer 11 · head 10   cosine 0.500\n" in text
    assert "Report: out/report.html\n" in text


def test_only_the_first_five_heads_are_printed() -> None:
    text = printed([], [HeadLine(layer, 0, "cosine", 0.5, 0.1) for layer in range(9)], Path("r.html"))
    assert [line for line in text.splitlines() if "cosine" in line] == [
        f"layer {layer} · head 0   cosine 0.500 ± 0.100" for layer in range(5)
    ]


def test_without_highlights_there_is_no_list_of_heads() -> None:
    assert printed([], [], Path("r.html")) == "\nReport: r.html\n"


def test_paths_and_commands_are_not_broken_and_can_be_copied() -> None:
    path = Path("/very") / ("long" * 40) / "report.html"
    step = NextStep("How many can be removed together?", f"analyze checkpoint={'run' * 40} analysis=prune", "2 min")
    text = printed([], [], path, width=40, steps=[step])
    assert f"Report: {path}\n" in text
    assert f"Next: How many can be removed together? (2 min)\n  {step.command}\n" in text
