"""Pages of the reference that are made from the code and its configurations when the site is built."""

from pathlib import Path

from bertsecrets.__main__ import COMMANDS
from bertsecrets.cli.help import first_sentence, help_text
from bertsecrets.measures.shipped import shipped_measure, shipped_names
from bertsecrets.settings import CONF

_SHOWN = 12
"""Columns of a measure that are listed; further ones repeat them for other words or classes."""
_ELSEWHERE = ("statement", "page", "experiment")
"""Groups whose files are described on pages of their own."""


def commands() -> str:
    """What ``--help`` of every command prints."""
    helps = {name: help_text(name) for name in COMMANDS if name != "resume"}
    return "# Commands\n\n" + "\n\n".join(f"## {name}\n\n```text\n{text}\n```" for name, text in helps.items()) + "\n"


def settings() -> str:
    """Every configuration with its comments, group by group."""
    parts = ["# Settings\n\nA key of a group is written `<group>.<key>=<value>`. `<group>=<file>` chooses a file."]
    for folder in sorted(path for path in CONF.iterdir() if path.is_dir() and path.name not in _ELSEWHERE):
        parts.append(f"## {folder.name}")
        for path in sorted(folder.glob("*.yaml")):
            parts.append(
                f"### {folder.name}={path.stem}\n\n{first_sentence(path)}\n\n```yaml\n{path.read_text('utf-8')}```"
            )
    return "\n\n".join(parts) + "\n"


def columns() -> str:
    """Every measure with the columns that it writes into the head table."""
    parts = [
        "# Columns of the measures\n\nIn `heads.parquet` a row has a `measure` and a `column`; layers and heads count "
        "from 0."
    ]
    for name in shipped_names():
        measure = shipped_measure(name)(2, 2)
        rows = [
            f"| `{one.name}` | {one.label} | {one.unit.replace('|', chr(92) + '|')} |"
            for one in measure.columns[:_SHOWN]
        ]
        more = len(measure.columns) - len(rows)
        rest = f"\n\nAnd {more} more of the same kind." if more > 0 else ""
        parts.append(
            f"## {name}\n\n{measure.title}.\n\n| column | meaning | unit |\n|---|---|---|\n" + "\n".join(rows) + rest
        )
    return "\n\n".join(parts) + "\n"


def write(folder: Path) -> None:
    """Write the pages into the folder of the documentation."""
    for page in (commands, settings, columns):
        (folder / f"generated_{page.__name__}.md").write_text(page(), "utf-8")
