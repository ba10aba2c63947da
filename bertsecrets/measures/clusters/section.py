"""The section on groups of heads: figure 6 of Clark et al. 2019, and what fine-tuning does to it."""

import numpy as np
from numpy.typing import NDArray

from bertsecrets.measures.clusters.record import ClusterRecord
from bertsecrets.results.figures.head_space import head_space, moved_heads
from bertsecrets.results.formatting import head_label, heads_label, number, p_value
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.ranks import spearman

LEVEL = 0.05

_STABLE = 0.75
"""Least stability of a group that can be relied on (Hennig 2007)."""

_NAMED = 12
_PAIRS = 5

Array = NDArray[np.float64]


def cluster_section(view: MeasureView) -> Section | None:
    """The section on distances between heads; None without a record of them."""
    record = ClusterRecord.read(view.extras)
    if record is None or not view.has("within_layer"):
        return None
    layers, heads = view.value("within_layer").shape
    size = layers * heads
    distance_NN = np.asarray(record.distances)[:size, :size]
    note = f"{record.rows:,} rows of {view.count('between_layers' if layers > 1 else 'within_layer'):,} texts"
    plane = head_space(
        record.points,
        heads,
        record.groups,
        title="Heads near each other attend alike",
        note=f"Jensen-Shannon divergence by multidimensional scaling, stress {number(record.stress, 2)}; {note}; "
        "layers and heads count from 0",
    )
    figures = [
        FigureBlock(
            view.name, plane, "Figure 6 of Clark et al.: heads by layer and by group.", "Heads as points in the plane."
        )
    ]
    findings = [*_layers(record), _groups(record)]
    if record.points_of_both:
        findings += _moved(np.asarray(record.distances), heads)
        both = np.asarray(record.points_of_both)
        figure = moved_heads(
            both[size:],
            both[:size],
            heads,
            title="Heads before and after fine-tuning, in one space",
            note=f"multidimensional scaling of both models' heads, stress {number(record.stress_of_both, 2)}; {note}",
        )
        caption = "How far each head moved among the heads of both models; the five that moved farthest are named."
        figures.append(
            FigureBlock(f"{view.name}_moved", figure, caption, "Heads of two models as points in the plane.")
        )
    return Section(
        "Groups of heads",
        findings,
        [
            "The distance of two heads is the Jensen-Shannon divergence of their attention, averaged over all tokens (Clark et "
            "al. 2019, section 6); at most ln 2 = 0.693 nats. Groups are cut from a tree by Ward's linkage. The stability "
            f"of a group is its mean overlap (Jaccard index) with the nearest group in {record.replicates} bootstrap samples "
            f"of the texts; below {_STABLE} a group may be an artefact (Hennig 2007). A plane cannot hold all distances: "
            "a stress of 0.2 or more means that the figure shows them roughly."
        ],
        [_group_table(record, distance_NN, heads), _pair_table(distance_NN, heads)],
        figures,
    )


def _layers(record: ClusterRecord) -> list[str]:
    if not np.isfinite(record.p):
        return []
    closer = record.p < LEVEL
    return [
        f"Heads of one layer are {'' if closer else 'not significantly '}closer to each other than to heads of other layers: "
        f"{number(record.within)} nats within layers, {number(record.between)} between them (permutation test, p "
        f"{_comparison(record.p)})."
    ]


def _comparison(p: float) -> str:
    text = p_value(p)
    return text if text.startswith("<") else f"= {text}"


def _groups(record: ClusterRecord) -> str:
    count = max(record.groups) + 1
    if not record.replicates:
        return f"The heads form {count} groups."
    stable = sum(value >= _STABLE for value in record.stability)
    return f"Of {count} groups of heads, {stable} {'is' if stable == 1 else 'are'} stable over samples of the texts."


def _moved(distance_NN: Array, heads: int) -> list[str]:
    size = len(distance_NN) // 2
    own_NN, other_NN, cross_NN = distance_NN[:size, :size], distance_NN[size:, size:], distance_NN[:size, size:]
    upper = np.triu_indices(size, 1)
    rho = spearman(own_NN[upper], other_NN[upper])
    kept = int((cross_NN.argmin(axis=1) == np.arange(size)).sum())
    farthest = int(cross_NN.diagonal().argmax())
    return [
        f"The distances between heads before and after fine-tuning have a rank correlation of {number(rho, 2)}; for {kept} of "
        f"{size} heads the nearest head of the model before fine-tuning is the same head. "
        f"{head_label(*divmod(farthest, heads)).capitalize()} moved farthest ({number(cross_NN[farthest, farthest])} nats)."
    ]


def _group_table(record: ClusterRecord, distance_NN: Array, heads: int) -> Table:
    group_N = np.asarray(record.groups)
    rows = []
    for group in range(int(group_N.max()) + 1):
        members = np.flatnonzero(group_N == group)
        inside = distance_NN[np.ix_(members, members)]
        mean = float(inside.sum() / (inside.size - len(members))) if len(members) > 1 else float("nan")
        layers = sorted({int(member) // heads for member in members})
        named = heads_label(divmod(int(member), heads) for member in members[:_NAMED])
        more = f"; {len(members) - _NAMED} more" if len(members) > _NAMED else ""
        rows.append(
            [
                str(group),
                str(len(members)),
                number(mean),
                number(record.stability[group], 2),
                ", ".join(map(str, layers)),
                named + more,
            ]
        )
    return Table(["group", "heads", "mean distance", "stability", "layers", "members"], rows, "Groups of heads")


def _pair_table(distance_NN: Array, heads: int) -> Table:
    first_P, second_P = np.triu_indices(len(distance_NN), 1)
    order_P = np.argsort(distance_NN[first_P, second_P], kind="stable")[:_PAIRS]
    rows = [
        [
            head_label(*divmod(int(first_P[place]), heads)),
            head_label(*divmod(int(second_P[place]), heads)),
            number(distance_NN[first_P[place], second_P[place]], 4),
        ]
        for place in order_P
    ]
    return Table(["head", "head", "distance in nats"], rows, "The heads most alike")
