"""Section 4.5, figure 7: attention from token to token, and from [CLS] in the last layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsecrets.measures.linguistic.columns import feature_label, pair_label
from bertsecrets.measures.linguistic.token_to_token import BEYOND, CLS_TO, MEAN, RANDOM
from bertsecrets.papers.chapter import (
    Answers,
    Chapter,
    Claim,
    PaperRuns,
    beside_the_paper,
    claims_tables,
    learned,
    not_learned,
    published_for,
    without_unlearned,
)
from bertsecrets.papers.kovaleva2019 import published
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import sample_size, seeds_in_words
from bertsecrets.results.formatting import MISSING, head_label, number
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.sections import highest
from bertsecrets.results.views import Replicates

_MEASURE = "token_to_token"
_SEPARATOR, _FIRST, _ALL_SEPARATORS = _SPECIAL = ("sep", "cls", "sep_total")
_PAPER_SCALE = 0.5
"""Upper end of the colour scale in the paper's figure."""
_PAPER_PAIRS = ("verb_to_subject", "subject_to_verb", "noun_to_pronoun", "pronoun_to_noun")
"""The kinds of linked words that the paper speaks of."""
_MOST_BEYOND = 0.5
"""Share of a head's mean attention that must remain without position for the head not to count as positional."""


@dataclass(frozen=True)
class _Attended:
    """Attention from [CLS] in the last layer to one kind of token, mean over seeds.

    Args:
        layer: The last layer.
        value_H: Attention by head, in 0..1.
        error: Standard error of its mean over heads: over seeds, or with one seed over examples, at its widest.
        count: Examples with such a token.
        seeds: Number of seeds.
    """

    layer: int
    value_H: NDArray[np.float64]
    error: float
    count: int
    seeds: int


@dataclass(frozen=True)
class _Linking:
    """The head that attends most to one kind of linked words.

    Args:
        head: Its layer and head.
        weight: Its largest attention to such words, in 0..1.
        mean: Its mean attention to them, in 0..1.
        beyond: What remains of the mean without position, -1..1; NaN where undefined.
    """

    head: tuple[int, int]
    weight: float
    mean: float
    beyond: float

    @property
    def positional(self) -> bool:
        """Whether less than half of the mean remains."""
        return self.beyond < _MOST_BEYOND * self.mean


def token_to_token(runs: PaperRuns) -> Chapter | None:
    """What [CLS] attends to in the last layer, and linked words compared with position; None if no run measured it."""
    measured = {
        runs.name(condition): (condition, replicates)
        for condition in runs.pretrained
        if (replicates := condition.replicates(_MEASURE)) is not None
    }
    if not measured:
        return None
    conditions = {name: condition for name, (condition, _) in measured.items()}
    attended = {name: row for name, (_, replicates) in measured.items() if (row := _last_layer(replicates))}
    linking = {name: pairs for name, (_, replicates) in measured.items() if (pairs := _pairs(replicates))}
    claims = [
        *_separator_claim(runs, list(conditions.values()), attended),
        *_position_claim({name: pairs for name, pairs in linking.items() if learned(conditions[name]) is not False}),
    ]
    left_out = [] if any(_SEPARATOR in row for row in attended.values()) else ["attention from [CLS] to [SEP]"]
    left_out += [] if _of_the_paper(linking) else ["attention between verbs and subjects or nouns and pronouns"]
    section = Section(
        "Section 4.5, figure 7: attention from token to token",
        paragraphs=[
            *not_learned(runs, list(conditions.values())),
            *(f"No run measured {what}: the paper's statement about it is left out." for what in left_out),
        ],
        tables=[*claims_tables(claims), *_attended_table(conditions, attended), *_pair_table(conditions, linking)],
        figures=_figure({runs.title(conditions[name]): row for name, row in attended.items()}),
    )
    return Chapter(section, claims)


def _columns(replicates: Replicates) -> list[str]:
    return sorted(column.name for column in replicates.columns)


def _last_layer(replicates: Replicates) -> dict[str, _Attended]:
    """Attention from [CLS] in the last layer, by the kind of token attended to."""
    rows = {}
    for column in _columns(replicates):
        grids = replicates.grids(column) if column.startswith(CLS_TO) and not column.endswith(RANDOM) else None
        if grids is not None and np.isfinite(grids.value_RLH[:, -1]).any():
            value_RLH = grids.value_RLH
            mean_R = np.nanmean(value_RLH[:, -1], axis=1)
            error = (
                float(mean_R.std(ddof=1) / np.sqrt(len(mean_R)))
                if len(mean_R) > 1
                else float(np.nanmean(grids.stderr_RLH[:, -1]))
            )
            rows[column.removeprefix(CLS_TO)] = _Attended(
                value_RLH.shape[1] - 1, np.nanmean(value_RLH[:, -1], axis=0), error, grids.count, len(value_RLH)
            )
    return rows


def _means(rows: Mapping[str, _Attended]) -> dict[str, float]:
    """Means over heads, highest first, without [CLS] itself and without all separators together."""
    means = {
        kind: float(np.nanmean(row.value_H)) for kind, row in rows.items() if kind not in (_FIRST, _ALL_SEPARATORS)
    }
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def _pairs(replicates: Replicates) -> dict[str, _Linking]:
    """The highest head for each kind of linked words."""
    heads = {}
    for column in _columns(replicates):
        if not column.endswith(BEYOND):
            continue
        pair = column.removesuffix(BEYOND)
        grids = [replicates.grids(name) for name in (pair, pair + MEAN, column)]
        values = [each.value_RLH.mean(axis=0) for each in grids if each is not None]
        if len(values) < len(grids) or not np.isfinite(values[0]).any():
            continue
        head = highest(values[0])
        heads[pair] = _Linking(head, *(float(value_LH[head]) for value_LH in values))
    return heads


