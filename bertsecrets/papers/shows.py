"""Figures and tables that any page can show, from its settings."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from bertsecrets.ablation.effects import Effects
from bertsecrets.errors import UserError, choices
from bertsecrets.papers.models import Studied
from bertsecrets.papers.names import FOLDER
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.style import sample_size, seeds_in_words
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.components import KINDS
from bertsecrets.results.formatting import MISSING, low_to_high, number
from bertsecrets.results.verdicts import BETTER, DISPENSABLE, NEEDED, WORDS
from bertsecrets.settings import configurations


@cache
def published(page: str) -> dict[str, Any]:
    """The numbers that a paper published, by name, as its page's file holds them."""
    numbers: dict[str, Any] = yaml.safe_load((FOLDER / f"{page}.yaml").read_text("utf-8"))["published"]
    return numbers


def unlike_the_paper(models: Studied, settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each measure that these runs took with other settings than the paper; none where they agree.

    Args:
        models: The models.
        settings: Measure -> its settings as the paper has them; kind of component -> ``mode`` and ``metric`` of disabling it. A
            setting that differs by task is given by task.
    """
    sentences = []
    for name, theirs in settings.items():
        measured = list(_measured_with(models, name, theirs.get("mode")))
        parts = []
        for setting, value in theirs.items():
            tasks: dict[tuple[str, str], list[str]] = {}
            for task, ours in measured:
                wanted = value.get(task) if isinstance(value, Mapping) else value
                if wanted is not None and setting in ours and ours[setting] != wanted:
                    tasks.setdefault((f"{wanted}", f"{ours[setting]}"), []).append(task)
            for (wanted, other), differing in tasks.items():
                where = "" if len(differing) == len(measured) else f" ({', '.join(dict.fromkeys(differing))})"
                parts.append(f"{setting}={other} here{where}, {wanted} in the paper")
        title = KINDS[name].title if name in KINDS else name.replace("_", " ").capitalize()
        sentences += [f"{title}: {'; '.join(parts)}."] if parts else []
    return sentences


def _measured_with(models: Studied, name: str, mode: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Task and settings of the numbers that a page shows of a measure or of a kind of component."""
    if name in KINDS:
        for group, effect in models.effects(name, mode):
            yield group.task, {"mode": effect.mode, "metric": effect.metric}
        return
    # The configurations that were read with the runs.
    chosen = {run.folder: run.config.get("measure") or {} for run in models.runs}
    before = [(task, view) for (_, task), view in models.before(name).items()]
    for task, view in [*((group.task, view) for group in models.tuned for view in group.views(name)), *before]:
        yield task, chosen[view.run.folder].get(name) or {}


def without_counterpart(theirs: Iterable[str], ours: Collection[str]) -> list[str]:
    """A sentence on what the paper has numbers of and these runs have not; none where they have all of it."""
    missing = [name for name in theirs if name not in ours]
    return [f"Of the paper, without a counterpart here: {', '.join(missing)}."] if missing else []


def _other_tasks(theirs: Collection[str], ours: Collection[str]) -> list[str]:
    """:func:`without_counterpart` of tasks.

    Raises:
        UserError: If there is no such task.
    """
    known = {*configurations("task"), *ours}
    for task in theirs:
        if task not in known:
            raise UserError(f"A page has published numbers of the unknown task '{task}'; {choices(task, known)}.")
    return without_counterpart(theirs, ours)


def heatmaps(
    models: Studied, column: str, name: str, title: str, unit: str, caption: str, limits: Sequence[float] | None = None
) -> Section | None:
    """A heatmap of a column for each group of fine-tuned models, mean over seeds.

    Args:
        models: The models.
        column: The column, ``measure/column``.
        name, title, unit, caption: Of the figure.
        limits: Ends of the colour scale; None for 0 and the largest number.
    """
    measure, _, measured = column.partition("/")
    grids = {group.title: grid for group in models.tuned if (grid := group.grids(measure, measured)) is not None}
    if not grids:
        return None
    panels = [HeadPanel(title, grid.value_RLH.mean(axis=0)) for title, grid in grids.items()]
    low, high = limits or (0.0, max(float(np.nanmax(panel.value_LH)) for panel in panels))
    seeds = seeds_in_words([len(grid.value_RLH) for grid in grids.values()])
    note = f"{seeds}, {sample_size([grid.count for grid in grids.values()])} for each"
    figure = head_panels(panels, title=title, unit=unit, note=note, limits=(float(low), float(high)))
    return Section(figures=[FigureBlock(name, figure, caption, "Heatmaps by layer and head.")])


def disabled_heads(
    models: Studied, mode: str, name: str, caption: str, scores: Mapping[str, Sequence[float]] = MappingProxyType({})
) -> Section | None:
    """Scores with one head disabled, by task; None if no run disabled every head.

    Args:
        models: The models.
        mode: The paper's mode of disabling; where no model has it, any.
        name, caption: Of the figure.
        scores: The paper's scores by task: of the whole model, and the lowest and the highest with one head disabled.
    """
    measured = models.effects("head", mode)
    if not measured:
        return None
    rows = []
    for group, effect in measured:
        score_LH = effect.baseline_R.mean() + effect.delta_RLH.mean(axis=0)
        theirs = scores.get(group.task)
        rows.append(
            [
                group.name,
                effect.what,
                f"{effect.count:,}",
                number(effect.baseline_R.mean()),
                low_to_high(np.nanmin(score_LH), np.nanmax(score_LH)),
                number(100 * float(np.nanmean(effect.delta_RLH)), 2, signed=True),
                *(
                    number(float(mask_RLH.sum() / len(mask_RLH)), int(len(mask_RLH) > 1))
                    for mask_RLH in _heads(effect).values()
                ),
                MISSING if theirs is None else f"{number(theirs[0])}: {low_to_high(theirs[1], theirs[2])}",
            ]
        )
    counterparts = _other_tasks(scores, {group.task for group, _ in measured})
    if all(row[-1] == MISSING for row in rows):
        # Rows of the paper's own tasks say more than their names would.
        counterparts = []
        for task, (whole, low, high) in scores.items():
            theirs_of_task = [f"paper: {task}", MISSING, MISSING, number(whole), low_to_high(low, high)]
            rows.append([*theirs_of_task, *[MISSING] * (len(rows[0]) - len(theirs_of_task))])
    replicated = [len(effect.delta_RLH) for _, effect in measured]
    figure = head_panels(
        [
            HeadPanel(group.title, 100 * effect.delta_RLH.mean(axis=0), effect.certain_RLH.mean(axis=0) > 0.5)
            for group, effect in measured
        ],
        title="Change of score when one head is disabled",
        unit="change of score (points)",
        note=f"{seeds_in_words(replicated, pale=True)}; {sample_size([effect.count for _, effect in measured])}",
        effects=True,
    )
    header = ["task", "metric (mode)", "examples", "score", "lowest and highest, one head disabled"]
    header += ["mean change, points", *_heads(measured[0][1]), "paper (figure)"]
    means = "; numbers of heads are means" * (max(replicated) > 1)
    rate = f"{max(effect.false_discovery_rate for _, effect in measured):.0%}".replace("%", " %")
    return Section(
        paragraphs=counterparts,
        tables=[
            filled_table(
                Table(
                    header,
                    rows,
                    f"One head disabled, {seeds_in_words(replicated)}{means}; significant: false discovery rate {rate}, "
                    "however small the change",
                )
            )
        ],
        figures=[FigureBlock(name, figure, caption, "Heatmaps of changes by layer and head.")],
    )


def _heads(effect: Effects) -> dict[str, NDArray[np.bool_]]:
    """Which heads change the score significantly, and which have each verdict that is told, by heading, ``[replicates, layers, heads]``."""
    gain_RLH = effect.certain_RLH & (effect.delta_RLH > 0)
    return {
        "heads with a significant change": effect.certain_RLH,
        WORDS[NEEDED]: effect.needed_RLH,
        WORDS[DISPENSABLE]: effect.dispensable_RLH & ~gain_RLH,
        WORDS[BETTER]: gain_RLH,
    }


def layers(
    models: Studied, columns: Mapping[str, Mapping[str, Any]], caption: str, name: str = "token"
) -> Section | None:
    """A table of means by layer, theirs beside ours.

    Args:
        models: The models.
        columns: Column, ``measure/column``, -> its ``label``, and the paper's means by task (``published``).
        caption: Of the table.
        name: Heading of the labels; they are left out where there is one column.
    """
    rows: list[list[str]] = []
    tasks: set[str] = set()
    for column, about in columns.items():
        measure, _, measured = column.partition("/")
        for group in models.tuned:
            mean_L = group.layer_means(measure, measured)
            if mean_L is not None:
                tasks.add(group.task)
                theirs = about.get("published", {}).get(group.task)
                row = [group.name, by_layer(mean_L), MISSING if theirs is None else by_layer(theirs)]
                rows.append(row if len(columns) == 1 else [str(about["label"]), *row])
    header = ["task", "mean by layer", "paper (figure)"]
    if not rows:
        return None
    return Section(
        paragraphs=_other_tasks({task: 0 for about in columns.values() for task in about.get("published", {})}, tasks),
        tables=[filled_table(Table(header if len(columns) == 1 else [name, *header], rows, caption))],
    )


def by_layer(values: Sequence[float] | NDArray[np.float64], *, signed: bool = False) -> str:
    """One number per layer for a table cell, without leading zeros: ``.90 .50 1.00``, or ``+.10 −.53`` with signs."""
    return " ".join(_short(number(float(value), 2, signed=signed)) for value in values)


def _short(text: str) -> str:
    return re.sub(r"^([+−]?)0(?=[.])", r"\1", text)


def filled_table(table: Table) -> Table:
    """A table without the columns that no row fills."""
    shown = [column for column in range(len(table.header)) if any(row[column] != MISSING for row in table.rows)]
    header, *rows = [[cells[column] for column in shown] for cells in (table.header, *table.rows)]
    return Table(header, rows, table.caption)
