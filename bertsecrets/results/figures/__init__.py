"""One function for each kind of figure; each returns a matplotlib Figure and touches no global state."""

from bertsecrets.results.figures.ablation_heads import disabling_heatmap, sorted_effects
from bertsecrets.results.figures.ablation_sets import (
    SimilarGroup,
    cumulative_curve,
    effect_trajectory,
    layer_bars,
    redundancy_chart,
)
from bertsecrets.results.figures.ablation_volcano import volcano
from bertsecrets.results.figures.gallery import MapPanel, gallery
from bertsecrets.results.figures.gradients import gradient_against_drift, gradient_flow
from bertsecrets.results.figures.heatmap import heatmap
from bertsecrets.results.figures.saving import save_figure
from bertsecrets.results.figures.scores import scores
from bertsecrets.results.figures.trajectory import trajectory

__all__ = [
    "MapPanel",
    "SimilarGroup",
    "cumulative_curve",
    "disabling_heatmap",
    "effect_trajectory",
    "gallery",
    "gradient_against_drift",
    "gradient_flow",
    "heatmap",
    "layer_bars",
    "redundancy_chart",
    "save_figure",
    "scores",
    "sorted_effects",
    "trajectory",
    "volcano",
]
