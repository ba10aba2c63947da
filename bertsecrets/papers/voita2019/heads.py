"""Sections 5 and 6: roles of heads, and pruning by gates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bertsecrets.measures.roles import role_tests
from bertsecrets.papers.chapter import Answers, Chapter, Claim, PaperRuns, claims_tables, not_learned, without_unlearned
from bertsecrets.papers.voita2019 import published
from bertsecrets.pruning.experiment import curves_of, in_points
from bertsecrets.reporting.conditions import Condition
from bertsecrets.results.figures.pruning import pruning_curves
from bertsecrets.results.formatting import MISSING, number, p_value
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.scores import LEVEL
from bertsecrets.results.views import MeasureView

_ROLES = ("local", "syntactic", "delimiter", "block")
_SPECIAL = ("local", "syntactic")
_MARGIN = 0.01


def roles(runs: PaperRuns) -> Chapter | None:
    """Section 5: positional and syntactic heads; None if no run measured roles."""
    rows = []
    exist = Answers()
    for name, (_, views) in _with(runs, "roles").items():
        tests = [role_tests(view) for view in views]
        counts = {role: [int(test[role].sum()) for test in tests if role in test] for role in _ROLES}
        for role in _SPECIAL:
            if counts[role]:
                # Without a head above the threshold, a weaker role may still be there.
                exist[f"{name}, {role}"] = True if all(counts[role]) else None
        total = next(iter(tests[0].values())).size if tests and tests[0] else 0
        rows.append([name, str(total), *(", ".join(map(str, counts[role])) or MISSING for role in _ROLES)])
    if not rows:
        return None
    claims = [
        Claim(
            "Some heads are positional or syntactic.",
            f"In every seed some head scores significantly above the threshold of the role, by task and role: {exist}.",
            exist.everywhere,
        ),
        Claim(
            "One head of the first layer attends to rare words.",
            "Not judged on this page; measure=voita_roles finds such heads by the paper's numbers.",
            None,
        ),
    ]
    section = Section(
        "Section 5: roles of heads",
        paragraphs=[
            f"The paper calls a head positional if its highest attention falls on one relative position in {published.POSITIONAL:.0%} "
            "of tokens, and syntactic if it finds a relation 10 points more often than the best fixed position. Here, local and "
            "syntactic heads are those of the measure roles (Pande et al. 2021), which come with a test; the measures offsets and "
            "dependency have the paper's numbers."
        ],
        tables=[
            *claims_tables(claims),
            Table(["task", "heads", *_ROLES], rows, "Heads with a role, by seed; a head can have several"),
        ],
    )
    return Chapter(section, claims)


def gates(runs: PaperRuns) -> Chapter | None:
    """Section 6: how many heads gates leave open; None if no run fitted or learned gates."""
    rows: list[list[str]] = []
    few = Answers()
    blocks: list[FigureBlock] = []
    frozen = _with(runs, "causal_gates")
    for name, (_, views) in frozen.items():
        contents = [view.extras for view in views if view.extras.get("curves")]
        total = int(views[0].value("pushed_shut").size)
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
    trained = _with(runs, "gates")
    for name, (_, views) in trained.items():
        for view in views:
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
    roles_by_name, gates_by_name = _with(runs, "roles"), _with(runs, "causal_gates")
    rows = []
    last = Answers()
    conditions = []
    for name in roles_by_name:
        if name not in gates_by_name:
            continue
        condition = gates_by_name[name][0]
        seeds = {run.folder: run.seed for run in condition.runs}
        gates_by_run = {view.run.folder: view for view in gates_by_name[name][1]}
        verdicts: list[bool | None] = []
        for view in roles_by_name[name][1]:
            gates_view = gates_by_run.get(view.run.folder)
            special_LH = _special(view)
            if gates_view is None or special_LH is None:
                continue
            kept_LH = gates_view.value("pushed_shut") >= 0.5
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
            "Heads that are local or syntactic stay open more often than others when the gates of the frozen model are pushed "
            f"shut (true) or less often (false), by Fisher's exact test in most seeds: {last}.",
            last.everywhere,
        )
    ]
    header = ["task", "seed", "with a role: kept", "others: kept", "with a role, %", "others, %", "p"]
    section = Section(
        "Section 6.3: functions of the heads that are kept",
        paragraphs=not_learned(runs, conditions),
        tables=[*claims_tables(claims), Table(header, rows, "Heads kept when pushed shut")],
    )
    return Chapter(section, claims)


def _with(runs: PaperRuns, experiment: str) -> dict[str, tuple[Condition, Sequence[MeasureView]]]:
    """Conditions of pre-trained models with an experiment, by name, with the views of their runs."""
    by_name: dict[str, tuple[Condition, Sequence[MeasureView]]] = {}
    for condition in runs.pretrained:
        replicates = condition.replicates(experiment)
        if replicates is not None:
            by_name[runs.name(condition)] = (condition, replicates.views)
    return by_name


def _special(view: MeasureView) -> NDArray[np.bool_] | None:
    tests = role_tests(view)
    shown = [tests[role] for role in _SPECIAL if role in tests]
    return np.logical_or.reduce(shown) if shown else None


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
