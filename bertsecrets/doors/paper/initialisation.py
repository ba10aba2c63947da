"""Section 3 and table 1: pre-trained against random weights, both fine-tuned."""

import math

import numpy as np

from bertsecrets.comparison import published
from bertsecrets.comparison.conditions import Condition
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material
from bertsecrets.results.figures.replicates import ScoreRow, score_rows
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.statistics.replicates import mean_interval

_CONSTANT_IN_THE_PAPER = ("mrpc", "qqp", "rte")


def section(material: Material) -> Section | None:
    """Table 1, per task, with the published one beside it; None without labelled runs."""
    rows, drawn = [], []
    above, constant_like, compared, of_the_three, undefined = [], [], [], [], []
    for condition in material.trained:
        name = material.name(condition)
        other = next((each for each in material.untrained if material.name(each) == name), None)
        for place, metric in enumerate(_first_set(condition)["constant"]):
            ours, theirs = _scores(condition, metric), [] if other is None else _scores(other, metric)
            constant = _first_set(condition)["constant"][metric]
            rows.append(
                [
                    name,
                    metric,
                    _shown(ours),
                    _shown(theirs),
                    _percent(constant),
                    _published(material, condition, metric),
                ]
            )
            if place == 0:
                drawn.append(_drawn(f"{name} · pre-trained", ours, constant))
                if theirs:
                    drawn.append(_drawn(f"{name} · random weights", theirs, constant))
                if theirs and not np.isfinite([*ours, *theirs]).all():
                    undefined.append(name)
                elif theirs:
                    compared.append(name)
                    above += [name] if np.mean(ours) > np.mean(theirs) else []
                    floor = 0.0 if constant is None else float(constant)
                    of_the_three += [name] if condition.task in _CONSTANT_IN_THE_PAPER else []
                    constant_like += [name] if np.mean(theirs) <= floor + 0.01 else []
    if not rows:
        return None
    claims = []
    if compared or undefined:
        left_out = f" Left out, for the score of some seed is undefined: {', '.join(undefined)}." if undefined else ""
        claims = [
            Claim(
                "Fine-tuned pre-trained weights beat fine-tuned random weights on every task.",
                f"{f'The mean score is higher {held(above, compared)}.' if compared else ''}{left_out}".strip(),
                len(above) == len(compared) if compared else None,
            ),
            Claim(
                "Random weights learn nothing of MRPC, QQP and RTE: they end as the constant answer (our reading of table 1).",
                f"{f'Within a point of a constant answer, or below it, {held(constant_like, compared)}.' if compared else ''}"
                f"{left_out}".strip(),
                all(name in constant_like for name in of_the_three) if of_the_three else None,
            ),
        ]
    material.claims += claims
    figure = score_rows(drawn, title="Scores by initialisation", note="intervals: Student's t at 95 % over seeds")
    material.figures["paper_table1"] = figure
    header = ["task", "metric", "pre-trained, fine-tuned", "random, fine-tuned", "constant answer", "paper"]
    return Section(
        "Section 3, table 1: does pre-training matter?",
        [
            "Scores in percent, mean over seeds with half of a 95 % interval. The paper's column has three models: pre-trained "
            "and fine-tuned, random and fine-tuned, and pre-trained without fine-tuning, whose classifier has learned "
            "nothing; it gives one run each and no intervals."
        ],
        [Table(header, rows, "Table 1"), *([claims_table(claims)] if claims else [])],
        [FigureBlock(figure, "Every seed's score, by task and initialisation.", "Dot chart of scores.")],
    )


def _first_set(condition: Condition) -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = next(iter(condition.runs[0].scores["sets"].values()))
    return found


def _scores(condition: Condition, metric: str) -> list[float]:
    values = [next(iter(run.scores["sets"].values()))["model"][metric] for run in condition.runs]
    return [math.nan if value is None else float(value) for value in values]


def _drawn(label: str, values: list[float], constant: float | None) -> ScoreRow:
    found = mean_interval(values)
    return ScoreRow(label, values, found.low, found.high, math.nan if constant is None else constant)


def _shown(values: list[float]) -> str:
    found = mean_interval(values)
    if not found.count:
        return "–"
    reach = f" ± {100 * (found.high - found.mean):.1f}" if found.count > 1 else ""
    return f"{100 * found.mean:.1f}{reach}"


def _percent(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f}"


def _published(material: Material, condition: Condition, metric: str) -> str:
    known = (material.published(condition, published.SCORES) or {}).get(metric)
    return "–" if known is None else " / ".join(f"{value:.1f}" for value in reversed(known))
