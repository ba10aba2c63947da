"""The page of a plan: how many examples and seeds would settle more heads."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from bertsecrets.ablation.forecast import duration
from bertsecrets.ablation.planner import (
    CORRELATION,
    GROUP_LOSS,
    RANKS,
    REDUNDANT,
    SET,
    SPARED,
    Pilot,
    Planned,
    finite,
    plan_power,
    typical_flips,
)
from bertsecrets.ablation.rows import Swept, found, only
from bertsecrets.ablation.seeds import RunSweep, read_sweep
from bertsecrets.errors import UserError
from bertsecrets.pages.page_view import PageView
from bertsecrets.present.disabling import range_in_words, rounded
from bertsecrets.present.figures.grids import draw_grid, write_in_cells
from bertsecrets.present.figures.style import PAGE_WIDTH, SEQUENTIAL, chart, colour_bar, html_image
from bertsecrets.present.report.content import Report, Section, Table, block
from bertsecrets.reporting.runs import FinishedRun, find_runs
from bertsecrets.results.components import HEAD
from bertsecrets.results.disabled import latest_rows
from bertsecrets.results.files import in_command, write_text
from bertsecrets.results.formatting import counted, have, percentage, points
from bertsecrets.results.run import Run
from bertsecrets.results.scores import RunScores
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED, WORDS
from bertsecrets.statistics.power import POWER

_TITLE = "How many examples, and how many seeds?"

_FALL = 0.05
"""Loss of power with more examples that is beyond chance, and explained on the page."""


@dataclass(frozen=True)
class Costs:
    """Seconds of a training, and of a sweep of the pilot's examples, on the machine that ran the pilots."""

    training: float
    sweep: float

    def of(self, planned: Planned, seeds: int, examples: float) -> float:
        """Seconds of sweeps of so many seeds and examples, and of training the seeds that are not there yet."""
        new = max(0, seeds - len(planned.pilot.change_SV))
        return new * self.training + seeds * self.sweep * examples / planned.pilot.count


class PowerPlan(PageView):
    """What it takes to tell more about heads: prints its answer, plots, shows itself in a notebook and turns into
    pandas.

    Args:
        planned: The simulated power.
        names: The runs that were its pilots.
        costs: What they cost; None if that is not known.
    """

    def __init__(self, planned: Planned, names: Sequence[str] = (), costs: Costs | None = None) -> None:
        self.planned, self.costs = planned, costs
        sections = [_settling(planned, costs), _goals(planned)]
        title = sections[0].headline or _TITLE
        super().__init__(Report(title, ", ".join(names), facts=_facts(planned), sections=sections))

    def __repr__(self) -> str:
        return "\n".join(self.report.lead)

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{line}</p>" for line in self.report.lead)
        return lines + html_image(self.plot(), "share of the open heads settled, by examples and seeds")

    def plot(self) -> Figure:
        """The map of examples and seeds."""
        return self.report.figures[0].figure

    def to_pandas(self) -> Any:
        """The power for each goal, number of seeds and number of examples, as a ``pandas.DataFrame``."""
        return pa.Table.from_pylist(self.rows()).to_pandas()

    def rows(self) -> list[dict[str, Any]]:
        """The same as plain values."""
        planned = self.planned
        powers = [("settled", seeds, power_M) for seeds, power_M in planned.settled.items()]
        powers += [(goal, 1, power_M) for goal, power_M in planned.goals.items()]
        return [
            {"goal": goal, "seeds": seeds, "examples": size, "power": float(power)}
            for goal, seeds, power_M in powers
            for size, power in zip(planned.sizes, power_M, strict=True)
        ]

    def write(self, folder: Path) -> Path:
        """Write the page and its numbers (``plan.html``, ``plan.json``) to a folder; return the page's path."""
        content = {**self.planned.record(), "power": self.rows()}
        write_text(folder / "plan.json", json.dumps(content, indent=1))
        return self.save(folder / "plan.html")


