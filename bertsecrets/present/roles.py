"""Roles of heads on pages: by the sieve bias test (Pande et al. 2021) and by the thresholds of Voita et al. (2019)."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bertsecrets.measures.role_rows import (
    BLOCK,
    FROM_HEAD,
    PREVIOUS,
    SIEVE_ROLES,
    SYNTACTIC,
    VOITA_ROLES,
    Limits,
    Mask,
    distances,
    judged_relations,
    sieve_tests,
    strength,
    thresholds,
    voita_limits,
    voita_roles,
)
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.grid import highest, names_by_head
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import Section, block, table
from bertsecrets.results.formatting import MISSING, counted, have, head_label, number, percentage, with_error
from bertsecrets.results.views import LEVEL, MeasureView

_FAINT = 1 / 16
"""Lower limit of scores in colours, because a score of 0 has no logarithm."""

_NEEDS = {SYNTACTIC: "annotated words", BLOCK: "inputs of two sentences"}


def sieve_section(view: MeasureView) -> Section | None:
    """Scores and tests of each role; None without scores."""
    limits, tests = thresholds(view), sieve_tests(view)
    measured = {name: tests[name] for name in tests if np.isfinite(view.value(name)).any()}
    held = {role: measured[role] for role in SIEVE_ROLES if role in measured}
    if not held:
        return None
    figure = block(
        view.name,
        "Sieve bias score of each role",
        head_panels,
        panels=[
            HeadPanel(f"{role} (above {limits[role]:g})", np.log2(np.maximum(view.value(role), _FAINT)), passed_LH)
            for role, passed_LH in held.items()
        ],
        unit="log2 of the score (uniform attention: 0)",
        note="pale: not significantly above the threshold (one-sided t test, false discovery rate "
        f"{percentage(LEVEL)}); {sample_size([view.count(role) for role in held])}",
        signed=True,
    )
    columns: dict[str, Callable[[str], str]] = {
        "role": lambda name: view.column(name).label,
        "threshold": lambda name: f"{limits[name]:g}",
        "heads": lambda name: str(int(measured[name].sum())),
        "by layer": lambda name: ", ".join(str(int(count)) for count in measured[name].sum(1)),
        "highest head": lambda name: head_label(*highest(view.value(name))),
        "score ± standard error": lambda name: _highest(view, name, 2),
        "mean score": lambda name: number(float(np.nanmean(view.value(name))), 2),
        "examples": lambda name: f"{view.count(name):,}",
    }
    held_RLH = np.stack(list(held.values()))
    with_role, with_several = int(held_RLH.any(0).sum()), int((held_RLH.sum(0) > 1).sum())
    missing = "".join(
        f" The {role} role was not tested, because it needs {_NEEDS.get(role, 'such tokens')}."
        for role in SIEVE_ROLES
        if role not in held
    )
    return Section(
        view.title,
        [
            f"{with_role} of {counted(held_RLH[0].size, 'head')} {have(with_role)} a role by the sieve bias test "
            f"({_counts(held)}); {with_several} {have(with_several)} more than one.{missing}"
        ],
        [
            "The score is a token's mean attention to the tokens of a role divided by its mean attention to all "
            "tokens, averaged over tokens and examples (Pande et al. 2021). A head has a role if its score is "
            "significantly above the threshold: one-sided t tests over examples, corrected over heads and roles "
            "(false discovery rate). Other heads may have it weakly."
        ],
        [table(list(measured), columns, "Roles by the sieve bias test")],
        [figure],
    )


def voita_section(view: MeasureView) -> Section | None:
    """The heads of each role, and the best head of each column; None without any."""
    held, limits = voita_roles(view), view.fact(Limits)
    if not held or limits is None:
        return None
    by_role = voita_limits(view)
    least = {column: limit for of_role in by_role.values() for column, limit in of_role.items()}
    judged, pairs = judged_relations(view), distances(view)
    figure = block(
        view.name,
        "Share of largest weights on the target of each role",
        head_panels,
        panels=[HeadPanel(role, strength(view, by_role[role]), passed_LH) for role, passed_LH in held.items()],
        unit="share",
        note=f"pale: below the threshold; syntactic: the best relation; {sample_size([view.count(PREVIOUS)])}",
        limits=(0.0, 1.0),
    )
    columns: dict[str, Callable[[str], str]] = {
        "largest weight": lambda name: view.column(name).label,
        "best head": lambda name: head_label(*highest(view.value(name))),
        "share ± standard error": lambda name: _highest(view, name, 3),
        "most frequent distance": lambda name: number(judged.get(name, np.nan)),
        "threshold": lambda name: number(least.get(name, np.nan)),
        "heads": lambda name: str(int((view.value(name) >= least[name]).sum())) if name in least else MISSING,
        "pairs or texts": lambda name: (
            f"{sum(pairs.get(name.removesuffix(FROM_HEAD), {}).values()) or view.count(name):,}"
        ),
    }
    measured = [column.name for column in view.columns if np.isfinite(view.value(column.name)).any()]
    missing = "".join(f" The {role} role could not be tested here." for role in VOITA_ROLES if role not in held)
    return Section(
        view.title,
        [
            f"Roles of {view.value(PREVIOUS).size} heads by the thresholds of Voita et al. (2019): "
            f"{_counts(held)}.{missing}"
        ],
        [
            "Position of the largest weight of each row, ignoring attention to [SEP]. Positional: at the previous or "
            f"the next token in at least {percentage(limits.positional)} of tokens. Syntactic: at the other word of a "
            f"relation, {100 * limits.gain:g} points more often than their most frequent distance is correct. Rare "
            f"words: at one of the text's two rarest tokens in at least {percentage(limits.rare)} of tokens. These are "
            "thresholds, not tests."
        ],
        [table(measured, columns, "Best heads; relations with too few pairs have no threshold")],
        [figure],
    )


def _counts(held: Mapping[str, Mask]) -> str:
    return ", ".join(f"{int(passed_LH.sum())} {role}" for role, passed_LH in held.items())


def _highest(view: MeasureView, name: str, digits: int) -> str:
    value_LH, stderr_LH, _ = view.grid(name)
    top = highest(value_LH)
    return with_error(value_LH[top], stderr_LH[top], digits)


def _presenter(
    section: Callable[[MeasureView], Section | None], held: Callable[[MeasureView], Mapping[str, Mask]], heading: str
) -> Presenter:
    """A section, the roles of each head as text (a dash for none), and the number of heads with each role for W&B."""

    def classes(view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        return {heading: names_by_head(found, next(iter(found.values())).shape)} if (found := held(view)) else {}

    def scalars(view: MeasureView) -> Mapping[str, float]:
        return {f"heads/{role}": float(passed_LH.sum()) for role, passed_LH in held(view).items()}

    return Presenter(section, classes=classes, scalars=scalars)


def _sieve_roles(view: MeasureView) -> Mapping[str, Mask]:
    tests = sieve_tests(view)
    return {role: tests[role] for role in SIEVE_ROLES if role in tests}


SIEVE = _presenter(sieve_section, _sieve_roles, "roles")
VOITA = _presenter(voita_section, voita_roles, "role (Voita)")
