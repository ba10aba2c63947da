"""Voita et al. 2019, *Analyzing Multi-Head Self-Attention*: figures and tables of its page."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.measures.voita_roles import PREVIOUS, ROLES, VoitaRoles, role_tests, roles_of
from bertsecrets.papers.models import Studied
from bertsecrets.pruning.experiment import curves_of
from bertsecrets.pruning.figures import pruning_curves
from bertsecrets.results.formatting import MISSING, number
from bertsecrets.results.report.content import FigureBlock, Section, Table

_MARGIN = 0.01


def roles(models: Studied) -> Section | None:
    """Section 5: positional, syntactic and rare-word heads; None if no run measured these roles."""
    rows = []
    for group in models.tuned:
        views = group.views(VoitaRoles.name, PREVIOUS)
        tests = [role_tests(view) for view in views]
        cells = []
        for role in ROLES:
            shown = [test[role][0] for test in tests if role in test]
            if len(shown) < len(tests):
                cells.append(MISSING)
                continue
            counts = [int(roles_of(view)[role].sum()) for view in views]
            pairs = zip(counts, shown, strict=True)
            cells.append(", ".join(f"{count} ({int(above_LH.sum())})" for count, above_LH in pairs))
        if views:
            rows.append([group.name, str(views[0].value(PREVIOUS).size), *cells])
    if not rows:
        return None
    caption = "Heads that reach the threshold of a role, by seed, in parentheses those significantly above it; a head can have several roles"
    return Section("", tables=[Table(["task", "heads", *ROLES], rows, caption)])


def gates(models: Studied) -> Section | None:
    """Section 6: how many heads gates leave open; None if no run fitted or learned gates."""
    rows: list[list[str]] = []
    blocks: list[FigureBlock] = []
    for group in models.tuned:
        views = group.views("causal_gates", "pushed_shut", ready=lambda view: bool(view.extras.get("curves")))
        for view in views[:1]:
            total = view.value("pushed_shut").size
            rows += [
                [
                    f"{group.name}, frozen",
                    f"{row['penalty']:g}",
                    f"{row['kept']} of {total}",
                    MISSING if row["change"] is None else number(100 * row["change"], 1, signed=True),
                    MISSING
                    if row["low"] is None
                    else f"{number(100 * row['low'], 1)} to {number(100 * row['high'], 1)}",
                ]
                for row in view.extras["curves"]
            ]
            blocks.append(_figure(group.name, view.extras, len(blocks)))
    for group in models.tuned:
        for view in group.views("gates", "gate"):
            gate_LH = view.value("gate")
            kept = f"{int((gate_LH >= 0.5).sum())} of {gate_LH.size}"
            rows.append([f"{group.name}, fine-tuned", MISSING, kept, MISSING, MISSING])
    if not rows:
        return None
    header = ["task", "penalty", "heads kept", "change, points", "95 % interval"]
    return Section("", tables=[Table(header, rows, "Heads kept by gates, first seed")], figures=blocks)


def last_to_go(models: Studied) -> Section | None:
    """Section 6.3: which heads with a role are left when gates are pushed shut; None without roles and gates of one model."""
    rows = []
    for group in models.tuned:
        for model in group.models:
            roles_view = model.view(VoitaRoles.name, lambda view: view.has(PREVIOUS))
            gates_view = model.view("causal_gates", lambda view: view.has("pushed_shut"))
            if roles_view is None or gates_view is None:
                continue
            kept_LH = gates_view.value("pushed_shut") >= 0.5
            by_role = roles_of(roles_view)
            kept = [_kept_of(by_role[role], kept_LH) if role in by_role else MISSING for role in ROLES]
            without_LH = ~np.logical_or.reduce(list(by_role.values()))
            rows.append([group.name, str(model.seed), *kept, _kept_of(without_LH, kept_LH)])
    if not rows:
        return None
    caption = "Heads kept when pushed shut, of those with each role"
    return Section("", tables=[Table(["task", "seed", *ROLES, "no role"], rows, caption)])


def _kept_of(role_LH: NDArray[np.bool_], kept_LH: NDArray[np.bool_]) -> str:
    return f"{int((role_LH & kept_LH).sum())} of {int(role_LH.sum())}"


def _figure(name: str, content: Mapping[str, Any], place: int) -> FigureBlock:
    figure = pruning_curves(
        curves_of(content["curves"]),
        margin=_MARGIN,
        marked=None,
        title=f"{name}: change of {content['metric']} by heads kept, gates of the frozen model",
        count=content["examples"],
        level=content["level"],
    )
    return FigureBlock(
        f"voita_gates_{place}",
        figure,
        f"Heads kept by gates, {name}, first seed.",
        "Line chart of scores by heads kept.",
    )
