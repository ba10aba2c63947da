"""The experiment of a smaller, faster model: how it is declared and described."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertsecrets.grid import Column, Shown
from bertsecrets.present.figures.style import ACCENTS, PAGE_WIDTH, POINTS, QUIET, footnote, house_style, new_figure
from bertsecrets.present.report.content import FigureBlock, NextStep, Section, Table
from bertsecrets.pruning.columns import KEPT, kept_classes
from bertsecrets.pruning.experiment import change_of_group, in_points, lost_most_in_words
from bertsecrets.pruning.searches import search_in_words
from bertsecrets.pruning.settings import SPEEDUPS, ShrinkSettings
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.files import copied
from bertsecrets.results.formatting import MISSING, number, p_value, rounded_up
from bertsecrets.results.run import Run
from bertsecrets.results.scores import RunScores
from bertsecrets.results.views import MeasureView


class Shrinking(Experiment):
    """Heads and neurons removed by measured time: speed against score, what was cut, and the fastest model that holds."""

    name = "shrinking"
    title = "A smaller, faster model"
    columns = (Column(KEPT, "kept in the smaller model, or in the last one tried", "1: kept", (0, 1)),)
    shown = Shown(reads_task=True)

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """The fastest model in words, speed against score, and what each layer keeps."""
        content = view.extras
        if not content:
            return None
        attempts = content["attempts"]
        shown = shown_of(attempts)
        frontier = FigureBlock(
            cls.name,
            _frontier(content, RunScores.read(view.run.scores_path)),
            "Each point is a smaller model; bars are one-sided limits of the change of score at the stated confidence.",
            "Chart: change of the score by measured speed-up.",
        )
        return Section(
            cls.title,
            [
                f"{answer_in_words(content)} It is in the folder {folder_of(attempts)}, with a model card.",
                *_longest_lost(shown),
            ],
            [how_in_words(content)],
            [frontier_table(content), tests_table(content), groups_table(shown, content["confidence"])],
            [frontier],
            summary=summary_in_words(content),
            commands=[_command_of(view.run, attempt) for attempt in attempts if not attempt["int8"]],
            steps=_steps(view.run, content),
            parts=[_cut_section(shown, content)],
        )

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """Whether the smaller model keeps each head."""
        return kept_classes(view, "smaller model")

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """The speed-up of the fastest model that holds; 1 if none does."""
        if not view.extras:
            return {}
        fastest = fastest_of(view.extras["attempts"])
        return {"speedup": 1.0 if fastest is None else speedup_of(fastest, view.extras["table"]["batch_size"])}


def summary_in_words(content: Mapping[str, Any]) -> str:
    """The outcome in a few words, the title of the page: of the fastest model that holds, or of the first one."""
    attempts, size = content["attempts"], content["table"]["batch_size"]
    attempt = shown_of(attempts)
    test = min(attempt["tests"], key=lambda test: test["smaller"] - test["whole"])
    speed = number(speedup_of(attempt, size), 1)
    if is_missed(attempt):
        speed = f"{number(speedup_of(attempt, size), 2)} in place of {attempt['asked']:g}"
    others = [
        f"; {other['asked']:g} times was missed ({number(speedup_of(other, size), 2)})"
        for other in attempts
        if is_missed(other) and other is not attempt
    ]
    return (
        f"{speed} times as fast, {test['metric']} {number(test['whole'], 3)} → {number(test['smaller'], 3)}: "
        f"{_verdict(attempt, content)}{lost_most_in_words(attempt.get('classes', ()))}{''.join(others)}."
    )


def is_missed(attempt: Mapping[str, Any]) -> bool:
    """Whether a model, once finished, is slower than was asked for."""
    return bool(attempt.get("missed"))


def holds(attempt: Mapping[str, Any]) -> bool:
    """Whether a model passed its tests and is as fast as was asked for."""
    return attempt["passed"] and not is_missed(attempt)


def fastest_of(attempts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The last attempt that holds; None if none does."""
    return next(filter(holds, reversed(attempts)), None)


