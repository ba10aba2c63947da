"""The experiment of heads removed before fine-tuning: which are gone, and the score by heads kept over runs."""

import math
from collections.abc import Mapping, Sequence

from bertsecrets.grid import Column, Shown
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.style import seeds_in_words
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.pruning.columns import KEPT, kept_classes
from bertsecrets.pruning.figures import kept_scores
from bertsecrets.pruning.scores import score_label
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import low_to_high, number
from bertsecrets.results.scores import INTERVALS, RunScores, SetScores, score_interval
from bertsecrets.results.views import Comparison, MeasureView
from bertsecrets.statistics.replicates import Interval


class FirstPruned(Experiment):
    """Heads removed before fine-tuning."""

    name = "pruned_first"
    title = "Heads removed before fine-tuning"
    columns = (Column(KEPT, "kept in fine-tuning", "1: kept", (0, 1)),)
    shown = Shown(reads_task=True)

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """How many heads were kept, and which."""
        content = view.extras
        if not content or not view.has(KEPT):
            return None
        finding = (
            f"The model was fine-tuned with {content['kept']} of {content['total']} heads; {score_label(content['score'])} chose the "
            f"{content['total'] - content['kept']} that were removed before."
            if content["kept"] < content["total"]
            else f"The model was fine-tuned with all {content['total']} heads."
        )
        figure = head_panels(
            [HeadPanel(cls.columns[0].label, view.value(KEPT))],
            title=cls.title,
            unit="1: kept, 0: removed",
            note="chosen before the first step of fine-tuning",
            limits=(0, 1),
        )
        return Section(
            cls.title,
            [finding],
            ["A sweep over callbacks.prune.keep and seed shows what the removal costs, on its comparison page."],
            [],
            [FigureBlock(cls.name, figure, "The kept heads.", "Heatmap by layer and head: kept or removed.")],
        )

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """The score by heads kept: mean over seeds with its interval."""
        lines: dict[str, dict[int, Interval]] = {}
        rows = []
        seeds = []
        metric = ""
        for label, replicates in comparison.replicates.items():
            sets = [_scores_of(view) for view in replicates.views if view.extras]
            if not sets:
                continue
            first = replicates.views[0]
            content, metric = first.extras, str(first.extras["metric"])
            values = [math.nan if scores is None else scores.model.get(metric, math.nan) for scores in sets]
            interval = score_interval(metric, values, max((scores.count for scores in sets if scores), default=0))
            score = score_label(content["score"])
            name = f"{first.run.task} · {score}"
            lines.setdefault(name, {})[int(content["kept"])] = interval
            rows.append([label, score, str(content["kept"]), str(len(values)), *_cells(interval)])
            seeds.append(len(values))
        if not rows:
            return None
        section = Section(
            cls.title,
            [_in_words(name, points, metric) for name, points in lines.items() if len(points) > 1],
            [
                "Intervals are over seeds of fine-tuning and, of an accuracy or Pearson's or Spearman's correlation, over examples."
            ],
            [Table(["condition", "score", "heads kept", "seeds", metric, "95 % interval"], rows, cls.title)],
            [],
        )
        curves = {name: points for name, points in lines.items() if len(points) > 1}
        if not curves:
            return section
        figure = kept_scores(
            curves,
            title=f"{metric} by heads kept before fine-tuning",
            metric=metric,
            note=f"bars: {INTERVALS}",
        )
        block = FigureBlock(
            cls.name, figure, f"{seeds_in_words(seeds).capitalize()}.", f"Line chart: {metric} by number of heads kept."
        )
        return Section(section.title, section.findings, section.paragraphs, section.tables, [block])

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """Whether each head was kept."""
        return kept_classes(view, cls.name)

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """The number of kept heads."""
        return {"heads_kept": float(view.value(KEPT).sum())} if view.has(KEPT) else {}


def _scores_of(view: MeasureView) -> SetScores | None:
    """The run's scores on its first evaluation set; None if it has none."""
    path = view.run.scores_path
    return RunScores.read(path).sets.get(view.extras["evaluation"]) if path.is_file() else None


def _in_words(name: str, points: Mapping[int, Interval], metric: str) -> str:
    most, fewest = max(points), min(points)
    return (
        f"{name}: mean {metric} {number(points[most].mean)} with {most} heads, {number(points[fewest].mean)} with {fewest} "
        f"({points[fewest].count} seed{'s' * (points[fewest].count > 1)})."
    )


def _cells(interval: Interval) -> list[str]:
    return [number(interval.mean), low_to_high(interval.low, interval.high)]
