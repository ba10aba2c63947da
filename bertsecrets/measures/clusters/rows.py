"""What the measure of distances between heads finds beside its grid."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Space:
    """The heads of one model by their distances.

    Args:
        before: Whether it is the model before fine-tuning, which is taken along if it differs.
        rows: Number of rows (real tokens) that distances are averaged over.
        replicates: Bootstrap samples of the texts behind the stability of groups.
        stress: Kruskal's stress-1 of the heads as points in the plane, 0 if it holds all distances.
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
        before: Whether it is one of the model before fine-tuning.
        group: Its number, from 0, the largest first.
        heads: Number of heads.
        distance: Their mean distance in nats; NaN for a single head.
        stability: Mean over the bootstrap samples of its highest Jaccard index with a group there, 0..1; NaN without samples.
    """

    before: bool
    group: int
    heads: int
    distance: float
    stability: float


@dataclass(frozen=True)
class Place:
    """A head as a point in the plane, where heads near each other attend alike.

    Args:
        before: Whether it is one of the model before fine-tuning.
        layer, head: The head.
        x, y: The point.
        group: Its group.
        joint_x, joint_y: The point in one plane with the heads of the other model; None if the models are the same.
        moved: Its distance in nats from the same head of the other model; None if the models are the same.
    """

    before: bool
    layer: int
    head: int
    x: float
    y: float
    group: int
    joint_x: float | None
    joint_y: float | None
    moved: float | None


@dataclass(frozen=True)
class Moved:
    """How far fine-tuning moved heads.

    Args:
        stress: Stress of the plane that holds the heads of both models.
        correlation: Spearman's rank correlation of the distances between heads before and after.
        heads: Number of heads.
        nearest_to_self: How many of them have the same head as the nearest of the model before fine-tuning.
        layer, head, distance: The head that moved farthest, and how far, in nats.
    """

    stress: float
    correlation: float
    heads: int
    nearest_to_self: int
    layer: int
    head: int
    distance: float


@dataclass(frozen=True)
class Distance:
    """Mean Jensen-Shannon divergence of two heads of a model in nats, 0..ln 2, each pair once."""

    before: bool
    layer: int
    head: int
    other_layer: int
    other_head: int
    nats: float


ClusterRow = Space | Group | Place | Moved | Distance
