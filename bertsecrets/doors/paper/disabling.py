"""Section 4.6, figures 8 and 9: disabling heads and layers."""

import numpy as np

from bertsecrets.comparison import published
from bertsecrets.comparison.effects import Effects, effects
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material
from bertsecrets.results.figures.panels import HeadPanel, LayerPanel, head_panels, layer_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table


def heads_section(material: Material) -> Section | None:
    """Scores with one head disabled, per task; None where no run disabled heads."""
    found = {material.name(each): (each, result) for each in material.trained if (result := effects(each, "head"))}
    if not found:
        return None
    rows, helpful, proven, on_average = [], [], [], []
    for name, (condition, each) in found.items():
        delta_LH = each.delta_RLH.mean(axis=0)
        score_LH = each.baseline_R.mean() + delta_LH
        helpful += [name] if np.nanmax(delta_LH) > 0 else []
        proven += [name] if ((each.certain_RLH & (each.delta_RLH > 0)).mean(axis=0) > 0.5).any() else []
        on_average += [name] if np.nanmean(delta_LH) > 0 else []
        theirs = material.published(condition, published.HEADS)
        rows.append(
            [
                name,
                each.what,
                f"{each.count:,}",
                f"{each.baseline_R.mean():.3f}",
                f"{np.nanmin(score_LH):.3f} to {np.nanmax(score_LH):.3f}",
                f"{100 * np.nanmean(delta_LH):+.2f}",
                "–" if theirs is None else f"{theirs[0]:.3f}: {theirs[1]:.3f} to {theirs[2]:.3f}",
            ]
        )
    names = list(found)
    claims = [
        Claim(
            "On every task the score rises when some one head is disabled.",
            f"The best head's mean change is above 0 {held(helpful, names)}; as the best of many heads it may be chance, "
            f"and a gain that is significant in most seeds is there {held(proven, names)}.",
            len(helpful) == len(names),
        ),
        Claim(
            "On some tasks (MRPC, RTE) disabling a random head helps on average.",
            f"The mean change over all heads is above 0 {held(on_average, names)}.",
            bool(on_average),
        ),
    ]
    material.claims += claims
    figure = head_panels(
        [HeadPanel(name, 100 * each.delta_RLH.mean(axis=0)) for name, (_, each) in found.items()],
        title="Change of score when one head is disabled",
        unit="change of score (points)",
        note=f"mean over seeds; {sample_size([each.count for _, each in found.values()])}; colours show chance as well",
        signed=True,
    )
    material.figures["paper_figure8"] = figure
    header = [
        "task",
        "metric (mode)",
        "examples",
        "score",
        "lowest and highest, one head disabled",
        "mean change, points",
        "in their figure",
    ]
    return Section(
        "Section 4.6, figure 8: what happens when a head is disabled?",
        [],
        [claims_table(claims), Table(header, rows, "Scores with one head disabled, mean over seeds")],
        [FigureBlock(figure, "Figure 8, by task.", "Heatmaps of changes by layer and head.")],
    )


def layers_section(material: Material) -> Section | None:
    """Scores with one layer disabled, per task; None where no run disabled layers."""
    found = {material.name(each): (each, result) for each in material.trained if (result := effects(each, "layer"))}
    if not found:
        return None
    rows, helpful = [], []
    for name, (condition, each) in found.items():
        delta_L = each.delta_RLH[:, :, 0].mean(axis=0)
        helpful += [name] if np.nanmax(delta_L) > 0 else []
        theirs = material.published(condition, published.LAYERS)
        whole = material.published(condition, published.HEADS)
        rows.append(
            [
                name,
                f"{each.count:,}",
                f"{each.baseline_R.mean():.3f}",
                " ".join(f"{100 * value:+.1f}" for value in delta_L),
                "–"
                if theirs is None or whole is None
                else " ".join(f"{100 * (value - whole[0]):+.1f}" for value in theirs),
            ]
        )
    names = list(found)
    claims = [
        Claim(
            "Disabling a whole layer can raise the score (RTE, layer 0 here: +3.2 points, 9 of 277 examples).",
            f"Some layer's mean change is above 0 {held(helpful, names)}.",
            bool(helpful),
        )
    ]
    material.claims += claims
    figure = layer_panels(
        [LayerPanel(name, 100 * each.delta_RLH[:, :, 0], _mostly(each)) for name, (_, each) in found.items()],
        title="Change of score when a whole layer is disabled",
        unit="change of score (points)",
        note="dots: seeds; bars: their mean, pale where significant in at most half of them",
    )
    material.figures["paper_figure9"] = figure
    header = ["task", "examples", "score", "change by layer here, points", "in their figure"]
    return Section(
        "Section 4.6, figure 9: what happens when a layer is disabled?",
        [],
        [claims_table(claims), Table(header, rows, "Change of score by disabled layer, from layer 0")],
        [FigureBlock(figure, "Figure 9, by task.", "Bar charts of changes by layer.")],
    )


def _mostly(each: Effects) -> np.ndarray:
    certain_L: np.ndarray = each.certain_RLH[:, :, 0].mean(axis=0) > 0.5
    return certain_L
