"""Results of the functions of :mod:`bertsecrets.api`: printing, plots, notebook display, conversion to pandas."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from bertsecrets import grid as grids
from bertsecrets.ablation.judging import judged_grids
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.rows import Spared, SparedAt
from bertsecrets.data.example import Annotation
from bertsecrets.data.task import Task
from bertsecrets.errors import UserError, choices
from bertsecrets.present.disabling import ablation_sections, curve_of, spared_in_words
from bertsecrets.present.figures.disabling import spared_curve
from bertsecrets.present.figures.grids import heatmap
from bertsecrets.present.figures.style import html_image
from bertsecrets.present.grid import highest
from bertsecrets.present.ranking import picked
from bertsecrets.present.report.content import Section
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.formatting import head_label, metric_label, number
from bertsecrets.results.run import TRAINING
from bertsecrets.results.table import HeadTable

Text = str | tuple[str, str]
"""A sentence, or a pair of sentences."""


class HeadGrid(grids.HeadGrid):
    """One number per head and column, with printing, plots, notebook display and conversion to pandas.

    Its tensors are those of :class:`bertsecrets.grid.HeadGrid`.

    >>> import torch
    >>> value_LHC = torch.tensor([[[0.1], [0.4]]])
    >>> grid = HeadGrid("toy", ("weight",), value_LHC, value_LHC * 0, torch.ones_like(value_LHC))
    >>> grid
    HeadGrid 'toy': 1 layers x 2 heads
      weight: mean 0.250, highest layer 0 · head 1, 0.400
    """

    @classmethod
    def of(cls, grid: grids.HeadGrid) -> "HeadGrid":
        """The same numbers with these methods."""
        tensors = (grid.value_LHC, grid.stderr_LHC, grid.count_LHC)
        return cls(grid.measure, grid.described, *tensors, whole_layers=grid.whole_layers)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} '{self.measure}': {self.num_layers} layers x {self.num_heads} heads"]
        for index, column in enumerate(self.described):
            value_LH = self.value_LHC[:, :, index].numpy()
            if not self.value_LHC[:, :, index].isfinite().any():
                lines.append(f"  {column.label}: no value")
                continue
            top = highest(value_LH)
            most = picked(
                top,
                value_LH,
                self.stderr_LHC[:, :, index].numpy(),
                self.count_LHC[:, :, index].numpy(),
                bounds=column.limits,
            )
            mean = number(float(self.value_LHC[:, :, index].nanmean()))
            lines.append(f"  {column.label}: mean {mean}, highest {head_label(*top)}, {most}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_image(self.plot(), f"{self.measure} by layer and head")

    def plot(self, column: str | None = None) -> Figure:
        """A heatmap by layer and head.

        Args:
            column: Name of the column; None for the first.

        Raises:
            UserError: If there is no such column.
        """
        name = self.columns[0] if column is None else column
        if name not in self.columns:
            raise UserError(f"Grid '{self.measure}' has no column '{name}'; {choices(str(name), self.columns)}.")
        index = self.columns.index(name)
        described = self.described[index]
        return heatmap(
            self.value_LHC[:, :, index].numpy(),
            title=f"{self.measure}: {described.label}",
            unit=described.unit or described.label,
            count=self.count_LHC[:, :, index].numpy(),
            stderr_LH=self.stderr_LHC[:, :, index].numpy(),
            limits=described.limits,
            whole_layers=self.whole_layers,
        )

    def to_pandas(self) -> Any:
        """The cells as a ``pandas.DataFrame``: column, layer, head, value, stderr and count."""
        identity = {"run": "", "model": "", "task": "", "init": "", "stage": TRAINING, "step": 0}
        frame = HeadTable.from_grid(self, **identity).to_pandas()  # type: ignore[arg-type]
        return frame[["measure", "column", "layer", "head", "value", "stderr", "count"]]


@dataclass(frozen=True)
class SparedHeads:
    """Number of heads that can be spared, by margin.

    Args:
        counts: Counts at the tested margin.
        curve: Counts at each margin.
        examples: Number of examples.
    """

    counts: Spared
    curve: Sequence[SparedAt]
    examples: int

    def __repr__(self) -> str:
        return spared_in_words(self.counts)

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>" + html_image(self.plot(), "heads that can be spared by margin")

    def plot(self) -> Figure:
        """Heads that can be spared by margin: tested one by one, and a simultaneous lower bound."""
        title = f"Heads that can be spared, by margin ({self.counts.mode}): {metric_label(self.counts.metric)}"
        return spared_curve(self.counts, self.curve, title=title, count=self.examples)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with ``margin`` in points, ``each`` (tested one by one) and ``at_least`` (bound)."""
        points = [(100 * point.margin, point.each, point.at_least) for point in self.curve]
        return pa.table(list(zip(*points, strict=True)), names=["margin", "each", "at_least"]).to_pandas()


