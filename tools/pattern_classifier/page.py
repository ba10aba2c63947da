"""The page of a pattern classifier: scores on held-out maps, confusion, calibration, and the worst mistakes."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.present.figures.grids import draw_grid, write_in_cells
from bertsecrets.present.figures.style import colour_bar, footnote, house_style, new_figure, save_figure
from bertsecrets.present.report.content import FigureBlock, Report, Section, Table
from bertsecrets.present.report.page import write_report
from tools.map_sheets import map_sheet
from tools.pattern_classifier.annotated_maps import AnnotatedMaps
from tools.pattern_classifier.crossvalidation import HeldOutAnswers, Scheme
from tools.pattern_classifier.evaluation import Evaluation, RulesComparison
from tools.pattern_classifier.reliability_figure import reliability_diagram
from tools.pattern_classifier.scoring import confusion, reliability

PAGE = "classifier.html"
HELD_OUT: dict[Scheme, str] = {
    "head": "heads held out",
    "task": "tasks held out",
    "head_and_task": "heads and tasks held out",
    "model": "models held out",
}

_CAPTIONS = {
    "confusion": "The network: number of maps by the annotators' pattern (rows) and the network's (columns).",
    "confusion_rules": "The rules, tuned on the same maps.",
    "reliability": "Share of right answers by probability, and number of maps in each bin.",
    "mistakes": "The mistakes of which the network was surest.",
}


def write_classifier_page(
    folder: Path,
    annotated: AnnotatedMaps,
    answers: dict[Scheme, HeldOutAnswers],
    evaluation: Evaluation,
    mistakes: int,
) -> None:
    """Write ``classifier.html`` and its figures.

    Args:
        folder: Folder of the classifier.
        annotated: The annotated maps.
        answers: The answers of each scheme.
        evaluation: Their scores.
        mistakes: Number of mistakes to show.
    """
    figures = _figures(annotated, answers["head"], evaluation, mistakes)
    for name, figure in figures.items():
        save_figure(figure, folder / "figures" / f"{name}.png")
    findings = [
        f"On {name} maps of held-out heads, the classifier's macro-F1 is {part.macro_f1}."
        for name in ("all", "clear")
        if (part := _part(evaluation, "head", name)) is not None
    ]
    blocks = [FigureBlock(name, figure, _CAPTIONS[name], _CAPTIONS[name]) for name, figure in figures.items()]
    report = Report(
        title="A classifier of attention patterns",
        facts=[("annotated maps", str(evaluation.maps)), ("heads", str(evaluation.heads))],
        sections=[Section("Held-out maps", findings, tables=_tables(evaluation), figures=blocks)],
    )
    write_report(folder / PAGE, report)


def _figures(
    annotated: AnnotatedMaps, answers: HeldOutAnswers, evaluation: Evaluation, mistakes: int
) -> dict[str, Figure]:
    label_N = annotated.pattern_N
    labels = [name.replace("_", " +\n") for name in PATTERNS]
    note = f"n = {len(label_N)} maps of {evaluation.heads} heads and {len(evaluation.tasks)} tasks"

    def confusion_table(classifier: str, predicted_N: NDArray[np.int64]) -> Figure:
        """A square table of counts, shaded by their share of their row."""
        counts_CC = confusion(label_N, predicted_N).astype(int)
        share_CC = counts_CC / np.maximum(counts_CC.sum(1, keepdims=True), 1)
        with house_style():
            size = 0.62 * len(labels) + 2.6, 0.5 * len(labels) + 2.2
            figure = new_figure(*size, f"Confusion of the {classifier}, heads held out")
            axes = figure.add_subplot()
            mesh = draw_grid(
                axes, share_CC, Normalize(0, 1), "Blues", coloured_RC=counts_CC > 0, rows=labels, columns=labels
            )
            write_in_cells(axes, mesh, {cell: f"{value:.0f}" for cell, value in np.ndenumerate(counts_CC)})
            axes.set_xticks(axes.get_xticks(), labels, rotation=40, ha="right", rotation_mode="anchor")
            axes.set_xlabel(classifier)
            axes.set_ylabel("annotators")
            colour_bar(figure, mesh, axes, "share of the row's maps")
            footnote(figure, note)
        return figure

    uncalibrated_NP = torch.from_numpy(answers.logit_NP).softmax(-1).numpy()
    return {
        "confusion": confusion_table("network", answers.probability_NP.argmax(1)),
        "confusion_rules": confusion_table("rules", answers.rules_N),
        "reliability": reliability_diagram(
            {
                "as trained": reliability(uncalibrated_NP, label_N),
                "calibrated": reliability(answers.probability_NP, label_N),
            },
            title="Calibration of the probabilities, heads held out",
            note=f"{note}; ten bins; bars: 95% Wilson intervals",
        ),
        "mistakes": _mistakes(annotated, answers, mistakes),
    }


def _tables(evaluation: Evaluation) -> list[Table]:
    rows = [
        [
            f"{name}, {HELD_OUT[scheme]}",
            f"{part.maps:,}",
            str(part.macro_f1),
            str(part.macro_f1_rules),
            str(part.macro_f1_difference),
        ]
        for name in ("all", "clear")
        for scheme in evaluation.held_out
        if (part := _part(evaluation, scheme, name)) is not None
    ]
    tables = [
        Table(
            ["maps", "number", "macro-F1 of the network", "of the rules", "difference"],
            rows,
            "95% intervals by a bootstrap over heads; clear maps are those with at least four of five labels equal",
        ),
    ]
    unmet = evaluation.held_out.get("model")
    if unmet is not None:
        tables.append(
            Table(
                ["model held out", "maps", "macro-F1", "clear maps", "macro-F1 on the clear maps"],
                [
                    [model, f"{part.maps:,}", str(part.macro_f1), *_number_and_score(unmet.models_clear.get(model))]
                    for model, part in unmet.models.items()
                ],
                "A network trained without any map of the model, as on a model that it has not met; 95% intervals by a "
                "bootstrap over heads, over patterns with at least ten maps",
            )
        )
    if evaluation.passes:
        tables.append(
            Table(
                ["pass", "maps", "annotators", "network, heads held out", "network, tasks held out"],
                [
                    [
                        number,
                        f"{scores.maps:,}",
                        *(f"{f1:.3f}" for f1 in (scores.annotators, scores.network["head"], scores.network["task"])),
                    ]
                    for number, scores in evaluation.passes.items()
                ],
                "Macro-F1 against the pattern that the other passes name most often, on maps where they are not tied",
            )
        )
    return tables


def _number_and_score(part: RulesComparison | None) -> tuple[str, str]:
    return ("0", "–") if part is None else (f"{part.maps:,}", str(part.macro_f1))


def _part(evaluation: Evaluation, scheme: Scheme, name: str) -> RulesComparison | None:
    """Scores on all maps or on a part of them; None for an empty part."""
    scores = evaluation.held_out[scheme]
    return scores.all if name == "all" else scores.parts.get(name)


def _mistakes(annotated: AnnotatedMaps, answers: HeldOutAnswers, count: int) -> Figure:
    """The wrongly classified maps with the lowest probability of the annotators' pattern."""
    true_N = answers.probability_NP[np.arange(len(annotated.rows)), annotated.pattern_N]
    predicted_N = answers.probability_NP.argmax(1)
    wrong = [index for index in true_N.argsort(kind="stable") if predicted_N[index] != annotated.pattern_N[index]]
    maps = []
    for index in wrong[:count]:
        row, best = annotated.rows[index], predicted_N[index]
        lines = [
            PATTERNS[annotated.pattern_N[index]],
            f"→ {PATTERNS[best]} {answers.probability_NP[index, best]:.2f}",
            row.task,
            row.model,
            f"{row.layer}·{row.head}, L {row.length}, {row.stage}",
        ]
        maps.append(("\n".join(lines).replace("vertical_diagonal", "vert.+diag."), annotated.maps[index]))
    return map_sheet(
        maps,
        title=f"The {len(maps)} worst mistakes, heads held out",
        note="first line: annotators; second: network, with its probability; then task, model, layer · head (from 0), "
        "tokens L, "
        "before (initial) or after fine-tuning (checkpoint); from dark violet (0) to yellow (the map's largest weight)",
    )