def plan_runs(folders: Sequence[str], margin: float | None = None, repeats: int = 200) -> PowerPlan:
    """Plan from finished runs that disabled heads: one, or several that differ in their seed.

    Args:
        folders: Run folders, or a sweep's folder.
        margin: Largest acceptable loss, in points; None for the runs' own.
        repeats: Simulated sweeps per size.

    Raises:
        UserError: If a run disabled no heads one by one or stopped early, runs differ in more than their seed, or
            :meth:`bertsecrets.ablation.planner.Pilot.of` finds that nothing can be simulated.
    """
    runs, _ = find_runs(folders)
    if len({run.seed for run in runs}) < len(runs):
        raise UserError(
            f"{len(runs)} runs have {len({run.seed for run in runs})} different seeds; give one run per seed, all of "
            "one condition."
        )
    sweeps = [_sweep(run) for run in runs]
    differing = next((sweep for sweep in sweeps if _variants(sweep) != _variants(sweeps[0])), None)
    if differing is not None:
        raise UserError(
            f"Runs '{sweeps[0].name}' and '{differing.name}' did not disable the same heads in the same way; give runs "
            "that differ only in their seed."
        )
    latest = latest_rows(Run.open(runs[0].folder).ablation_table().rows())
    pilot = Pilot.of(sweeps, latest, None if margin is None else margin / 100)
    return PowerPlan(plan_power(pilot, repeats=repeats), [sweep.name for sweep in sweeps], _costs(runs, sweeps))


def _costs(runs: Sequence[FinishedRun], sweeps: Sequence[RunSweep]) -> Costs | None:
    """Mean times of training and of sweeps; None if any is unknown."""
    trainings, seconds = [], []
    for run, sweep in zip(runs, sweeps, strict=True):
        trained, *_ = run.weights
        swept = only(found(Run.open(run.folder), Swept), Swept, mode=sweep.rows[0]["mode"])
        if swept is None or swept.seconds is None or not (trained / "scores.json").is_file():
            return None
        seconds.append(swept.seconds)
        disabling = sum(row.seconds or 0.0 for row in found(Run.open(trained), Swept))
        trainings.append(RunScores.read(trained / "scores.json").seconds - disabling)
    return Costs(float(np.mean(trainings)), float(np.mean(seconds)))


def _sweep(run: FinishedRun) -> RunSweep:
    _, view = run.experiments.get("ablation", (None, None))
    if view is None or not HEAD.of(latest_rows(view.run.ablation_table().rows())):
        raise UserError(
            f"Run '{run.folder}' disabled no heads one by one; run python -m bertsecrets analyze "
            f"checkpoint={in_command(run.folder)} analysis=disable."
        )
    sweep = read_sweep(view, HEAD.name)
    if sweep is None:
        raise UserError(
            f"Run '{run.folder}' has no predictions without its heads (ablation/*.safetensors); disable them again."
        )
    return sweep


def _variants(sweep: RunSweep) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("variant", "mode", "metric", "margin", "correction")) for row in sweep.rows]


def _facts(planned: Planned) -> list[tuple[str, str]]:
    pilot = planned.pilot
    return [
        ("pilot", f"{pilot.count:,} examples, {counted(len(pilot.change_SV), 'seed')}"),
        ("heads", str(len(pilot.layers))),
        ("without a verdict", f"{planned.undecided[1]:.0f}"),
        ("metric", pilot.metric.name),
        ("margin", points(pilot.margin, pilot.metric.unit)),
    ]


