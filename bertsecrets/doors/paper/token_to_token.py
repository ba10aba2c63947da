"""Section 4.5, figure 7: attention from token to token, and from [CLS] in the last layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsecrets.comparison import published
from bertsecrets.comparison.conditions import Condition
from bertsecrets.doors.feature_columns import shown
from bertsecrets.doors.paper.claims import Claim, claims_table, held
from bertsecrets.doors.paper.material import Material
from bertsecrets.measures.token_to_token import BEYOND, CLS_TO, MEAN
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table

_MEASURE = "token_to_token"
_SEPARATOR, _FIRST, _ALL_SEPARATORS = _SPECIAL = ("sep", "cls", "sep_total")
_THEIR_SCALE = 0.5
"""Where the colours of their figure end."""
_OF_THE_CLAIM = ("verb_to_subject", "subject_to_verb", "noun_to_pronoun", "pronoun_to_noun")
"""The kinds of linked words that the paper speaks of."""
_MOST_BEYOND = 0.5
"""Share of the highest head's mean attention that must be left without position, for it not to be a matter of position."""


@dataclass(frozen=True)
class _Row:
    """Attention from [CLS] in the last layer to one kind of token, mean over seeds."""

    layer: int
    value_H: NDArray[np.float64]
    count: int


@dataclass(frozen=True)
class _Highest:
    """The head that attends most to one kind of linked words, and what is left of its mean attention without position."""

    place: tuple[int, int]
    weight: float
    mean: float
    beyond: float

    @property
    def positional(self) -> bool:
        """Whether less than half of the mean is left."""
        return self.beyond < _MOST_BEYOND * self.mean


def section(material: Material) -> Section | None:
    """What [CLS] attends to in the last layer, and linked words beside position; None where it was not measured."""
    having = [each for each in material.trained if each.columns(_MEASURE)]
    if not having:
        return None
    attended = {material.name(each): row for each in having if (row := _last_layer(each))}
    linked = {material.name(each): found for each in having if (found := _pairs(each))}
    claims = [*_separator_claim(attended), *_position_claim(linked)]
    material.claims += claims
    left_out = [] if any(_SEPARATOR in row for row in attended.values()) else ["attention from [CLS] to [SEP]"]
    left_out += [] if _of_the_claim(linked) else ["attention between verbs and subjects or nouns and pronouns"]
    return Section(
        "Section 4.5, figure 7: attention from token to token",
        [f"No run measured {each}: what the paper says of it is left out." for each in left_out],
        [
            *([claims_table(claims)] if claims else []),
            *_attended_table(material, having, attended),
            *_pair_table(material, having, linked),
        ],
        _figure(material, attended),
    )


def _last_layer(condition: Condition) -> dict[str, _Row]:
    """Attention from [CLS] in the last layer, by what is attended to."""
    rows = {}
    for column in condition.columns(_MEASURE):
        found = condition.grids(_MEASURE, column)
        if column.startswith(CLS_TO) and found is not None and np.isfinite(found[0][:, -1]).any():
            rows[column.removeprefix(CLS_TO)] = _Row(
                found[0].shape[1] - 1, np.nanmean(found[0][:, -1], axis=0), found[2]
            )
    return rows


def _means(rows: Mapping[str, _Row]) -> dict[str, float]:
    """Means over heads, the highest first; other than [CLS] itself and what [SEP] is in already."""
    means = {
        kind: float(np.nanmean(row.value_H)) for kind, row in rows.items() if kind not in (_FIRST, _ALL_SEPARATORS)
    }
    return dict(sorted(means.items(), key=lambda each: -each[1]))


def _pairs(condition: Condition) -> dict[str, _Highest]:
    """For each kind of linked words its highest head."""
    found = {}
    for column in condition.columns(_MEASURE):
        pair = column.removesuffix(BEYOND)
        if not column.endswith(BEYOND):
            continue
        grids = [condition.grids(_MEASURE, name) for name in (pair, pair + MEAN, column)]
        values = [each[0].mean(axis=0) for each in grids if each is not None]
        if len(values) < len(grids) or not np.isfinite(values[0]).any():
            continue
        layer, head = divmod(int(np.nanargmax(values[0])), values[0].shape[1])
        found[pair] = _Highest((layer, head), *(float(value_LH[layer, head]) for value_LH in values))
    return found


