"""Smaller, faster models on pages: speed against score, and what was cut."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.present.figures.style import (
    ACCENTS,
    PAGE_WIDTH,
    chart,
    footnote,
    score_change,
)
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.pruning import kept_classes, lost_most_in_words, ruled_out_in_words, search_in_words
from bertsecrets.present.report.content import FigureBlock, NextStep, Section, Table, table
from bertsecrets.pruning.rows import Group, Layer, MetricTest, ShrinkSearch, Shrunk, Smaller
from bertsecrets.pruning.settings import SPEEDUPS, ShrinkSettings
from bertsecrets.results.files import copied
from bertsecrets.results.formatting import (
    MISSING,
    counted,
    level_text,
    metric_label,
    number,
    p_value,
    percentage,
    points,
    rounded_up,
)
from bertsecrets.results.run import Run
from bertsecrets.results.scores import RunScores
from bertsecrets.results.views import MeasureView
from bertsecrets.task_heads import unit_of


def section(view: MeasureView) -> Section | None:
    """The fastest model as text, speed against score, and the kept parts of each layer; None without a search."""
    shrunk = Shrunk.of(view)
    if shrunk is None:
        return None
    lengths = lost_most_in_words(shrunk.written.groups, "length").removeprefix("; ")
    return Section(
        view.title,
        [
            f"{answer_in_words(shrunk)} It is in the folder {shrunk.folder}, with a model card.",
            # Lengths are not tested.
            *([f"By text length: {lengths}."] if lengths else []),
        ],
        [how_in_words(shrunk.search)],
        [frontier_table(shrunk), tests_table(shrunk), groups_table(shrunk)],
        [
            FigureBlock(
                view.name,
                _frontier(shrunk, RunScores.read(view.run.scores_path)),
                "Each point is a smaller model; bars are one-sided limits of the change of score at the stated "
                "confidence.",
                "Chart: change of the score by measured speed-up.",
            )
        ],
        summary=summary_in_words(shrunk),
        commands=[_command_of(view.run, attempt) for attempt in shrunk.attempts if not attempt.attempt.int8],
        steps=_steps(view.run, shrunk),
        parts=[_cut_section(shrunk)],
    )


def scalars(view: MeasureView) -> Mapping[str, float]:
    """The speed-up of the fastest model that passed; 1 if none did."""
    shrunk = Shrunk.of(view)
    if shrunk is None:
        return {}
    return {"speedup": 1.0 if shrunk.fastest is None else shrunk.speedup(shrunk.fastest)}


PRESENTER = Presenter(section=section, classes=kept_classes("smaller model"), scalars=scalars)


def summary_in_words(shrunk: Shrunk) -> str:
    """The outcome in a few words, as the title of the page: for the fastest model that passed, or the first one."""
    written, test = shrunk.written, shrunk.written.worst
    speed = number(shrunk.speedup(written), 1)
    if written.attempt.missed:
        speed = f"{number(shrunk.speedup(written), 2)} in place of {written.attempt.asked:g}"
    others = [
        f"; {other.attempt.asked:g} times was missed ({number(shrunk.speedup(other), 2)})"
        for other in shrunk.attempts
        if other.attempt.missed and other is not written
    ]
    return f"{speed} times as fast, {_scores(test)}: {_verdict(written, shrunk.search)}{''.join(others)}."


def _scores(test: MetricTest) -> str:
    return f"{metric_label(test.metric)} {number(test.whole)} → {number(test.smaller)}"


def _verdict(smaller: Smaller, search: ShrinkSearch) -> str:
    """The excluded loss of the scores and within classes, and the class with the largest loss."""
    attempt = smaller.attempt
    bound = max((test.bound for test in smaller.tests), key=lambda bound: math.inf if math.isnan(bound) else bound)
    above = f" (one above {number(rounded_up(bound), 1)} is)" if math.isfinite(bound) and not attempt.ruled_out else ""
    loss = points(search.margin, unit_of(smaller.tests[0].metric))
    verdict = ruled_out_in_words(attempt.ruled_out, search.class_margin, attempt.class_ruled_out, above)
    return f"a loss of {loss} or more {verdict}{lost_most_in_words(smaller.groups)}"


def attempt_in_words(smaller: Smaller, search: ShrinkSearch) -> str:
    """One smaller model in a sentence."""
    attempt = smaller.attempt
    test = smaller.worst if attempt.passed else max(smaller.tests, key=lambda test: test.p_margin)
    missed = f" ({attempt.asked:g} was requested)" if attempt.missed else ""
    return (
        f"{number(smaller.timing(search.batch_size).speedup, 2)} times as fast at batch {search.batch_size}{missed}"
        f"{' with 8-bit weights' * attempt.int8}: {_scores(test)}; {_verdict(smaller, search)}."
    )


def answer_in_words(shrunk: Shrunk) -> str:
    """What the summary leaves out: parts and times of the fastest model that passed, or how many examples would show
    that one does.
    """
    fastest, search = shrunk.fastest, shrunk.search
    if fastest is None:
        tests = shrunk.attempts[0].tests
        needed = max((test.needed for test in tests if test.needed is not None), default=math.inf)
        if not math.isfinite(needed):
            return "No smaller model passed."
        return f"No smaller model passed; about {needed:,.0f} examples would be enough if the loss stays as observed."
    layers, timing = fastest.layers, fastest.timing(search.batch_size)
    heads, neurons = (sum(counts) for counts in zip(*((layer.count, layer.neurons) for layer in layers), strict=True))
    return (
        f"A model {'with 8-bit weights, ' if fastest.attempt.int8 else 'with '}{heads} of "
        f"{len(layers) * search.heads} heads and {percentage(neurons / (len(layers) * search.neurons))} of the "
        f"neurons, {'distilled' if search.epochs else 'refitted'} after the cut, is {number(timing.speedup, 2)} times "
        f"as fast at batch {search.batch_size} ({number(timing.whole, 1)} → {number(timing.smaller, 1)} ms) and "
        f"{number(fastest.timing(1).speedup, 2)} times at batch 1, tested at {level_text(search.confidence)} "
        f"confidence on {counted(search.examples, 'example')}."
    )


def _command(run: Run, **values: Any) -> str:
    """The command of this search with some settings changed."""
    settings = ShrinkSettings.read("shrink", {**run.config().get("shrink", {}), **values})
    default = ShrinkSettings.read("shrink", {})
    # The speed-up comes first.
    in_order = sorted(settings, key=lambda setting: setting[0] != "speedup")
    changed = {name: value for name, value in in_order if value != getattr(default, name)}
    return " ".join([run.analyze_command, *(f"shrink.{name}={copied(value)}" for name, value in changed.items())])


def _command_of(run: Run, smaller: Smaller) -> str:
    """The command that reproduces this model; a failed model passes with the smallest loss that can be excluded."""
    later = float(np.max([test.bound_later for test in smaller.tests]))
    failed = not smaller.attempt.ruled_out and math.isfinite(later)
    return _command(run, speedup=smaller.attempt.asked, **({"max_loss": rounded_up(later)} if failed else {}))


def _steps(run: Run, shrunk: Shrunk) -> list[NextStep]:
    """Next steps: distil a model that failed without distillation, choose another point of the frontier, try 8-bit
    weights.
    """
    attempts, fastest = [smaller.attempt for smaller in shrunk.attempts], shrunk.fastest
    slower = 1.0 if fastest is None else fastest.attempt.asked
    failed = next((other.attempt.asked for other in shrunk.attempts if not (other.holds or other.attempt.int8)), None)
    faster = next((speedup for speedup in SPEEDUPS if speedup > slower), slower + 1)
    takes = "as long as this search"
    other = faster if failed is None else (slower + failed) / 2
    steps = [NextStep("Any other point of the frontier, by its speed-up.", _command(run, speedup=other), takes)]
    if fastest is None and not shrunk.search.epochs:
        taught = _command(run, epochs=ShrinkSettings.read("shrink", {}).epochs)
        steps.insert(
            0, NextStep("Does it pass after distillation from the original model?", taught, "minutes to an hour")
        )
    if fastest and not any(attempt.int8 for attempt in attempts):
        command = _command(run, speedup=fastest.attempt.asked, export=["int8"])
        steps.append(NextStep("How fast is it with 8-bit weights?", command, takes))
    return steps


def _cut_section(shrunk: Shrunk) -> Section:
    """The kept parts of each layer, as a sentence and a table."""
    search, layers = shrunk.search, shrunk.written.layers

    def kept(layer: Layer) -> str:
        return f"{layer.count} of {search.heads} heads, {percentage(layer.neurons / search.neurons)} of the neurons"

    most, least = (
        extreme(layers, key=lambda layer: layer.count / search.heads + layer.neurons / search.neurons)
        for extreme in (max, min)
    )
    return Section(
        "What was cut where",
        [f"Layer {most.layer} keeps the most ({kept(most)}), layer {least.layer} the least ({kept(least)})."],
        tables=[
            table(
                layers,
                {
                    "layer": lambda layer: str(layer.layer),
                    "heads kept": lambda layer: layer.heads or MISSING,
                    "neurons kept": lambda layer: f"{layer.neurons:,} of {search.neurons:,}",
                },
                "What each layer keeps",
            )
        ],
    )


def how_in_words(search: ShrinkSearch) -> str:
    """How the models were built and tested."""
    taught = (
        f", and distilled from the original model on {search.taught_on:,} training "
        f"examples{'' if search.epochs == 1 else f', {search.epochs} times'}"
        if search.epochs
        else ", without training"
    )
    return (
        f"Heads and neurons with the least Fisher information on {search.choosing:,} training examples are removed "
        f"first; their number per layer follows from times measured here (batch {search.batch_size}, {search.length} "
        f"tokens, {counted(search.threads, 'thread')}, {search.device}: {search.processor}). The rest is refitted by "
        f"least squares{taught}. Test examples were not used for this; predictions were computed on the same "
        "processor. Models are tested from the slowest up to the first failure, so that the confidence applies to "
        "all that passed (Maurer, Hothorn and Lehmacher 1995); a model passes if every metric does. "
        f"{search_in_words(search)}"
    ).strip()


def _asked(smaller: Smaller) -> str:
    return f"{number(smaller.attempt.asked, 2)}{', int8' * smaller.attempt.int8}"


def frontier_table(shrunk: Shrunk) -> Table:
    """Requested, predicted and measured speed-ups, and the remaining parts."""
    size = shrunk.search.batch_size

    def predicted(smaller: Smaller, words: Callable[[float], str]) -> str:
        return MISSING if smaller.attempt.predicted is None else words(smaller.attempt.predicted)

    return table(
        shrunk.attempts,
        {
            "asked": _asked,
            "predicted": lambda smaller: predicted(smaller, lambda speed: number(speed, 2)),
            f"measured, batch {size}": lambda smaller: number(shrunk.speedup(smaller), 2),
            "error": lambda smaller: predicted(
                smaller, lambda speed: f"{100 * (speed / shrunk.speedup(smaller) - 1):+.0f} %"
            ),
            "batch 1": lambda smaller: number(smaller.timing(1).speedup, 2),
            "heads": lambda smaller: str(sum(layer.count for layer in smaller.layers)),
            "neurons": lambda smaller: f"{sum(layer.neurons for layer in smaller.layers):,}",
            "parameters": lambda smaller: f"{smaller.attempt.parameters / 1e6:.1f} M",
            "holds": lambda smaller: "yes" if smaller.holds else "no",
        },
        f"Speed-ups of smaller models; the original has {shrunk.search.parameters / 1e6:.1f} M parameters",
    )


def tests_table(shrunk: Shrunk) -> Table:
    """The test of each metric and model."""
    units = " or ".join(dict.fromkeys(unit_of(test.metric) for test in shrunk.attempts[0].tests))
    return table(
        [(smaller, test) for smaller in shrunk.attempts for test in smaller.tests],
        {
            "asked": lambda row: _asked(row[0]),
            "metric": lambda row: row[1].metric,
            "whole": lambda row: number(row[1].whole),
            "smaller": lambda row: number(row[1].smaller),
            f"upper bound on the loss ({units})": lambda row: number(rounded_up(row[1].bound), 1),
            "p": lambda row: p_value(row[1].p_margin),
        },
        "Non-inferiority tests",
        folded=True,
    )


def groups_table(shrunk: Shrunk) -> Table:
    """Accuracy of the written model by class and length, with limits of each difference."""
    columns: dict[str, Callable[[Group], str]] = {
        "examples of": lambda group: group.group,
        "number": lambda group: f"{group.examples:,}",
        "whole": lambda group: number(group.whole),
        "smaller": lambda group: number(group.smaller),
        "change, points": lambda group: f"{group.change:%}",
    }
    level = f"{level_text(shrunk.search.confidence)} limits, simultaneous over classes and over lengths"
    caption = f"Accuracy by class and length, and its change with {level}"
    return table(shrunk.written.groups, columns, caption, folded=True)


def _frontier(shrunk: Shrunk, scores: RunScores) -> Figure:
    """Change of every metric by measured speed-up, starting from the original model."""
    search, fastest = shrunk.search, shrunk.fastest
    speed_A = [1.0, *map(shrunk.speedup, shrunk.attempts)]
    constants = []
    labels = f"times as fast (batch {search.batch_size}, measured)", score_change(shrunk.attempts[0].tests[0].metric)
    with chart(PAGE_WIDTH, 3.6, "Change of score by speed-up", *labels) as (figure, axes):
        for index, metric in enumerate(test.metric for test in shrunk.attempts[0].tests):
            tests = [smaller.tests[index] for smaller in shrunk.attempts]
            change_A = 100 * np.array([0.0, *(test.change for test in tests)])
            limits_2A = 100 * np.array([[0.0, 0.0], *([-test.bound, test.high] for test in tests)]).T
            colour = ACCENTS[index % len(ACCENTS)]
            reach_2A = np.abs(limits_2A - change_A)
            axes.errorbar(speed_A, change_A, reach_2A, fmt="o-", color=colour, capsize=3, label=metric_label(metric))
            constant = next((line.baseline for line in scores.lines() if line.name.endswith(f"/{metric}")), np.nan)
            if np.isfinite(constant):
                change = 100 * (constant - tests[0].whole)
                constants.append(f"{metric_label(metric)} {number(constant)}, {number(change, 1)} {unit_of(metric)}")
                if change > limits_2A.min() - 1:
                    axes.axhline(change, color=colour, linewidth=0.8, linestyle=":")
        for smaller in shrunk.attempts:
            if smaller.attempt.int8:
                axes.annotate("int8", (shrunk.speedup(smaller), 0), (-5, 4), textcoords="offset points", ha="right")
        if fastest is not None:
            place = (shrunk.speedup(fastest), 100 * fastest.worst.change)
            axes.plot(*place, "o", markersize=13, fillstyle="none", color="black", label="taken")
        axes.axhline(0, color="black", linewidth=0.6)
        axes.axhline(-100 * search.margin, color="black", linewidth=0.8, linestyle="--")
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        notes = [f"dashed: the margin; bars: limits at {level_text(search.level)}"]
        if constants:
            notes.append(f"dotted or below: the majority baseline ({'; '.join(constants)})")
        footnote(figure, "; ".join([*notes, f"n = {search.examples:,}"]))
    return figure