def shown_of(attempts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The fastest attempt that holds, or else the first one: the one that is written."""
    return fastest_of(attempts) or attempts[0]


def folder_of(attempts: Sequence[Mapping[str, Any]]) -> str:
    """Name of the smaller model's folder within the run's; it tells whether the model holds."""
    return "shrunk" if fastest_of(attempts) else "shrunk_failed"


def speedup_of(attempt: Mapping[str, Any], batch_size: int) -> float:
    """Measured time of the whole model over that of the smaller one."""
    latency = attempt["latency"][str(batch_size)]
    return float(latency["whole"] / latency["smaller"])


def _verdict(attempt: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """What loss is ruled out, of the scores and within classes."""
    # Results of earlier versions tested no classes.
    ruled_out, of_class = attempt.get("ruled_out", attempt["passed"]), attempt.get("class_ruled_out")
    bound = max(
        (test["bound"] for test in attempt["tests"]), key=lambda bound: math.inf if math.isnan(bound) else bound
    )
    above = f" (one above {number(rounded_up(bound), 1)} is)" if math.isfinite(bound) and not ruled_out else ""
    text = f"a loss of {in_points(content['margin'])} or more is {'' if ruled_out else 'not '}ruled out{above}"
    if of_class is None:
        return text
    within = f"one of {in_points(content['class_margin'])} of accuracy within a class"
    if of_class == ruled_out:
        return f"{text}, {'as is' if of_class else 'nor is'} {within}"
    return f"{text}, {within} is{'' if of_class else ' not'}"


def attempt_in_words(attempt: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """One smaller model in a sentence."""
    size = content["table"]["batch_size"]
    worst = min(
        attempt["tests"], key=lambda test: test["smaller"] - test["whole"] if attempt["passed"] else -test["p_value"]
    )
    missed = f" ({attempt['asked']:g} was asked for)" if is_missed(attempt) else ""
    return (
        f"{number(speedup_of(attempt, size), 2)} times as fast at batch {size}{missed}{' with 8-bit weights' * attempt['int8']}: "
        f"{worst['metric']} {number(worst['whole'], 3)} → {number(worst['smaller'], 3)}; {_verdict(attempt, content)}"
        f"{lost_most_in_words(attempt.get('classes', ()))}."
    )


def answer_in_words(content: Mapping[str, Any]) -> str:
    """The outcome as a sentence, of the fastest model that holds or of the first one."""
    fastest, table = fastest_of(content["attempts"]), content["table"]
    size = table["batch_size"]
    if fastest is None:
        first = content["attempts"][0]
        needed = [test["needed"] for test in first["tests"] if test["needed"] is not None]
        more = (
            f"; about {max(needed):,.0f} examples would show it if it loses no more than here"
            if needed and np.isfinite(max(needed))
            else ""
        )
        return f"No smaller model holds: {attempt_in_words(first, content)[:-1]}{more}."
    heads, neurons = sum(map(len, fastest["heads"])), sum(fastest["neurons"])
    layers = len(fastest["heads"])
    test = min(fastest["tests"], key=lambda test: test["smaller"] - test["whole"])
    latency = fastest["latency"][str(size)]
    return (
        f"A model {'with 8-bit weights, ' if fastest['int8'] else 'with '}{heads} of {layers * content['total_heads']} heads and "
        f"{neurons / (layers * content['total_neurons']):.0%} of the neurons, {'taught' if content['epochs'] else 'refitted'} after the "
        f"cut, is {number(speedup_of(fastest, size), 2)} times as fast at batch {size} ({number(latency['whole'], 1)} → "
        f"{number(latency['smaller'], 1)} ms) and {number(speedup_of(fastest, 1), 2)} times at batch 1: {test['metric']} "
        f"{number(test['whole'], 3)} → {number(test['smaller'], 3)}, and {_verdict(fastest, content)} at "
        f"{content['confidence']:.0%} confidence on {content['judged_on']:,} examples"
        f"{lost_most_in_words(fastest.get('classes', ()))}."
    )


def _command(run: Run, **values: Any) -> str:
    """The command of a search with the settings of this one, but for some values."""
    settings = ShrinkSettings.read("shrink", {**run.config().get("shrink", {}), **values})
    default = ShrinkSettings.read("shrink", {})
    changed = {name: value for name, value in settings if value != getattr(default, name)}
    return " ".join([run.analyze_command, *(f"shrink.{name}={copied(value)}" for name, value in changed.items())])


def _ruled_out(attempt: Mapping[str, Any]) -> float | None:
    """The smallest loss that a further search on the examples would rule out, in points with one decimal; None for an undefined score."""
    bound = float(np.max([test.get("bound_later", test["bound"]) for test in attempt["tests"]]))
    return rounded_up(bound) if math.isfinite(bound) else None


def _command_of(run: Run, attempt: Mapping[str, Any]) -> str:
    """The command that gives this model: one whose score failed holds with the smallest loss that will be ruled out as margin."""
    if attempt.get("ruled_out", attempt["passed"]) or (margin := _ruled_out(attempt)) is None:
        return _command(run, speedup=attempt["asked"])
    return _command(run, speedup=attempt["asked"], max_loss=margin)


def _steps(run: Run, content: Mapping[str, Any]) -> list[NextStep]:
    """How to teach a model that failed untaught, to get another one of the frontier, and 8-bit weights where they were not tried."""
    attempts = content["attempts"]
    fastest = fastest_of(attempts)
    slower = 1.0 if fastest is None else fastest["asked"]
    failed = next((attempt["asked"] for attempt in attempts if not (holds(attempt) or attempt["int8"])), None)
    faster = next((speedup for speedup in SPEEDUPS if speedup > slower), slower + 1)
    takes = "as long as this search"
    other = faster if failed is None else (slower + failed) / 2
    steps = [NextStep("Any other point of the frontier, by its speed-up.", _command(run, speedup=other), takes)]
    if fastest is None and not content["epochs"]:
        taught = _command(run, epochs=ShrinkSettings.read("shrink", {}).epochs)
        steps.insert(0, NextStep("Does it hold once the whole model has taught it?", taught, "minutes to an hour"))
    if fastest and not any(attempt["int8"] for attempt in attempts):
        command = _command(run, speedup=fastest["asked"], export=["int8"])
        steps.append(NextStep("How fast is it with 8-bit weights?", command, takes))
    return steps


def _cut_section(attempt: Mapping[str, Any], content: Mapping[str, Any]) -> Section:
    """What each layer keeps, in a sentence, a table and a chart."""
    heads, neurons = content["total_heads"], content["total_neurons"]
    layers = list(zip(attempt["heads"], attempt["neurons"], strict=True))
    kept_L = [len(kept) / heads + count / neurons for kept, count in layers]
    most, least = (kept_L.index(extreme(kept_L)) for extreme in (max, min))
    kept_in = {
        at: f"{len(layers[at][0])} of {heads} heads, {layers[at][1] / neurons:.0%} of the neurons"
        for at in (most, least)
    }
    rows = [
        [str(layer), " ".join(map(str, kept)) or MISSING, f"{count:,} of {neurons:,}"]
        for layer, (kept, count) in enumerate(layers)
    ]
    return Section(
        "What was cut where",
        [f"Most stays of layer {most} ({kept_in[most]}), least of layer {least} ({kept_in[least]})."],
        tables=[Table(["layer", "heads that stay", "neurons that stay"], rows, "What each layer keeps")],
        figures=[
            FigureBlock(
                f"{Shrinking.name}-kept",
                _kept_figure(attempt, content),
                "What each layer keeps of its heads and of the neurons of its feed-forward part.",
                "Bar chart: share of heads and neurons kept, by layer.",
            )
        ],
    )


def _longest_lost(attempt: Mapping[str, Any]) -> list[str]:
    """The lengths that lose most, which no test speaks of."""
    lost = lost_most_in_words(attempt.get("lengths", ()))
    return [f"Of texts by length,{lost.removeprefix(';')}."] if lost else []


def how_in_words(content: Mapping[str, Any]) -> str:
    table = content["table"]
    taught = (
        f", and taught by the whole model on {content['taught_on']:,} training examples"
        f"{'' if content['epochs'] == 1 else ', ' + str(content['epochs']) + ' times'}"
        if content["epochs"]
        else ", without training"
    )
    return (
        f"Heads and neurons with the least Fisher information on {content['chosen_on']:,} training examples go first; how many of "
        f"each layer, follows from times measured here (batch {table['batch_size']}, {table['length']} tokens, {table['threads']} "
        f"thread{'s' * (table['threads'] != 1)}, {table['device']}). What remains is refitted by least squares{taught}. The examples that judge took no part in it. "
        "Models are tested from the slowest on, up to the first that fails, so that the confidence holds for all that passed "
        f"(Maurer, Hothorn and Lehmacher 1995); a model passes if every metric does. {search_in_words(content)}"
    ).strip()


def _asked(attempt: Mapping[str, Any]) -> str:
    return f"{number(attempt['asked'], 2)}{', int8' * attempt['int8']}"


def frontier_table(content: Mapping[str, Any]) -> Table:
    size = content["table"]["batch_size"]
    rows = []
    for attempt in content["attempts"]:
        measured = speedup_of(attempt, size)
        rows.append(
            {
                "asked": _asked(attempt),
                "predicted": MISSING if attempt["int8"] else number(attempt["predicted"], 2),
                f"measured, batch {size}": number(measured, 2),
                "error": MISSING if attempt["int8"] else f"{100 * (attempt['predicted'] / measured - 1):+.0f} %",
                "batch 1": number(speedup_of(attempt, 1), 2),
                "heads": str(sum(map(len, attempt["heads"]))),
                "neurons": f"{sum(attempt['neurons']):,}",
                "parameters": f"{attempt['parameters'] / 1e6:.1f} M",
                "holds": "yes" if holds(attempt) else "no",
            }
        )
    return Table.of(
        rows, f"Speed-ups of smaller models; the whole one has {content['parameters'] / 1e6:.1f} M parameters"
    )


def tests_table(content: Mapping[str, Any]) -> Table:
    rows = [
        [
            _asked(attempt),
            test["metric"],
            number(test["whole"], 3),
            number(test["smaller"], 3),
            number(rounded_up(test["bound"]), 1),
            p_value(test["p_value"]),
        ]
        for attempt in content["attempts"]
        for test in attempt["tests"]
    ]
    header = ["asked", "metric", "whole", "smaller", "largest loss not ruled out (points)", "p"]
    return Table(header, rows, "Tests of non-inferiority", folded=True)


def groups_table(attempt: Mapping[str, Any], confidence: float) -> Table:
    """Accuracy by class and length, with limits of each difference."""
    rows = [
        [
            row["group"],
            f"{row['examples']:,}",
            number(row["whole"], 3),
            number(row["smaller"], 3),
            change_of_group(row),
        ]
        for kind in ("classes", "lengths")
        for row in attempt.get(kind, ())
    ]
    level = f"{confidence:.0%} limits for all classes together, and for all lengths"
    header = ["examples of", "number", "whole", "smaller", "change, points"]
    return Table(header, rows, f"Accuracy by class and length, and its change with {level}", folded=True)


def _frontier(content: Mapping[str, Any], scores: RunScores) -> Figure:
    """Change of every metric by measured speed-up, from the whole model on."""
    attempts, size = content["attempts"], content["table"]["batch_size"]
    fastest = fastest_of(attempts)
    speed_A = [1.0, *(speedup_of(attempt, size) for attempt in attempts)]
    constants = []
    with house_style():
        figure = new_figure(PAGE_WIDTH, 3.6, "Change of score by speed-up")
        axes = figure.add_subplot()
        for index, metric in enumerate(test["metric"] for test in attempts[0]["tests"]):
            tests = [attempt["tests"][index] for attempt in attempts]
            change_A = 100 * np.array([0.0, *(test["smaller"] - test["whole"] for test in tests)])
            limits_2A = 100 * np.array([[0.0, 0.0], *([-test["bound"], test["high"]] for test in tests)]).T
            colour = ACCENTS[index % len(ACCENTS)]
            reach_2A = np.abs(limits_2A - change_A)
            axes.errorbar(speed_A, change_A, reach_2A, fmt="o-", color=colour, capsize=3, label=metric)
            constant = next((line.baseline for line in scores.lines() if line.name.endswith(f"/{metric}")), np.nan)
            if np.isfinite(constant):
                change = 100 * (constant - tests[0]["whole"])
                constants.append(f"{metric} {number(constant, 3)}, {number(change, 1)} points")
                if change > limits_2A.min() - 1:
                    axes.axhline(change, color=colour, linewidth=0.8, linestyle=":")
        for attempt in attempts:
            if attempt["int8"]:
                axes.annotate("int8", (speedup_of(attempt, size), 0), (-5, 4), textcoords="offset points", ha="right")
        if fastest is not None:
            worst = 100 * min(test["smaller"] - test["whole"] for test in fastest["tests"])
            axes.plot(
                speedup_of(fastest, size), worst, "o", markersize=13, fillstyle="none", color="black", label="taken"
            )
        axes.axhline(0, color="black", linewidth=0.6)
        axes.axhline(-100 * content["margin"], color="black", linewidth=0.8, linestyle="--")
        axes.set_xlabel(f"times as fast (batch {size}, measured)")
        axes.set_ylabel(POINTS)
        axes.grid(linewidth=0.4, alpha=0.5)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        constant_answer = [f"dotted or below: the constant answer ({'; '.join(constants)})"] if constants else []
        footnote(
            figure,
            "; ".join(
                [
                    f"dashed: the loss that matters; bars: limits at {100 * content.get('level', content['confidence']):.4g}%",
                    *constant_answer,
                    f"n = {content['judged_on']:,}",
                ]
            ),
        )
    return figure


def _kept_figure(attempt: Mapping[str, Any], content: Mapping[str, Any]) -> Figure:
    layer_L = np.arange(len(attempt["heads"]))
    with house_style():
        figure = new_figure(
            PAGE_WIDTH,
            2.8,
            f"What the model {number(speedup_of(attempt, content['table']['batch_size']), 1)} times as fast keeps",
        )
        axes = figure.add_subplot()
        axes.bar(
            layer_L - 0.2,
            [100 * len(heads) / content["total_heads"] for heads in attempt["heads"]],
            0.4,
            color=ACCENTS[0],
            label="heads",
        )
        axes.bar(
            layer_L + 0.2,
            [100 * count / content["total_neurons"] for count in attempt["neurons"]],
            0.4,
            color=QUIET,
            label="neurons",
        )
        axes.set_xticks(layer_L)
        axes.set_xlabel("layer")
        axes.set_ylabel("kept (%)")
        axes.set_ylim(0, 105)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
