"""Section 4.5, figure 7: attention from token to token, and from [CLS] in the last layer."""

import numpy as np

from bertsecrets.comparison.conditions import Condition
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material
from bertsecrets.measures.token_to_token import BEYOND, CLS_TO
from bertsecrets.results.figures.panels import LayerPanel, layer_panels
from bertsecrets.results.report.content import FigureBlock, Section, Table

_MEASURE = "token_to_token"
_SEPARATOR = "sep"
_NO_WORDS = ("cls", "sep_total")
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
        cls_rows.append([name, ", ".join(f"{_shown(kind)} {value:.3f}" for kind, value in _ordered(means))])
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
    panels = [
        LayerPanel(name, _separator_RL(each), np.ones(_separator_RL(each).shape[1], bool)) for name, each in having
    ]
    figure = layer_panels(
        panels,
        title="Attention from [CLS] to [SEP]",
        unit="attention, mean over heads",
        note="dots: seeds; bars: their mean",
    )
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
        [FigureBlock(figure, "Attention from [CLS] to [SEP] by layer.", "Bar charts by layer.")],
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


def _separator_RL(condition: Condition) -> np.ndarray:
    found = condition.grids(_MEASURE, CLS_TO + _SEPARATOR)
    assert found is not None
    return np.asarray(np.nanmean(found[0], axis=2))


def _shown(kind: str) -> str:
    return "[SEP]" if kind == _SEPARATOR else kind.replace("_", " ")