def _of_the_claim(linked: Mapping[str, Mapping[str, _Highest]]) -> list[_Highest]:
    """Those that the paper speaks of, where something can be said of position."""
    return [
        highest
        for found in linked.values()
        for pair, highest in found.items()
        if pair in _OF_THE_CLAIM and np.isfinite(highest.beyond)
    ]


def _separator_claim(attended: Mapping[str, Mapping[str, _Row]]) -> list[Claim]:
    known = [name for name, rows in attended.items() if _SEPARATOR in rows]
    if not known:
        return []
    most = [name for name in known if next(iter(_means(attended[name]))) == _SEPARATOR]
    return [
        Claim(
            "In the last layer [CLS] attends most to [SEP] on most tasks (not on STS-B, RTE and QNLI).",
            f"[SEP] gets the most {held(most, known)}.",
            len(most) > len(known) / 2,
        )
    ]


def _position_claim(linked: Mapping[str, Mapping[str, _Highest]]) -> list[Claim]:
    compared = _of_the_claim(linked)
    if not compared:
        return []
    positional = sum(each.positional for each in compared)
    return [
        Claim(
            "Heads that link verbs with subjects or nouns with pronouns are diagonal ones: they cannot be told from "
            "attention to neighbours.",
            f"For {positional} of {len(compared)} such kinds of linked words (counted by task), the head that attends to them "
            "most has less than half of its mean attention to them left once what it gives to other words at the same "
            "distance is taken off.",
            positional > len(compared) / 2,
        )
    ]


def _attended_table(
    material: Material, having: Sequence[Condition], attended: Mapping[str, Mapping[str, _Row]]
) -> list[Table]:
    rows = []
    for condition in having:
        name = material.name(condition)
        if name in attended:
            theirs = material.published(condition, published.FROM_FIRST) or {}
            rows.append([name, *(_listed(means) for means in (_means(attended[name]), theirs))])
    header = ["task", "[CLS] attends to", "in their notebook"]
    return [Table(header, rows, "Last layer, mean over heads and seeds")] if rows else []


def _listed(means: Mapping[str, float]) -> str:
    return ", ".join(f"{shown(kind)} {value:.3f}" for kind, value in means.items()) or "–"


def _pair_table(
    material: Material, having: Sequence[Condition], linked: Mapping[str, Mapping[str, _Highest]]
) -> list[Table]:
    rows = []
    for condition in having:
        theirs = material.published(condition, published.PAIRS) or {}
        for pair, each in linked.get(material.name(condition), {}).items():
            rows.append(
                [
                    material.name(condition),
                    pair.replace("_to_", " → ").replace("_", " "),
                    _head(*each.place, each.weight),
                    f"{each.mean:.3f}",
                    f"{each.beyond:+.3f}" if np.isfinite(each.beyond) else "–",
                    "; ".join(_head(*known) for known in theirs.get(pair, ())) or "–",
                ]
            )
    header = ["task", "words", "highest head", "its mean", "of that beyond position", "in their notebook"]
    caption = "The head with the largest attention to each kind of linked words, and its mean attention to all of them"
    return [Table(header, rows, caption)] if rows else []


def _head(layer: int, head: int, weight: float) -> str:
    return f"layer {layer} · head {head}: {weight:.3f}"


def _figure(material: Material, attended: Mapping[str, Mapping[str, _Row]]) -> list[FigureBlock]:
    """Every head of the last layer, a panel for each task; kinds of tokens that no example of a task has are hatched."""
    if not attended:
        return []
    every = [row for rows in attended.values() for row in rows.values()]
    there = dict.fromkeys(kind for rows in attended.values() for kind in rows)
    kinds = [kind for kind in (_SEPARATOR, _FIRST) if kind in there] + [kind for kind in there if kind not in _SPECIAL]
    missing_H = np.full_like(every[0].value_H, np.nan)
    figure = head_panels(
        [
            HeadPanel(name, np.stack([rows[kind].value_H if kind in rows else missing_H for kind in kinds]))
            for name, rows in attended.items()
        ],
        title=f"What [CLS] attends to in the last layer ({every[0].layer})",
        unit="largest attention from [CLS]",
        note=f"mean over seeds, {sample_size([row.count for row in every])} that have such a token; hatched: none has",
        limits=(0.0, max(_THEIR_SCALE, *(float(np.nanmax(row.value_H)) for row in every))),
        rows=[shown(kind) for kind in kinds],
    )
    material.figures["paper_figure7"] = figure
    caption = "Figure 7: what [CLS] attends to in the last layer, by task."
    return [FigureBlock(figure, caption, "Heatmaps of kinds of tokens by head.")]
