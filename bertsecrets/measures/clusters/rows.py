"""Results of the measure of distances between heads besides its grid."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Space:
    """The heads of one model by their distances.

    Args:
        before: Whether it is the model before fine-tuning, which is included if it differs.
        rows: Number of rows (real tokens) that distances are averaged over.
        replicates: Bootstrap samples of the texts behind the stability of groups.
        stress: Kruskal's stress-1 of the heads as points in the plane; 0 if all distances are preserved.
        within, between: Mean distance of heads of one layer, and of different layers, in nats.
        p_layers: One-sided, of heads of one layer being no closer than others (permutation test).
    """

    before: bool
    rows: int
    replicates: int
    stress: float
    within: float
    between: float
    p_layers: float


@dataclass(frozen=True)
class Group:
    """A group of heads.

    Args:
        before: Whether it belongs to the model before fine-tuning.
        group: Its number, from 0, the largest first.
        distance: Mean distance of its heads in nats; NaN for a single head.
        stability: Mean over bootstrap samples of its highest Jaccard index with a group in the sample, 0..1; NaN
            without samples.
    """

    KEYS: ClassVar = ("group",)

    before: bool
    group: int
    distance: float
    stability: float


@dataclass(frozen=True)
class Place:
    """A head as a point in the plane, in which nearby heads attend similarly, and its group."""

    before: bool
    layer: int
    head: int
    x: float
    y: float
    group: int


@dataclass(frozen=True)
class Tuned:
    """What fine-tuning did to the distances between heads; none if the models are the same.

    Args:
        stress: Stress of the plane with the heads of both models.
        correlation: Spearman's rank correlation of the distances between heads before and after.
        nearest_to_self: Number of heads whose nearest head of the model before fine-tuning is the same head.
    """

    stress: float
    correlation: float
    nearest_to_self: int


@dataclass(frozen=True)
class Moved:
    """A head in the plane of both models, after and before fine-tuning, and the distance between the two in nats."""

    layer: int
    head: int
    x: float
    y: float
    x_before: float
    y_before: float
    distance: float


@dataclass(frozen=True)
class Distance:
    """Mean Jensen-Shannon divergence of two heads of a model in nats, 0..ln 2, each pair once."""

    KEYS: ClassVar = ("other_layer", "other_head")

    before: bool
    layer: int
    head: int
    other_layer: int
    other_head: int
    nats: float


ClusterRow = Space | Group | Place | Tuned | Moved | Distance