def answer(planned: Planned, costs: Costs | None = None) -> str:
    """How many examples and seeds would settle the open heads, in two sentences, with the time if known."""
    undecided, pilot = round(planned.undecided[1]), planned.pilot
    if not undecided and not any(planned.undecided.values()):
        return f"Each of the {len(pilot.layers)} heads has a verdict: {pilot.count:,} examples were enough."
    if not undecided:
        first = f"Each of the {len(pilot.layers)} heads has a verdict in each run."
    else:
        examples = planned.examples(planned.settled[1])
        share = "the head without a verdict"
        if undecided > 1:
            share = f"{percentage(POWER)} of the {undecided} heads without a verdict"
        first = (
            f"To settle {share}: about {rounded(examples):,} examples "
            f"({range_in_words(*map(finite, planned.examples_range()))}), including the pilot's "
            f"{pilot.count:,}{_time(planned, costs, 1, examples)}."
            if math.isfinite(examples)
            else f"Even {planned.sizes[-1]:,} examples settle less than {share}: losses near the margin of "
            f"{points(pilot.margin, pilot.metric.unit)} need very many; a larger margin needs fewer (margin=2)."
        )
    return f"{first} {_seeds_in_words(planned, costs)}"


def _time(planned: Planned, costs: Costs | None, seeds: int, examples: float) -> str:
    """The time needed for these seeds and examples, in parentheses."""
    if costs is None:
        return ""
    new = max(0, seeds - len(planned.pilot.change_SV))
    trainings = f"{counted(new, 'more training run')} and " if new else ""
    sweeps = f"{seeds} sweeps" if seeds > 1 else "a sweep"
    return f" ({trainings}{sweeps}: about {duration(costs.of(planned, seeds, examples))} on this machine)"


def _seeds_in_words(planned: Planned, costs: Costs | None) -> str:
    several = {seeds: planned.examples(power_M) for seeds, power_M in planned.settled.items() if seeds > 1}
    if not several:
        return (
            "To plan seeds as well, for verdicts on the task and not just this model, give several runs that differ "
            "only in their seed."
        )
    if not any(planned.undecided[seeds] for seeds in several):
        return "Over seeds, each head has a verdict as well."
    cost = {
        seeds: seeds * examples if costs is None else costs.of(planned, seeds, examples)
        for seeds, examples in several.items()
    }
    cheapest = min(several, key=lambda seeds: (cost[seeds], seeds))
    count = round(planned.undecided[cheapest])
    open_heads = f"{counted(count, 'head')} {have(count)}"
    them = "it" if count == 1 else f"{percentage(POWER)} of them"
    if math.isinf(several[cheapest]):
        return (
            f"Over seeds, {open_heads} no verdict, and not even {max(several)} seeds with "
            f"{planned.sizes[-1]:,} examples settle {them}."
        )
    with_examples = [seeds for seeds in several if math.isfinite(several[seeds])]
    text = (
        f"Over seeds, {open_heads} no verdict; the cheapest way to settle {them} is {cheapest} "
        f"seeds with about {rounded(several[cheapest]):,} examples "
        f"each{_time(planned, costs, cheapest, several[cheapest])}"
    )
    fewest = min(with_examples)
    helps = several[max(several)] < 0.8 * several[fewest]
    return f"{text}; {'with more seeds, fewer examples suffice' if helps else 'more seeds do not help'}."


def _settling(planned: Planned, costs: Costs | None) -> Section:
    pilot = planned.pilot
    notes = [
        (
            "Simulated: new examples lose and win predictions at rates compatible with the pilot"
            if pilot.metric.flips
            else f"Simulated: changes of {pilot.metric.name} are normal around effects compatible with the pilot"
        )
        + ", and each simulated sweep is tested over all heads like a real one. A head is settled if it is needed or "
        "can be spared.",
        "With one seed a verdict is about one fine-tuned model, with several about the model and the task.",
        "Adding examples to the pilot is a second look, which p-values do not account for; a sweep of new examples "
        "alone is valid.",
    ]
    if any(np.max(power_M) - power_M[-1] > _FALL for seeds, power_M in planned.settled.items() if seeds > 1):
        notes.append(
            "With few seeds, more examples may settle less: once the noise of examples is small, the interval depends "
            "on the spread of the few seeds, whose Student's t limits are wide."
        )
    if pilot.screened:
        notes.append("The pilot is a screened sweep; changed predictions that it missed are not simulated.")
    if pilot.metric.flips and pilot.metric.name != "accuracy":
        notes.append(f"Every changed prediction counts for {pilot.metric.name} like a typical wrong one.")
    title = "Share of the open heads that get a verdict"
    figure = block(
        "plan_map",
        title,
        _map,
        f"{title}, by examples and seeds.",
        planned=planned,
    )
    return Section("What settles the open heads?", [answer(planned, costs)], notes, figures=[figure])


