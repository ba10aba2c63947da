"""The printed summary of a run: scores, highlighted heads, and the report's path."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertsecrets.present.report.content import Highlights, NextStep
from bertsecrets.results.formatting import head_label, number, with_error
from bertsecrets.results.scores import Score

_PRINTED = 5


def print_lines(*lines: str) -> None:
    """Print lines without breaking them, because a path or a command on two lines could not be copied."""
    console = Console()
    for line in lines:
        # A plain string would be searched for markup, which a path may resemble.
        console.print(Text(line), soft_wrap=True)


def print_summary(
    console: Console,
    scores: Sequence[Score],
    highlights: Highlights | None,
    report_path: Path,
    *,
    findings: Sequence[str] = (),
    steps: Sequence[NextStep] = (),
) -> None:
    """Print the scores with their constant baselines, the highlighted heads, and the report's path.

    Undefined numbers show as an en dash. Errors after ± are standard errors.

    Args:
        console: Where to print.
        scores: The scores.
        highlights: The heads highlighted in the report, if any.
        report_path: The report.
        findings: Sentences to print first, such as the answer.
        steps: Next steps.
    """
    for sentence in findings:
        console.print(Text(f"{sentence}\n"))
    if scores:
        table = Table("metric", box=None, pad_edge=False)
        table.add_column("model", justify="right")
        table.add_column("majority baseline", justify="right")
        for score in scores:
            table.add_row(Text(score.name), with_error(score.value, score.stderr), number(score.baseline))
        console.print(table)
    if highlights is not None and highlights.heads:
        console.print(Text(f"\n{highlights.title} (± one standard error; layers and heads count from 0)"))
        lines = highlights.heads[:_PRINTED]
        names = [head_label(line.layer, line.head) for line in lines]
        for name, line in zip(names, lines, strict=True):
            padded = name.ljust(max(map(len, names)))
            console.print(Text(f"{padded}   {line.quantity} {with_error(line.value, line.stderr)}"))
    # A command or a path broken over two lines could not be copied or clicked.
    for step in steps:
        console.print(Text(f"\nNext: {step.settles} ({step.takes})\n  {step.command}"), soft_wrap=True)
    console.print(Text(f"\nReport: {report_path}"), soft_wrap=True)
