"""Groups of heads on pages: figure 6 of Clark et al. 2019, and changes of distances between heads in fine-tuning."""

from collections.abc import Callable

from bertsecrets.measures.clusters.rows import Distance, Group, Moved, Place, Space, Tuned
from bertsecrets.present.figures.scatters import head_space
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import Section, block, name_of, table
from bertsecrets.results.formatting import are, counted, head_label, heads_label, number, p_value
from bertsecrets.results.views import LEVEL, MeasureView

STABLE = 0.75
"""Least stability of a reliable group (Hennig 2007)."""

_NAMED, _PAIRS = 12, 5

_DISTANCES: dict[str, Callable[[Distance], str]] = {
    "head": name_of,
    "another head": lambda row: head_label(row.other_layer, row.other_head),
    "distance in nats": lambda row: number(row.nats, 4),
}


def section(view: MeasureView) -> Section | None:
    """The heads in the plane, their groups, and their movement in fine-tuning; None without distances."""
    space = view.fact(Space)
    if space is None or not view.has("within_layer"):
        return None
    places = [row for row in view.found(Place) if not row.before]
    groups = [row for row in view.found(Group) if not row.before]
    layers, heads = view.value("within_layer").shape
    texts = f"{space.rows:,} rows of {view.count('between_layers' if layers > 1 else 'within_layer'):,} texts"

    def members(group: Group) -> list[tuple[int, int]]:
        return [(row.layer, row.head) for row in places if row.group == group.group]

    columns: dict[str, Callable[[Group], str]] = {
        "group": lambda row: str(row.group),
        "heads": lambda row: str(len(members(row))),
        "mean distance": lambda row: number(row.distance),
        "stability": lambda row: number(row.stability, 2),
        "layers": lambda row: ", ".join(map(str, sorted({layer for layer, _ in members(row)}))),
        "members": lambda row: (
            heads_label(members(row)[:_NAMED]) + (f"; {more} more" if (more := len(members(row)) - _NAMED) > 0 else "")
        ),
    }
    findings = []
    if space.p_layers == space.p_layers:
        findings.append(
            f"Heads of the same layer are {'' if space.p_layers < LEVEL else 'not significantly '}closer to each "
            f"other than to heads of other layers: {number(space.within)} nats within layers, {number(space.between)} "
            f"between them (permutation test, p {compared_p(space.p_layers)})."
        )
    stable = sum(row.stability >= STABLE for row in groups)
    findings.append(
        f"{counted(len(groups), 'group')} of heads; {stable} {are(stable)} stable over samples of the texts."
        if space.replicates
        else f"The heads form {counted(len(groups), 'group')}."
    )
    figures = [
        block(
            view.name,
            "Heads near each other attend similarly",
            head_space,
            "Figure 6 of Clark et al.: heads by layer and by group.",
            points_N2=[(row.x, row.y) for row in places],
            heads=heads,
            classes={"by group (number of heads)": [f"group {row.group}" for row in places]},
            note=f"Jensen-Shannon divergence by multidimensional scaling, stress {number(space.stress, 2)}; {texts}; "
            "layers and heads "
            "count from 0",
        )
    ]
    moved, farthest = view.found(Moved), None
    if (tuned := view.fact(Tuned)) is not None:
        farthest = max(moved, key=lambda row: row.distance)
        findings.append(
            "The distances between heads before and after fine-tuning have a rank correlation of "
            f"{number(tuned.correlation, 2)}; for {tuned.nearest_to_self} of {len(moved)} heads the nearest head of "
            f"the model before fine-tuning is the same head. {name_of(farthest).capitalize()} moved farthest "
            f"({number(farthest.distance)} nats)."
        )
    nearest = sorted((row for row in view.found(Distance) if not row.before), key=lambda row: row.nats)[:_PAIRS]
    return Section(
        "Groups of heads",
        findings,
        [
            "The distance of two heads is the Jensen-Shannon divergence of their attention, averaged over all tokens "
            "(Clark et al. 2019, section 6); at most ln 2 = 0.693 nats. Groups come from cutting a Ward linkage "
            "tree. The stability of a group is its mean overlap (Jaccard index) with the nearest group in "
            f"{space.replicates} bootstrap samples of the texts; below {STABLE} a group may be an artefact (Hennig "
            "2007). With a stress of 0.2 or more, the plane shows distances only roughly."
        ],
        [table(groups, columns, "Groups of heads"), table(nearest, _DISTANCES, "The most similar heads")],
        figures,
        head=None if farthest is None else (farthest.layer, farthest.head),
    )


PRESENTER = Presenter(section)


def compared_p(p: float) -> str:
    """A p-value after its letter: ``= 0.031`` or ``< 0.001``."""
    text = p_value(p)
    return text if text.startswith("<") else f"= {text}"