class DisabledHeads:
    """Effects of disabling heads or layers with intervals and verdicts, one row per variant and metric.

    Args:
        outcomes: Logits of every variant for every example.
        rows: One row of the ablation table per metric and variant.
        beside: Further rows of findings that a run would store.
        task: The task.
    """

    def __init__(self, outcomes: Outcomes, rows: Sequence[dict[str, Any]], beside: Sequence[Any], task: Task) -> None:
        self.outcomes = outcomes
        self.task = task
        self._beside = beside
        self.rows = list(rows)
        """Score, change, interval, p-values and verdict of every variant."""
        self.grids = [HeadGrid.of(grid) for grid in judged_grids(outcomes.plan, rows)]
        """Effects of single heads, and of all heads of a layer but one, if they were disabled."""

    def __repr__(self) -> str:
        return "\n".join(self._sections()[0].findings)

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in repr(self).splitlines())
        return lines + "".join(html_image(figure, "change of score by layer and head") for figure in self.plots()[:1])

    def plots(self) -> list[Figure]:
        """The figures of a report; the heatmap comes first if single heads were disabled."""
        return [block.figure for section in self._sections() for block in section.figures]

    def _sections(self) -> list[Section]:
        return ablation_sections(AblationTable.from_rows(self.rows), self._beside)

    def plot(self) -> Figure:
        """The first of :meth:`plots`."""
        return self.plots()[0]

    def spared(self, metric: str | None = None) -> SparedHeads:
        """Number of single heads that can be spared, by margin.

        Args:
            metric: Name of the metric; None for the first.

        Raises:
            UserError: If fewer than two heads were disabled alone, or the metric was not tested.
        """
        by_metric = {row.metric: row for row in self._beside if isinstance(row, Spared)}
        if not by_metric:
            raise UserError("Fewer than two heads were disabled alone; give plans=['heads'].")
        name = next(iter(by_metric)) if metric is None else metric
        if name not in by_metric:
            raise UserError(f"Metric '{name}' was not tested; {choices(name, list(by_metric))}.")
        counts = by_metric[name]
        return SparedHeads(counts, curve_of(self._beside, counts), len(self.outcomes.label_N))

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``, with verdicts in words."""
        columns = ["metric", "mode", "kind", "variant", "layer", "head", "baseline", "score", "delta"]
        columns += ["low_simultaneous", "high_simultaneous", "low_pointwise", "high_pointwise"]
        columns += ["p_uncorrected", "p_bh", "p_needed", "p_margin", "flips", "significant", "verdict"]
        columns += ["loss_change", "loss_low_simultaneous", "loss_high_simultaneous", "p_loss_rise", "count"]
        return AblationTable.from_rows(self.rows).to_pandas()[columns]


@dataclass(frozen=True)
class DemoTexts:
    """Examples of a generated task.

    Args:
        texts: Sentences or pairs of sentences.
        labels: Class indices or scores.
        classes: Names of the classes; empty for scores.
        annotations: For each text, the annotation of each sentence, for :func:`measure`.
    """

    texts: list[Text]
    labels: list[Any]
    classes: tuple[str, ...]
    annotations: list[tuple[Annotation, ...]]

    def __len__(self) -> int:
        return len(self.texts)
