"""Section 4.5, figure 7: attention from token to token, and from [CLS] in the last layer."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.comparison.conditions import Condition
from bertsecrets.doors.feature_columns import shown
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material
from bertsecrets.measures.token_to_token import BEYOND, CLS_TO
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table

_MEASURE = "token_to_token"
_SEPARATOR, _FIRST = "sep", "cls"
_NO_WORDS = (_FIRST, "sep_total")
_THEIR_SCALE = 0.5
"""Where the colours of their figure end."""
_MOST_BEYOND = 0.5
"""Share of the highest head's attention that must be left without position, for it not to be a matter of position."""


def section(material: Material) -> Section | None:
    """What [CLS] attends to in the last layer, and linked words beside position; None where it was not measured."""
    having = [(material.name(each), each) for each in material.trained if _columns(each)]
    if not having:
        return None
    to_separator, positional, compared = [], [], 0
    cls_rows, pair_rows = [], []
    for name, condition in having:
        means = _last_layer(condition)
        if _SEPARATOR in means:
            to_separator += [name] if max(means, key=lambda kind: means[kind]) == _SEPARATOR else []
        cls_rows.append([name, ", ".join(f"{shown(kind)} {value:.3f}" for kind, value in _ordered(means))])
        for pair, (weight, beyond, place) in _pairs(condition).items():
            compared += 1
            positional += [pair] if beyond < _MOST_BEYOND * weight else []
            head = f"layer {place[0]} · head {place[1]}"
            pair_rows.append([name, pair.replace("_", " "), head, f"{weight:.3f}", f"{beyond:+.3f}"])
    names = [name for name, _ in having]
    claims = [
        Claim(
            "In the last layer [CLS] attends most to [SEP] on most tasks (not on STS-B, RTE and QNLI).",
            f"[SEP] gets the most {held(to_separator, names) if to_separator else 'nowhere'}.",
            len(to_separator) > len(names) / 2,
        )
    ]
    if compared:
        claims.append(
            Claim(
                "Heads that link verbs with subjects or nouns with pronouns are diagonal ones: they cannot be told from "
                "attention to neighbours.",
                f"For {len(positional)} of {compared} kinds of linked words, the head that attends to them most has less "
                "than half of that attention left once what it gives to other words at the same distance is taken off.",
                len(positional) > compared / 2,
            )
        )
    material.claims += claims
    figure = _from_cls(having)
    material.figures["paper_figure7"] = figure
    tables = [
        claims_table(claims),
        Table(["task", "[CLS] attends to"], cls_rows, "Last layer, mean over heads and seeds"),
    ]
    if pair_rows:
        header = ["task", "words", "highest head", "its attention", "beyond position"]
        tables.append(Table(header, pair_rows, "The head that attends most to each kind of linked words"))
    return Section(
        "Section 4.5, figure 7: attention from token to token",
        [],
        tables,
        [
            FigureBlock(
                figure, "Figure 7: what [CLS] attends to in the last layer, by task.", "Heatmaps of kinds by head."
            )
        ],
    )


def _columns(condition: Condition) -> list[str]:
    """Columns of the measure that some example of the first run has."""
    table = condition.runs[0].heads.select(measure=_MEASURE).table
    return sorted(set(table["column"].to_pylist()))


def _last_layer(condition: Condition) -> dict[str, float]:
    """Attention from [CLS] in the last layer, by what is attended to."""
    means = {}
    for column in _columns(condition):
        kind = column.removeprefix(CLS_TO)
        found = condition.grids(_MEASURE, column)
        if (
            column.startswith(CLS_TO)
            and kind not in _NO_WORDS
            and found is not None
            and np.isfinite(found[0][:, -1]).any()
        ):
            means[kind] = float(np.nanmean(found[0][:, -1]))
    return means


def _ordered(means: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(means.items(), key=lambda each: -each[1])


def _pairs(condition: Condition) -> dict[str, tuple[float, float, tuple[int, int]]]:
    """For each kind of linked words its highest head: attention, attention beyond position, and place."""
    found = {}
    for column in _columns(condition):
        pair = column.removesuffix(BEYOND)
        if not column.endswith(BEYOND):
            continue
        weight, beyond = condition.grids(_MEASURE, pair), condition.grids(_MEASURE, column)
        if weight is None or beyond is None or not np.isfinite(weight[0]).any():
            continue
        weight_LH, beyond_LH = weight[0].mean(axis=0), beyond[0].mean(axis=0)
        layer, head = divmod(int(np.nanargmax(weight_LH)), weight_LH.shape[1])
        found[pair] = (float(weight_LH[layer, head]), float(beyond_LH[layer, head]), (layer, head))
    return found


def _from_cls(having: Sequence[tuple[str, Condition]]) -> Figure:
    """Every head of the last layer, a panel for each task; kinds of tokens that no example of a task has are hatched."""
    kinds = list(dict.fromkeys(kind for _, each in having for kind in (_SEPARATOR, _FIRST, *_last_layer(each))))
    panels, counts = [], []
    for name, condition in having:
        found = [condition.grids(_MEASURE, CLS_TO + kind) for kind in kinds]
        heads = next(each[0].shape[2] for each in found if each is not None)
        rows = [np.full(heads, np.nan) if each is None else each[0][:, -1].mean(axis=0) for each in found]
        panels.append(HeadPanel(name, np.stack(rows)))
        counts += [each[2] for each in found if each is not None]
    largest = max(float(np.nanmax(panel.value_LH)) for panel in panels)
    return head_panels(
        panels,
        title="What [CLS] attends to in the last layer",
        unit="largest attention from [CLS]",
        note=f"mean over seeds, {sample_size([count for count in counts if count])} that have such a token; hatched: none has",
        limits=(0.0, max(_THEIR_SCALE, largest)),
        rows=[shown(kind) for kind in kinds],
    )
