"""Gates on pages: fits to a frozen model, and gates learned with fine-tuning."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.pruning import CurvePoint, pruning_curves
from bertsecrets.present.grid import grid_section
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import Section, Table, block, table
from bertsecrets.pruning.rows import GATE, OPEN, SHUT, GateFits, PathPoint
from bertsecrets.results.formatting import counted, level_text, metric_label, number, percent
from bertsecrets.results.views import MeasureView

FACILITATING, INTERFERING, IRRELEVANT, UNDECIDED = "facilitating", "interfering", "irrelevant", "undecided"

_ROLES = {
    (True, True): FACILITATING,
    (False, False): INTERFERING,
    (False, True): IRRELEVANT,
    # Open when pushed shut and closed when pushed open, so the fits contradict each other.
    (True, False): UNDECIDED,
}
"""Role of a head by whether its gate is open (at least 0.5) when pushed shut, and when pushed open."""


def _frozen_section(view: MeasureView) -> Section | None:
    """Roles as text, both fits side by side, and the path to few heads."""
    fits = view.fact(GateFits)
    if fits is None or not view.has(SHUT):
        return None
    counts = Counter(name for row in _roles(view)["role"] for name in row)
    times = counted(view.count(SHUT), "fit")
    blocks = [
        block(
            view.name,
            view.title,
            head_panels,
            "Gates fitted on training examples with a penalty that pushes them shut (left) and open (right).",
            panels=[HeadPanel(column.label, view.value(column.name)) for column in view.columns],
            unit="mean gate over the fits",
            note=f"{times} each; 1: the head is unchanged, 0: its output is zero",
            limits=(0, 1),
        )
    ]
    tables = []
    if path := view.found(PathPoint):
        tables.append(
            table(
                path,
                {
                    "penalty": lambda point: f"{point.penalty:g}",
                    "heads kept": lambda point: str(point.kept),
                    "change, points": lambda point: percent(point.change.value),
                    "lowest": lambda point: percent(point.change.low),
                    "highest": lambda point: percent(point.change.high),
                    "loss": lambda point: number(point.loss),
                },
                f"The path: {metric_label(fits.metric)} {number(fits.score)}, loss {number(fits.loss)} with all heads; "
                f"limits at {level_text(fits.level)}",
            )
        )
        blocks.append(
            block(
                f"{view.name}_path",
                f"Change of {metric_label(fits.metric)} by heads kept: gates of the frozen model",
                pruning_curves,
                "Each point is a fit with a stronger penalty; heads are kept or removed entirely.",
                points=[CurvePoint("gates", point.kept, point.change) for point in path],
                count=fits.examples,
                level=fits.level,
                metric=fits.metric,
            )
        )
    undecided = f"; {counts[UNDECIDED]} are undecided" if counts[UNDECIDED] else ""
    return Section(
        view.title,
        [
            f"Gates of {counts.total()} heads: {counts[FACILITATING]} remain open when pushed shut (facilitating), "
            f"{counts[INTERFERING]} close when pushed open (interfering), and {counts[IRRELEVANT]} follow the push "
            f"(irrelevant){undecided}."
        ],
        [
            f"The model is frozen; a penalty of {fits.penalty:g} per expected open gate pushes gates shut, and its "
            f"negative pushes them open. {times} of {fits.steps} steps on {fits.choosing:,} training examples; a "
            "head's gate is their mean, and counts as open from 0.5. Gates start open, so fewer heads are "
            "facilitating with a stronger or longer push."
        ],
        tables,
        blocks,
    )


def _roles(view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
    """The role of each head."""
    if not view.has(SHUT):
        return {}
    pairs = zip((view.value(SHUT) >= 0.5).tolist(), (view.value(OPEN) >= 0.5).tolist(), strict=True)
    return {"role": [[_ROLES[pair] for pair in zip(shut_H, open_H, strict=True)] for shut_H, open_H in pairs]}


def _role_counts(view: MeasureView) -> Mapping[str, float]:
    """The number of heads of each role."""
    names = [name for row in _roles(view).get("role", ()) for name in row]
    return {name: float(names.count(name)) for name in (FACILITATING, INTERFERING, IRRELEVANT)} if names else {}


def _learned_section(view: MeasureView) -> Section | None:
    """The number of open heads as text, and the gates."""
    section = grid_section(view)
    if section is None or not view.has(GATE):
        return section
    gate_LH = view.value(GATE)
    is_open = gate_LH >= 0.5
    between = int(((gate_LH > 0.05) & (gate_LH < 0.95)).sum())
    by_layer = ", ".join(f"layer {layer}: {int(count)}" for layer, count in enumerate(is_open.sum(-1)))
    history = [[f"{step:,}", str(int((value_LH >= 0.5).sum()))] for step, value_LH in view.history(GATE)]
    return replace(
        section,
        findings=[
            f"{int(is_open.sum())} of {gate_LH.size} heads are open after fine-tuning with a penalty on open gates."
        ],
        paragraphs=[f"Open heads by {by_layer}. {between} gates are neither open nor closed (0.05 to 0.95)."],
        tables=[Table(["step", "open heads"], history, "Open heads during fine-tuning")] if history else [],
        descriptive=False,
        head=None,
    )


def _open_or_shut(view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
    if not view.has(GATE):
        return {}
    return {"gate": [["open" if value >= 0.5 else "shut" for value in row] for row in view.value(GATE).tolist()]}


FROZEN = Presenter(section=_frozen_section, classes=_roles, scalars=_role_counts)
LEARNED = Presenter(
    section=_learned_section,
    classes=_open_or_shut,
    scalars=lambda view: {"open_heads": float((view.value(GATE) >= 0.5).sum())} if view.has(GATE) else {},
)
