"""Section 4.6, figures 8 and 9: disabling heads and layers."""

import numpy as np
from numpy.typing import NDArray

from bertsecrets.papers.chapter import (
    Answers,
    Chapter,
    Claim,
    PaperRuns,
    beside_the_paper,
    claims_tables,
    not_learned,
    published_for,
    without_unlearned,
)
from bertsecrets.papers.kovaleva2019 import published
from bertsecrets.results.figures.panels import HeadPanel, LayerPanel, head_panels, layer_panels
from bertsecrets.results.figures.style import sample_size, seeds_in_words
from bertsecrets.results.formatting import MISSING, number
from bertsecrets.results.report.content import FigureBlock, Section
from bertsecrets.results.scores import LEVEL
from bertsecrets.statistics.student import mean_differs_from_zero


def disabled_heads(runs: PaperRuns) -> Chapter | None:
    """Scores with one head disabled, per task; None if no run disabled heads."""
    by_name = runs.effects("head")
    if not by_name:
        return None
    rows = []
    helpful, on_average = Answers(), Answers()
    for name, (condition, effect) in by_name.items():
        delta_LH = effect.delta_RLH.mean(axis=0)
        score_LH = effect.baseline_R.mean() + delta_LH
        gain_RLH = effect.certain_RLH & (effect.delta_RLH > 0)
        # The best of many noisy numbers is above 0 in any sample: only a significant gain says something.
        helpful[name] = True if (gain_RLH.mean(axis=0) > 0.5).any() else None
        on_average[name] = _raised(np.nanmean(effect.delta_RLH, axis=(1, 2)), tests=len(by_name))
        theirs = published_for(condition, published.HEADS)
        rows.append(
            [
                name,
                effect.what,
                f"{effect.count:,}",
                number(effect.baseline_R.mean()),
                f"{number(np.nanmin(score_LH))} to {number(np.nanmax(score_LH))}",
                number(100 * float(np.nanmean(delta_LH)), 2, signed=True),
                MISSING if theirs is None else f"{number(theirs[0])}: {number(theirs[1])} to {number(theirs[2])}",
            ]
        )
    seeds = seeds_in_words([len(effect.delta_RLH) for _, effect in by_name.values()])
    conditions = [condition for condition, _ in by_name.values()]
    helpful, on_average = (without_unlearned(runs, conditions, answers) for answers in (helpful, on_average))
    claims = [
        Claim(
            "On every task, disabling some head raises the score.",
            f"The best of many heads raises the score in any sample; a gain that is significant in most seeds exists: {helpful}.",
            helpful.everywhere,
        ),
        Claim(
            "On some tasks (MRPC, RTE) disabling a random head helps on average.",
            f"The mean change over all heads is above 0 (t test over seeds, corrected over tasks): {on_average}.",
            False if on_average and set(on_average.values()) == {False} else on_average.anywhere,
        ),
    ]
    figure = head_panels(
        [
            HeadPanel(runs.title(condition), 100 * effect.delta_RLH.mean(axis=0))
            for condition, effect in by_name.values()
        ],
        title="Change of score when one head is disabled",
        unit="change of score (points)",
        note=f"{seeds}; {sample_size([effect.count for _, effect in by_name.values()])}; colours show chance as well",
        effects=True,
    )
    header = [
        "task",
        "metric (mode)",
        "examples",
        "score",
        "lowest and highest, one head disabled",
        "mean change, points",
        "paper (figure)",
    ]
    section = Section(
        "Section 4.6, figure 8: what happens when a head is disabled?",
        paragraphs=not_learned(runs, conditions),
        tables=[
            *claims_tables(claims),
            beside_the_paper(header, rows, f"Scores with one head disabled, {seeds}"),
        ],
        figures=[FigureBlock("paper_figure8", figure, "Figure 8, by task.", "Heatmaps of changes by layer and head.")],
    )
    return Chapter(section, claims)


def disabled_layers(runs: PaperRuns) -> Chapter | None:
    """Scores with one layer disabled, per task; None if no run disabled layers."""
    by_name = runs.effects("layer")
    if not by_name:
        return None
    rows = []
    helpful = Answers()
    for name, (condition, effect) in by_name.items():
        delta_L = effect.delta_RLH[:, :, 0].mean(axis=0)
        gain_RL = effect.certain_RLH[:, :, 0] & (effect.delta_RLH[:, :, 0] > 0)
        helpful[name] = True if (gain_RL.mean(axis=0) > 0.5).any() else None
        theirs_L = published_for(condition, published.LAYERS)
        whole = published_for(condition, published.HEADS)
        rows.append(
            [
                name,
                f"{effect.count:,}",
                number(effect.baseline_R.mean()),
                _points(delta_L),
                MISSING if theirs_L is None or whole is None else _points(np.array(theirs_L) - whole[0]),
            ]
        )
    conditions = [condition for condition, _ in by_name.values()]
    helpful = without_unlearned(runs, conditions, helpful)
    claims = [
        Claim(
            "Disabling a whole layer can raise the score (the paper's RTE, layer 0: +3.2 points, 9 of 277 examples).",
            f"A layer whose gain is significant in most seeds exists: {helpful}.",
            helpful.anywhere,
        )
    ]
    figure = layer_panels(
        [
            LayerPanel(
                runs.title(condition), 100 * effect.delta_RLH[:, :, 0], effect.certain_RLH[:, :, 0].mean(axis=0) > 0.5
            )
            for condition, effect in by_name.values()
        ],
        title="Change of score when a whole layer is disabled",
        unit="change of score (points)",
        note="dots: seeds; bars: their mean, pale where significant in at most half of them",
    )
    header = ["task", "examples", "score", "change by layer, points", "paper (figure)"]
    section = Section(
        "Section 4.6, figure 9: what happens when a layer is disabled?",
        paragraphs=not_learned(runs, conditions),
        tables=[
            *claims_tables(claims),
            beside_the_paper(header, rows, "Change of score by disabled layer, from layer 0"),
        ],
        figures=[FigureBlock("paper_figure9", figure, "Figure 9, by task.", "Bar charts of changes by layer.")],
    )
    return Chapter(section, claims)


def _raised(mean_R: NDArray[np.float64], tests: int) -> bool | None:
    """Whether a mean over seeds is above 0; None with one seed or without significance, corrected over the tests."""
    if len(mean_R) < 2 or not np.isfinite(mean_R).all():
        return None
    spread = float(mean_R.std(ddof=1) / np.sqrt(len(mean_R)))
    p = float(mean_differs_from_zero(mean_R.mean(), spread, len(mean_R)))
    return bool(mean_R.mean() > 0) if p * tests <= LEVEL and mean_R.mean() != 0 else None


def _points(delta_L: NDArray[np.float64]) -> str:
    return " ".join(number(100 * float(delta), 1, signed=True) for delta in delta_L)