def _goals(planned: Planned) -> Section:
    pilot = planned.pilot
    margin = points(pilot.margin, pilot.metric.unit)
    flips, set_flips = (
        (f" but changes {100 * share:.1f} % of the predictions" for share in (typical_flips(pilot), pilot.set_flips))
        if pilot.metric.flips
        else ("", "")
    )
    meaning = {
        NEEDED: f"{WORDS[NEEDED]}: a head that loses {margin}",
        SPARED: f"{WORDS[DISPENSABLE]}: a head that loses nothing{flips}",
        REDUNDANT: f"redundant: two such heads that lose {points(GROUP_LOSS * pilot.margin, pilot.metric.unit)} "
        f"together, among {pilot.groups} groups",
        RANKS: f"a rank correlation of {CORRELATION:g} within layers with the true effects, over {len(pilot.layers)} "
        "heads",
        SET: f"pruning: a set that loses nothing{set_flips}",
    }
    rows = [
        [meaning[goal], *map(percentage, power_M), _examples(planned, power_M)]
        for goal, power_M in planned.goals.items()
    ]
    sizes = [f"{size:,}" for size in planned.sizes]
    spared, needed = (planned.examples(planned.goals[goal]) for goal in (SPARED, NEEDED))
    finding = (
        f"{_examples_in_words(spared, planned, f'To rule out a loss of {margin} for a head without effect')} "
        f"{_examples_in_words(needed, planned, f'To show that a head worth {margin} is needed')}"
    )
    title = "Power to show each of these, with one seed"
    return Section(
        "What would be found?",
        [finding],
        [],
        [Table(["to show", *sizes, "for 80 %"], rows, f"{title}, by number of examples")],
    )


def _examples_in_words(examples: float, planned: Planned, purpose: str) -> str:
    if math.isinf(examples):
        return f"{purpose}: no number of examples up to {planned.sizes[-1]:,} has {percentage(POWER)} power."
    return (
        f"{purpose}: {'' if examples == planned.sizes[0] else 'about '}{rounded(examples):,} "
        f"examples{' suffice' if examples == planned.sizes[0] else ''}."
    )


def _examples(planned: Planned, power_M: Any) -> str:
    if np.isnan(power_M).all():
        return "–"
    examples = planned.examples(power_M)
    if math.isinf(examples):
        return f"more than {planned.sizes[-1]:,}"
    return f"{rounded(examples):,}" if examples > planned.sizes[0] else f"at most {planned.sizes[0]:,}"


def _map(planned: Planned, *, title: str) -> Figure:
    """Share of the open heads settled, by seeds (rows) and number of examples (columns)."""
    pilot, power_RM = planned.pilot, np.stack(list(planned.settled.values()))
    names = [f"{counted(seeds, 'seed')}, {planned.undecided[seeds]:.0f} open" for seeds in planned.settled]
    note = (
        f"simulated from {pilot.count:,} examples of {counted(len(pilot.change_SV), 'run')}; margin "
        f"{points(pilot.margin, pilot.metric.unit)}; bold: {percentage(POWER)} or more"
    )
    with chart(PAGE_WIDTH, 1.4 + 0.36 * len(names), title, "examples", "", note, grid="") as (figure, axes):
        columns = [f"{size:,}" for size in planned.sizes]
        mesh = draw_grid(axes, power_RM, Normalize(0, 1), SEQUENTIAL, rows=names, columns=columns)
        texts = {(row, column): percentage(power) for (row, column), power in np.ndenumerate(power_RM)}
        write_in_cells(axes, mesh, texts, [cell for cell, power in np.ndenumerate(power_RM) if power >= POWER])
        colour_bar(figure, mesh, axes, "power", aspect=12)
    return figure
