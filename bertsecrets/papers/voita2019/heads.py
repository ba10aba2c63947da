"""Sections 5 and 6: roles of heads, and pruning by gates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bertsecrets.measures.voita_roles import (
    POSITIONAL,
    PREVIOUS,
    RARE,
    ROLES,
    SYNTACTIC,
    VoitaRoles,
    role_tests,
    roles_of,
)
from bertsecrets.papers.chapter import Answers, Chapter, Claim, PaperRuns, claims_tables, not_learned, without_unlearned
from bertsecrets.papers.voita2019 import published
from bertsecrets.pruning.experiment import curves_of, in_points
from bertsecrets.results.figures.pruning import pruning_curves
from bertsecrets.results.formatting import MISSING, number, p_value
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.scores import LEVEL

_MEASURE = VoitaRoles.name
_MARGIN = 0.01


def roles(runs: PaperRuns) -> Chapter | None:
    """Section 5: positional, syntactic and rare-word heads; None if no run measured these roles."""
    rows = []
    exist = {role: Answers() for role in ROLES}
    for name, (_, replicates) in runs.replicates(_MEASURE).items():
        views = replicates.views
        tests = [role_tests(view) for view in views]
        cells = []
        for role in ROLES:
            told = [test[role] for test in tests if role in test]
            if len(told) < len(tests):
                cells.append(MISSING)
                continue
            # The paper's rare-word heads are in the first layer.
            layers = slice(0, 1 if role == RARE else None)
            exist[role][name] = _exists([(above_LH[layers], below_LH[layers]) for above_LH, below_LH in told])
            reached = [int(roles_of(view)[role].sum()) for view in views]
            cells.append(
                ", ".join(
                    f"{count} ({int(above_LH.sum())})" for count, (above_LH, _) in zip(reached, told, strict=True)
                )
            )
        rows.append([name, str(views[0].value(PREVIOUS).size), *cells])
    if not rows:
        return None
    statements = {
        POSITIONAL: "Some heads are positional.",
        SYNTACTIC: "Some heads are syntactic.",
        RARE: "One head of the first layer attends to rare words.",
    }
    claims = [
        Claim(
            statements[role],
            f"In every seed some head{' of layer 0' * (role == RARE)} is significantly above the threshold (true), or all are "
            f"significantly below it (false): {answers}.",
            answers.everywhere,
        )
        for role, answers in exist.items()
        if answers
    ]
    section = Section(
        "Section 5: roles of heads",
        paragraphs=[
            f"The paper calls a head positional if its highest attention falls on one relative position in {published.POSITIONAL:.0%} "
            "of tokens, and syntactic if it finds a relation 10 points more often than the best fixed position. It gives no "
            "threshold for rare words; here it is half of the tokens, the least share that it reports. The tests are t tests over "
            "texts, corrected over heads."
        ],
        tables=[
            *claims_tables(claims),
            Table(
                ["task", "heads", *ROLES],
                rows,
                "Heads that reach the threshold of a role, by seed, in parentheses those significantly above it; a head can have "
                "several roles",
            ),
        ],
    )
    return Chapter(section, claims)


def _exists(tests: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]]) -> bool | None:
    """Whether some head is above the threshold in every seed; False if all heads are below it in every seed."""
    if all(above.any() for above, _ in tests):
        return True
    return False if all(below.all() for _, below in tests) else None


def gates(runs: PaperRuns) -> Chapter | None:
    """Section 6: how many heads gates leave open; None if no run fitted or learned gates."""
    rows: list[list[str]] = []
    few = Answers()
    blocks: list[FigureBlock] = []
    frozen = runs.replicates("causal_gates")
    for name, (_, replicates) in frozen.items():
        contents = [view.extras for view in replicates.views if view.extras.get("curves")]
        total = int(replicates.views[0].value("pushed_shut").size)
        if not contents:
            continue
        shown = _prunable([content["curves"] for content in contents], total)
        few[name] = shown
        for content in contents[:1]:
            rows += [
                [
                    f"{name}, frozen",
                    f"{row['penalty']:g}",
                    f"{row['kept']} of {total}",
                    MISSING if row["change"] is None else number(100 * row["change"], 1, signed=True),
                    MISSING
                    if row["low"] is None
                    else f"{number(100 * row['low'], 1)} to {number(100 * row['high'], 1)}",
                ]
                for row in content["curves"]
            ]
            blocks.append(_figure(name, content, len(blocks)))
    trained = runs.replicates("gates")
    for name, (_, replicates) in trained.items():
        for view in replicates.views:
            gate_LH = view.value("gate")
            rows.append(
                [f"{name}, fine-tuned", MISSING, f"{int((gate_LH >= 0.5).sum())} of {gate_LH.size}", MISSING, MISSING]
            )
    if not rows:
        return None
    theirs = "; ".join(
        f"{kept} of {total} heads ({data}): {number(change, 2)} BLEU"
        for data, (total, kept, change) in published.PRUNED.items()
    )
    conditions = [condition for condition, _ in (*frozen.values(), *trained.values())]
    few = without_unlearned(runs, conditions, few)
    claims = [
        Claim(
            f"Most heads of the encoder can be pruned with gates at almost no loss ({theirs}).",
            f"With the first model on the path that has fewer than half of the heads, a loss of {in_points(_MARGIN)} or more lies "
            f"outside the interval (true), or with all such models only such losses lie in it (false), in most seeds: {few}. The paper trains the model with its gates; a frozen model cannot adapt.",
            few.everywhere,
        )
    ]
    section = Section(
        "Section 6: pruning attention heads",
        paragraphs=not_learned(runs, conditions),
        tables=[
            *claims_tables(claims),
            Table(
                ["task", "penalty", "heads kept", "change, points", "95 % interval"],
                rows,
                "Heads kept by gates, first seed",
            ),
        ],
        figures=blocks,
    )
    return Chapter(section, claims)


def last_to_go(runs: PaperRuns) -> Chapter | None:
    """Section 6.3: whether heads with a role are pruned last; None without roles and gates of one condition."""
    roles_by_name, gates_by_name = runs.replicates(_MEASURE), runs.replicates("causal_gates")
    rows = []
    last = Answers()
    conditions = []
    for name in roles_by_name:
        if name not in gates_by_name:
            continue
        condition = gates_by_name[name][0]
        seeds = {run.folder: run.seed for run in condition.runs}
        gates_by_run = {view.run.folder: view for view in gates_by_name[name][1].views}
        verdicts: list[bool | None] = []
        for view in roles_by_name[name][1].views:
            gates_view = gates_by_run.get(view.run.folder)
            if gates_view is None:
                continue
            kept_LH = gates_view.value("pushed_shut") >= 0.5
            by_role = roles_of(view)
            special_LH = np.logical_or.reduce(list(by_role.values()))
            table = [
                [int((special_LH & kept_LH).sum()), int((special_LH & ~kept_LH).sum())],
                [int((~special_LH & kept_LH).sum()), int((~special_LH & ~kept_LH).sum())],
            ]
            p = float(stats.fisher_exact(table).pvalue)
            shares = [row[0] / sum(row) if sum(row) else np.nan for row in table]
            verdicts.append(bool(shares[0] > shares[1]) if p <= LEVEL else None)
            rows.append(
                [
                    name,
                    str(seeds[view.run.folder]),
                    *(_kept_of(by_role[role], kept_LH) if role in by_role else MISSING for role in ROLES),
                    *(f"{row[0]} of {sum(row)}" for row in table),
                    *(number(100 * share, 0) for share in shares),
                    p_value(p),
                ]
            )
        if verdicts:
            last[name] = _of_most_seeds(verdicts)
            conditions.append(condition)
    if not rows:
        return None
    last = without_unlearned(runs, conditions, last)
    claims = [
        Claim(
            "Heads with a role are pruned last.",
            "Heads that reach the threshold of a role stay open more often than others when the gates of the frozen model are pushed "
            f"shut (true) or less often (false), by Fisher's exact test in most seeds: {last}.",
            last.everywhere,
        )
    ]
    header = ["task", "seed", *ROLES, "any role", "no role", "any role, %", "no role, %", "p"]
    section = Section(
        "Section 6.3: functions of the heads that are kept",
        paragraphs=not_learned(runs, conditions),
        tables=[
            *claims_tables(claims),
            Table(header, rows, "Heads kept when pushed shut, of those with each role; p: any role against none"),
        ],
    )
    return Chapter(section, claims)


def _kept_of(role_LH: NDArray[np.bool_], kept_LH: NDArray[np.bool_]) -> str:
    return f"{int((role_LH & kept_LH).sum())} of {int(role_LH.sum())}"


def _prunable(curves: Sequence[Sequence[Mapping[str, Any]]], total: int) -> bool | None:
    """Whether fewer than half of the heads do, in most seeds; None where the intervals leave that open.

    Models are tested in the order of the path, up to the first that fails, so that many models are no more chances: one with
    fewer than half of the heads passes only if the first such model does.
    """
    verdicts: list[bool | None] = []
    for rows in curves:
        few = [row for row in rows if row["kept"] < total / 2]
        if not few or any(row["low"] is None for row in few):
            verdicts.append(None)
        elif few[0]["low"] > -_MARGIN:
            verdicts.append(True)
        else:
            verdicts.append(False if all(row["high"] < -_MARGIN for row in few) else None)
    return _of_most_seeds(verdicts)


def _of_most_seeds(verdicts: Sequence[bool | None]) -> bool | None:
    yes, no = verdicts.count(True), verdicts.count(False)
    if yes > len(verdicts) / 2:
        return True
    return False if no > len(verdicts) / 2 else None


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
