"""The page of a pattern classifier: scores on held-out maps, what is taken for what, calibration, worst mistakes."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.crossvalidation import SCHEMES, AnnotatedMaps, HeldOut, Scheme
from bertsecrets.patterns.scoring import Estimate, confusion, reliability
from bertsecrets.results.figures.classifier import Curve, TitledMap, map_sheet, reliability_diagram
from bertsecrets.results.figures.patterns import count_table
from bertsecrets.results.figures.saving import save_figure
from bertsecrets.results.report.content import FigureBlock, Report, Section, Table
from bertsecrets.results.report.page import write_report

PAGE = "classifier.html"
HELD_OUT: dict[Scheme, str] = {
    "head": "heads held out",
    "task": "tasks held out",
    "head_and_task": "heads and tasks held out",
}


def write_classifier_page(
    folder: Path,
    annotated: AnnotatedMaps,
    answers: dict[Scheme, HeldOut],
    evaluation: dict[str, Any],
    mistakes: int,
) -> None:
    """Writes ``classifier.html`` and the figures.

    Args:
        folder: Of the classifier.
        annotated: The maps.
        answers: What was said of them while they were held out.
        evaluation: What ``evaluation.json`` says.
        mistakes: How many of the worst are shown.
    """
    label_N, answer = annotated.pattern_N, answers["head"]
    labels = [name.replace("_", " +\n") for name in PATTERNS]
    note = f"n = {len(label_N)} maps of {evaluation['heads']} heads and {len(evaluation['tasks'])} tasks"
    said = {
        "confusion": ("network", "takes", answer.probability_NP.argmax(1)),
        "confusion_rules": ("rules", "take", answer.rules_N),
    }
    figures = {
        key: count_table(
            confusion(label_N, found_N).astype(int),
            labels,
            title=f"What the {who} {take} maps for, heads held out",
            rows="annotators",
            columns=who,
            note=note,
            unit="share of the row's maps",
        )
        for key, (who, take, found_N) in said.items()
    }
    figures |= {
        "reliability": reliability_diagram(
            [
                _curve("as trained", torch.from_numpy(answer.logit_NP).softmax(-1).numpy(), label_N),
                _curve("calibrated", answer.probability_NP, label_N),
            ],
            title="Do the probabilities hold? Heads held out",
            note=f"{note}; ten bins; bars: 95% Wilson intervals",
        ),
        "mistakes": _mistakes(annotated, answer, mistakes),
    }
    captions = {
        "confusion": "The network: number of maps by the annotators' pattern (rows) and the network's (columns).",
        "confusion_rules": "The rules, tuned on the same maps.",
        "reliability": "Share of right choices against probability, and how many maps each bin holds.",
        "mistakes": "The mistakes of which the network was surest.",
    }
    for name, figure in figures.items():
        save_figure(figure, folder / "figures" / f"{name}.png")
    keys = ("macro_f1", "macro_f1_rules", "macro_f1_difference")
    parts = [
        (f"{name}, {HELD_OUT[scheme]}", part)
        for name in ("all", "clear")
        for scheme in SCHEMES
        if (part := _part(evaluation, scheme, name)) is not None
    ]
    rows = [[name, f"{part['maps']:,}", *(interval(part[key]) for key in keys)] for name, part in parts]
    tables = [
        Table(
            ["maps", "number", "macro-F1 of the network", "of the rules", "difference"],
            rows,
            "95% intervals by a bootstrap over heads; clear are maps of whose labels four of five are equal, or more",
        ),
    ]
    if evaluation["passes"]:
        tables.append(
            Table(
                ["pass", "maps", "annotators", "network, heads held out", "network, tasks held out"],
                [
                    [number, f"{each['maps']:,}", *(f"{score:.3f}" for score in _against_others(each))]
                    for number, each in evaluation["passes"].items()
                ],
                "Macro-F1 against the pattern that the other passes name most often, on the maps on which these are not tied",
            )
        )
    blocks = [FigureBlock(figure, captions[name], captions[name]) for name, figure in figures.items()]
    lead = [
        f"On {name} maps of heads that it has not seen, the classifier's macro-F1 is {interval(part['macro_f1'])}."
        for name in ("all", "clear")
        if (part := _part(evaluation, "head", name)) is not None
    ]
    report = Report(
        title="A classifier of attention patterns",
        facts=[("annotated maps", str(len(label_N))), ("heads", str(evaluation["heads"]))],
        lead=lead,
        sections=[Section("Held-out maps", tables=tables, figures=blocks)],
    )
    write_report(folder / PAGE, report)


def _part(evaluation: dict[str, Any], scheme: Scheme, name: str) -> dict[str, Any] | None:
    """What is said of all maps, or of a part of them if there are any."""
    scores: dict[str, Any] = evaluation["held_out"][scheme]
    return scores if name == "all" else scores.get(name)


def _against_others(scores: dict[str, Any]) -> tuple[float, float, float]:
    return scores["annotators"], scores["network"]["head"], scores["network"]["task"]


def _curve(name: str, probability_NP: NDArray[np.float64], label_N: NDArray[np.int64]) -> Curve:
    bins = reliability(probability_NP, label_N)
    return Curve(name, [b.confidence for b in bins], [b.accuracy for b in bins], [b.count for b in bins])


def _mistakes(annotated: AnnotatedMaps, answer: HeldOut, count: int) -> Figure:
    """The maps whose own pattern got the lowest probability."""
    own_N = answer.probability_NP[np.arange(len(annotated.rows)), annotated.pattern_N]
    found_N = answer.probability_NP.argmax(1)
    wrong = [place for place in own_N.argsort(kind="stable") if found_N[place] != annotated.pattern_N[place]][:count]
    maps = []
    for place in wrong:
        row, best = annotated.rows[place], found_N[place]
        names = [PATTERNS[annotated.pattern_N[place]], f"→ {PATTERNS[best]} {answer.probability_NP[place, best]:.2f}"]
        where = f"{row.task}\n{row.model}\n{row.layer}·{row.head}, L {row.length}, {row.stage}"
        maps.append(
            TitledMap("\n".join([*names, where]).replace("vertical_diagonal", "vert.+diag."), annotated.maps[place])
        )
    return map_sheet(
        maps,
        title=f"The {len(maps)} worst mistakes, heads held out",
        note="first line: annotators; second: network, with its probability; then task, model, layer · head (from 0), tokens L, "
        "before (initial) or after fine-tuning (checkpoint); from dark violet (0) to yellow (the map's largest weight)",
    )


def interval(estimate: Estimate | dict[str, float]) -> str:
    """A value with its interval."""
    values = asdict(estimate) if isinstance(estimate, Estimate) else estimate
    return f"{values['value']:.3f} [{values['low']:.3f}, {values['high']:.3f}]"