def _of_the_paper(linking: Mapping[str, Mapping[str, _Linking]]) -> list[_Linking]:
    """The heads of the pairs that the paper speaks of, where the part beyond position is defined."""
    return [
        head
        for pairs in linking.values()
        for pair, head in pairs.items()
        if pair in _PAPER_PAIRS and np.isfinite(head.beyond)
    ]


def _separator_claim(
    runs: PaperRuns, conditions: Sequence[Condition], attended: Mapping[str, Mapping[str, _Attended]]
) -> list[Claim]:
    answers = Answers({name: _most(rows) for name, rows in attended.items() if _SEPARATOR in rows})
    if not answers:
        return []
    answers = without_unlearned(runs, conditions, answers)
    return [
        Claim(
            "In the last layer [CLS] attends most to [SEP] on most tasks (not on STS-B, RTE and QNLI).",
            f"[SEP] gets the most, by two standard errors: {answers}.",
            answers.mostly,
        )
    ]


def _most(rows: Mapping[str, _Attended]) -> bool | None:
    """Whether the separator gets more than any other kind of token; None within the errors of the two highest."""
    means = _means(rows)
    others = [kind for kind in means if kind != _SEPARATOR]
    if not others or not np.isfinite(means[_SEPARATOR]):
        return None
    gap = means[_SEPARATOR] - means[others[0]]
    return gap > 0 if abs(gap) > 1.96 * (rows[_SEPARATOR].error + rows[others[0]].error) else None


def _position_claim(linking: Mapping[str, Mapping[str, _Linking]]) -> list[Claim]:
    heads = _of_the_paper(linking)
    if not heads:
        return []
    positional = sum(head.positional for head in heads)
    return [
        Claim(
            "Heads that link verbs with subjects or nouns with pronouns are diagonal: they cannot be distinguished from "
            "attention to neighbours.",
            f"For {positional} of {len(heads)} such kinds of linked words (counted by task), the head that attends to them "
            "most keeps less than half of its mean attention to them once the mean attention to other words at the same "
            "distance is subtracted.",
            positional > len(heads) / 2,
        )
    ]


def _attended_table(
    conditions: Mapping[str, Condition], attended: Mapping[str, Mapping[str, _Attended]]
) -> list[Table]:
    rows = [
        [name, _in_order(_means(row)), _in_order(published_for(conditions[name], published.FROM_FIRST) or {})]
        for name, row in attended.items()
    ]
    header = ["task", "[CLS] attends to", "paper (notebook)"]
    seeds = [cell.seeds for row in attended.values() for cell in row.values()]
    return [beside_the_paper(header, rows, f"Last layer, mean over heads, {seeds_in_words(seeds)}")] if rows else []


def _in_order(means: Mapping[str, float]) -> str:
    return ", ".join(f"{feature_label(kind)} {number(value)}" for kind, value in means.items()) or MISSING


def _pair_table(conditions: Mapping[str, Condition], linking: Mapping[str, Mapping[str, _Linking]]) -> list[Table]:
    rows = []
    for name, pairs in linking.items():
        theirs = published_for(conditions[name], published.PAIRS) or {}
        for pair, head in pairs.items():
            heads = [f"{head_label(*place)}: {number(weight)}" for *place, weight in theirs.get(pair, ())]
            rows.append(
                [
                    name,
                    pair_label(pair),
                    f"{head_label(*head.head)}: {number(head.weight)}",
                    number(head.mean),
                    number(head.beyond, signed=True),
                    "; ".join(heads) or MISSING,
                ]
            )
    header = ["task", "words", "highest head", "its mean", "of that beyond position", "paper (notebook)"]
    caption = "The head with the largest attention to each kind of linked words, and its mean attention to all of them"
    return [beside_the_paper(header, rows, caption)] if rows else []


def _figure(attended: Mapping[str, Mapping[str, _Attended]]) -> Sequence[FigureBlock]:
    """Every head of the last layer, one panel per task; kinds of tokens that no example of a task has are hatched."""
    if not attended:
        return []
    cells = [row for rows in attended.values() for row in rows.values()]
    present = dict.fromkeys(kind for rows in attended.values() for kind in rows)
    kinds = [kind for kind in (_SEPARATOR, _FIRST) if kind in present]
    kinds += [kind for kind in present if kind not in _SPECIAL]
    missing_H = np.full_like(cells[0].value_H, np.nan)
    figure = head_panels(
        [
            HeadPanel(name, np.stack([rows[kind].value_H if kind in rows else missing_H for kind in kinds]))
            for name, rows in attended.items()
        ],
        title=f"What [CLS] attends to in the last layer ({cells[0].layer})",
        unit="largest attention from [CLS]",
        note=f"{seeds_in_words([cell.seeds for cell in cells])}, {sample_size([cell.count for cell in cells])} with such a token; "
        "hatched: no example has one",
        limits=(0.0, max(_PAPER_SCALE, *(float(np.nanmax(cell.value_H)) for cell in cells))),
        rows=[feature_label(kind) for kind in kinds],
    )
    caption = "Figure 7: what [CLS] attends to in the last layer, by task."
    return [FigureBlock("paper_figure7", figure, caption, "Heatmaps of kinds of tokens by head.")]
