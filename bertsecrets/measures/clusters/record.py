"""What a run keeps of the distances between its heads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ClusterRecord:
    """Distances, points and groups of N heads, in order of layers.

    Args:
        rows: Number of rows (real tokens) that distances are averaged over.
        distances: Mean divergence in nats, ``[N, N]``; ``[2N, 2N]``, own heads first, if the model differs from the model
            before fine-tuning.
        points: The N heads in the plane; ``stress``: Kruskal's stress-1.
        points_of_both, stress_of_both: The same for 2N heads; empty if the models are the same.
        groups: Group of each head, from 0.
        stability: Mean of the highest Jaccard index of each group over the bootstrap samples.
        replicates: Number of these samples.
        within, between, p: Mean distance within layers and between layers, and the p-value of a permutation test.
        before: The record of the model before fine-tuning; None if the models are the same.
    """

    rows: int
    distances: list[list[float]]
    points: list[list[float]]
    stress: float
    points_of_both: list[list[float]]
    stress_of_both: float
    groups: list[int]
    stability: list[float]
    replicates: int
    within: float
    between: float
    p: float
    before: "ClusterRecord | None" = None

    @classmethod
    def read(cls, extras: Mapping[str, Any]) -> "ClusterRecord | None":
        """The record in a run's extras; None if there is none."""
        return cls(**{**extras, "before": cls.read(extras.get("before") or {})}) if extras else None
