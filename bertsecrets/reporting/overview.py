"""The first screen of a run's page: the answer in a sentence, a grid of heads to ask, and what to do next."""

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertsecrets.ablation.rows import Power, Spared, Swept, Together, found, only
from bertsecrets.data.sources.base import ALL
from bertsecrets.present.disabling import (
    change_in_words,
    lost_at_most,
    points_in_words,
    raises_loss,
    rise_in_words,
    rises_in_words,
    rounded,
    ruled_out_in_words,
)
from bertsecrets.present.report.content import Colouring, HeadColumn, HeadsTogether, NextStep, Overview
from bertsecrets.results.captures import read_examples, read_telling
from bertsecrets.results.components import GROUP, HEAD, LAYER, Row
from bertsecrets.results.disabled import main_rows
from bertsecrets.results.files import copied, on_page
from bertsecrets.results.formatting import (
    MISSING,
    counted,
    each_of,
    level_text,
    listed,
    metric_label,
    number,
    points,
    upper_first,
    with_limits,
)
from bertsecrets.results.run import CAPTURES, INITIAL, PREDICTIONS, Run
from bertsecrets.results.scores import RunScores
from bertsecrets.results.verdicts import (
    BETTER,
    CAN_BE_SPARED,
    DISPENSABLE,
    INCONCLUSIVE,
    NEEDED,
    WORDS,
    bound_in_words,
    joint_limits,
    joint_verdicts,
    needed_in_words,
    shown_verdict,
    unknown_in_words,
)
from bertsecrets.settings import CONF
from bertsecrets.task_heads import of_classes, unit_of

_ANALYSES_START = 15
"""Start-up time of any command in seconds."""

ANNOUNCED = "prints an estimate first"
"""The duration of a command that prints an estimate."""

_ANY_SENTENCE = "The cat sat on the mat."
"""Used if no example with a correct prediction is known."""

Place = TypeVar("Place", int, tuple[int, int])
"""A layer, or a layer and head."""

_BY_NEED = (NEEDED, INCONCLUSIVE, DISPENSABLE, BETTER)

_ROUNDS_TO_ZERO = 0.0005
"""Smaller changes of score are shown as zero points."""

_NAMED_METRICS = 2
"""Metrics listed in a title."""


@dataclass(frozen=True)
class DisabledHeads:
    """Effects of every single head and whole layer at a run's last step, in its first set and mode.

    Args:
        heads: Metric -> (layer, head) -> row of the ablation table, in the task's order of metrics.
        layers: Metric -> layer -> row.
        partial: Whether some heads of the model were not disabled alone.
        together: The score without all heads that can be spared, by metric; empty if they were not disabled together.
        excluded: Upper bound on the loss of any single head by the first metric; None if unknown.
        grouped: Whether groups of heads were disabled too.
    """

    heads: Mapping[str, Mapping[tuple[int, int], Row]]
    layers: Mapping[str, Mapping[int, Row]]
    partial: bool = False
    together: Sequence[Together] = ()
    excluded: float | None = None
    grouped: bool = False

    @classmethod
    def of(cls, run: Run) -> "DisabledHeads | None":
        """The effects of a run; None unless heads were disabled one at a time."""
        rows = main_rows(run.ablation_table())
        heads: dict[str, dict[tuple[int, int], Row]] = {}
        layers: dict[str, dict[int, Row]] = {}
        for row in HEAD.of(rows):
            heads.setdefault(row["metric"], {})[row["layer"], row["head"]] = row
        for row in LAYER.of(rows):
            layers.setdefault(row["metric"], {})[row["layer"]] = row
        if not heads:
            return None
        num_layers, num_heads = run.size() or (0, 0)
        partial = len(next(iter(heads.values()))) < num_layers * num_heads
        mode, metric = rows[0]["mode"], next(iter(heads))
        together = [row for row in found(run, Together) if row.mode == mode]
        spared = only(found(run, Spared), Spared, mode=mode, metric=metric)
        excluded = None if spared is None else spared.excluded
        return cls(heads, layers, partial, together, excluded, grouped=bool(GROUP.of(rows)))

    @property
    def first(self) -> list[Row]:
        """The rows of the single heads by the first metric."""
        return list(next(iter(self.heads.values())).values())

    @cached_property
    def verdicts(self) -> dict[tuple[int, int], str]:
        """The verdict on each head over all metrics."""
        return _over_metrics(self.heads)

    @cached_property
    def layer_verdicts(self) -> dict[int, str]:
        """The verdict on each whole layer over all metrics."""
        return _over_metrics(self.layers)

    @cached_property
    def by_need(self) -> dict[tuple[int, int], str]:
        """The verdict on each head over all metrics, the most needed first, then by the loss of the first metric."""
        loss = {(row["layer"], row["head"]): float(np.nan_to_num(row["delta"])) for row in self.first}
        order = sorted(self.verdicts, key=lambda head: (_BY_NEED.index(self.verdicts[head]), loss[head]))
        return {head: self.verdicts[head] for head in order}

    @property
    def any_row(self) -> Row:
        """A row of a single head, for what all rows share."""
        return self.first[0]

    def outcomes_path(self, run: Run) -> Path:
        """The run's file with the logits of these variants."""
        return run.outcomes_path(*(self.any_row[name] for name in ("stage", "step", "mode")))

    @property
    def spared(self) -> list[tuple[int, int]]:
        """The heads that can each be spared, in order."""
        return sorted(head for head, code in self.verdicts.items() if code in CAN_BE_SPARED)

    def title(self) -> str:
        """The answer in one sentence: the heads that are needed, or the most that any head can cost."""
        needed = [head for head, code in self.by_need.items() if code == NEEDED]
        second = self._layers()
        if needed:
            first = self._needed_heads(needed)
            # The joint cost of the others matters only if they cannot all be removed.
            if self.together and self.together[0].change.high < 0:
                second = f"the {len(self.spared):,} that can be spared cost {self._together()}"
        else:
            first = self._cheap_heads() if self.spared else self._bound()
        return upper_first(f"{first}; {second}." if second else f"{first}.")

    def _together(self) -> str:
        """The joint cost or gain, in points, of all heads that can be spared; empty if it was not measured."""
        if not self.together or not np.isfinite(self.together[0].change.value):
            return ""
        first = self.together[0]
        change = first.change
        if abs(change.value) < _ROUNDS_TO_ZERO:
            return "nothing together"
        of_metric = f" of {metric_label(first.metric)}" if len(self.heads) > 1 else ""
        chance = " (not significant)" * (change.low <= 0 <= change.high)
        return f"{points(abs(change.value), unit_of(first.metric))}{of_metric} together{chance}"

    def _layers(self) -> str:
        """How many layers are needed, or the most that any layer can cost; empty if none was disabled."""
        codes = self.layer_verdicts
        if not codes:
            return ""
        needed = sum(code == NEEDED for code in codes.values())
        metric, rows = next(iter(self.layers.items()))
        most = lost_at_most(rows.values())
        if needed or most is None:
            return needed_in_words(needed, counted(len(codes), LAYER.singular, LAYER.plural))
        return bound_in_words(each_of(len(codes), LAYER.singular, LAYER.plural), f"{most}{self._of(metric)}")

    def _of(self, metric: str) -> str:
        """The metric of a bound, if there are several."""
        return f" {unit_of(metric)} of {metric_label(metric)}" if len(self.heads) > 1 else ""

    def _needed_heads(self, needed: Sequence[tuple[int, int]]) -> str:
        """The heads that are needed, and the most that any other head can cost."""
        metric, row = next(
            (metric, min(losses, key=lambda row: float(row["delta"])))
            for metric, rows in self.heads.items()
            if (losses := [rows[head] for head in needed if shown_verdict(rows[head]) == NEEDED])
        )
        _, high = joint_limits(row)
        least = f", at least {number(100 * high, 1, signed=True)}" if high < 0 else ""
        cost = f"({number(100 * row['delta'], 1, signed=True)} {unit_of(metric)} of {metric_label(metric)}{least})"
        name = HEAD.label_of(row)
        most_of_all = f", most of all {name}" if len(needed) > 1 else ""
        verdict = needed_in_words(len(needed), self.judged, "" if most_of_all else name)
        first = f"{verdict}{most_of_all} {cost}"
        # Simultaneous limits are valid for any subset of the heads.
        others = [row for head, row in self.heads[metric].items() if head not in needed]
        most = lost_at_most(others)
        return first if most is None else f"{first}; {self._others(len(others), metric, most)}"

    def _others(self, count: int, metric: str, most: str) -> str:
        """The most that any head costs besides those that were counted."""
        rest = "the other head" if count == 1 else f"each of the other {count:,}"
        return bound_in_words(rest, f"{most}{self._of(metric)}")

    def _cheap_heads(self) -> str:
        """The heads that can each be spared; unless they were disabled together, also the most that any can cost."""
        margin, most, spared, judged = self.any_row["margin"], self.most_lost, len(self.spared), len(self.verdicts)
        heads = self.each if spared == judged else f"{spared:,} of {self.judged}"
        several = spared > 1 and spared < judged
        metrics = list(map(metric_label, self.heads))
        named = listed(metrics) if len(metrics) <= _NAMED_METRICS else f"each of {len(metrics)} metrics"
        units = dict.fromkeys(map(unit_of, self.heads))
        if margin is None:
            cheap = f"{heads} can {'each ' * several}be spared"
        else:
            limits = f"{' or '.join(points(margin, unit) for unit in units)} of {named}"
            cheap = f"{heads} {'each cost' if several else 'costs'} less than {limits}"
        if together := self._together():
            change = self.together[0].change
            adding = "and add" if change.value >= _ROUNDS_TO_ZERO else "but" if change.high < 0 else "and"
            return f"{cheap}, {adding} {together}"
        if most is None or spared == judged:
            return cheap
        return f"{cheap}; {self._others(judged - spared, self.any_row['metric'], most)}"

    def _bound(self) -> str:
        """The most that a head can cost, if none is needed and none can be spared."""
        first = self.any_row["metric"]
        undefined = f"{metric_label(first)} is undefined without some heads"
        for metric, rows in self.heads.items():
            most = self.most_lost if metric == first else lost_at_most(rows.values())
            if most is not None:
                bound = bound_in_words(self.each, f"{most} {unit_of(metric)} of {metric_label(metric)}")
                return bound if metric == first else f"{bound}; {undefined}"
        rises = [(row["loss_high_simultaneous"], row["loss_baseline"]) for row in self.first]
        if any(high is None or not baseline for high, baseline in rises):
            return f"no bound for {self.judged}, because {undefined}"
        rise = math.ceil(100 * max(0.0, *(high / baseline for high, baseline in rises)))
        return f"{self.each} raises the mean loss by at most {rise:,} %; {undefined}"

    @property
    def most_lost(self) -> str | None:
        """Upper bound on the loss of any single head by the first metric, in points; None if undefined."""
        return lost_at_most(self.first, self.excluded)

    @property
    def judged(self) -> str:
        """The number of heads with a verdict, in words: all heads of the model, or the tested ones."""
        heads = counted(len(self.verdicts), "head")
        return f"the {heads} tested" if self.partial else heads

    @property
    def each(self) -> str:
        """The same as the subject of a sentence about each of them."""
        return f"{'each of ' * (len(self.verdicts) > 1)}{self.judged}"

    def notes(self) -> list[str]:
        """How verdicts are reached, heads needed by the mean loss, and verdicts by metric where metrics disagree."""
        first = self.any_row
        together = "" if first["low_simultaneous"] is None else "simultaneous "
        wider = "" if self.excluded is None else ", wider than the bound on any head, which is one-sided"
        notes = [
            f"Can be spared: {ruled_out_in_words(first)}; needed: the loss is significant. Intervals: {together}"
            f"{level_text(first['level'])}{wider}; verdicts are corrected for {len(self.verdicts):,} heads.",
            # A head may raise the loss without changing a prediction. Which of the two leads is told in its section.
            *rises_in_words(self.first)[:1],
        ]
        counts = {metric: Counter(map(shown_verdict, rows.values())) for metric, rows in self.heads.items()}
        if len({tuple(count[code] for code in WORDS) for count in counts.values()}) > 1:
            by_metric = "; ".join(
                f"{metric_label(metric)} "
                + ", ".join(f"{count[code]} {word}" for code, word in WORDS.items() if count[code])
                for metric, count in counts.items()
            )
            notes.append(
                f"The metrics disagree: {by_metric}. A head is needed if any metric shows a loss, and can be spared if "
                "every metric rules one out."
            )
        return notes

    def colourings(self) -> list[Colouring]:
        """Verdicts over all metrics with the numbers of the first, then verdicts by metric."""
        num_layers, num_heads = (1 + max(head[axis] for head in self.verdicts) for axis in (0, 1))
        joint = [("verdict over all metrics", next(iter(self.heads)))] if len(self.heads) > 1 else []
        colourings = []
        for verdict, metric in (*joint, *(("verdict", metric) for metric in self.heads)):
            over_metrics = verdict != "verdict"
            value_LH = np.full((num_layers, num_heads), np.nan)
            code_LH = [[""] * num_heads for _ in range(num_layers)]
            for (layer, head), row in self.heads[metric].items():
                value_LH[layer, head] = 100 * row["delta"]
                code_LH[layer][head] = self.verdicts[layer, head] if over_metrics else shown_verdict(row)
            rows = self.layers.get(metric, {})
            codes = {
                layer: self.layer_verdicts[layer] if over_metrics else shown_verdict(rows[layer]) for layer in rows
            }
            layers = [
                (100 * rows[layer]["delta"], codes[layer]) if layer in rows else (math.nan, "")
                for layer in range(num_layers)
            ]
            label = f"{verdict}; change of {metric_label(metric)} without the head ({unit_of(metric)})"
            colourings.append(Colouring(label, value_LH, code_LH, layers if rows else (), signed=True))
        return colourings

    def about(self, head: tuple[int, int]) -> list[str]:
        """The verdict on a head, and the change of each metric without it."""
        if head not in self.verdicts:
            return ["This head was not disabled."]
        lines = [WORDS[self.verdicts[head]]]
        for metric, rows in self.heads.items():
            row = rows[head]
            if not np.isfinite(row["delta"]):
                lines.append(f"{metric_label(metric)} without it is undefined.")
                continue
            changed = (
                f"; {round(row['flips'] * row['count'])} of {row['count']:,} predictions change"
                if of_classes(metric)
                else ""
            )
            lines.append(f"{metric_label(metric)} without it: {points_in_words(row)}{changed}.")
        if raises_loss(row):
            lines.append(f"The mean loss rises significantly without it: {rise_in_words(row)}.")
        return lines

    @property
    def start(self) -> tuple[int, int]:
        """The head to look at first: the most needed one with a defined loss."""
        defined = {(row["layer"], row["head"]) for row in self.first if np.isfinite(row["delta"])}
        return next((head for head in self.by_need if head in defined), next(iter(self.by_need)))


def _over_metrics(rows: Mapping[str, Mapping[Place, Row]]) -> dict[Place, str]:
    """The verdict on each head or layer over all metrics."""
    codes = joint_verdicts([row for of_metric in rows.values() for row in of_metric.values()])
    return {place: codes[row["variant"]] for place, row in next(iter(rows.values()), {}).items()}


def overview(
    run: Run,
    scores: RunScores,
    disabled: DisabledHeads | None,
    heads: HeadsTogether | None,
    first_head: tuple[int, int] | None = None,
) -> Overview | None:
    """The first screen of a run's page; None for a run without a number of any head.

    Args:
        run: The run.
        scores: Its scores.
        disabled: The effects of its disabled heads, if any.
        heads: All that is known about each head.
        first_head: The head of the page's first finding, selected if no heads were disabled.
    """
    if heads is None:
        return None
    numbers, texts = ([column for column in heads.columns if column.is_number == kind] for kind in (True, False))
    # Verdicts already include the changes of score.
    numbers = [column for column in numbers if disabled is None or not column.effects]
    scales = [
        Colouring(
            f"{column.title}: {column.label}",
            column.value_LH,
            digits=_digits(column.value_LH),
            signed=bool(np.nanmin(column.value_LH, initial=0.0) < 0),
            effects=column.effects,
        )
        for column in numbers
    ]
    colourings = [*([] if disabled is None else disabled.colourings()), *scales]
    if not colourings:
        return None
    # The first number of each experiment; the others are among the colourings.
    keys = {column.key for column in numbers}
    first: dict[str, HeadColumn] = {}
    for column in heads.main:
        if column.is_number and column.key in keys:
            first.setdefault(column.experiment, column)
    about = {
        head: [
            *([] if disabled is None else disabled.about(head)),
            *(
                f"{column.title}: {column.label} "
                f"{number(float(column.value_LH[head]), 0 if _whole(column.value_LH) else 3)}."
                for column in first.values()
            ),
            *(
                f"{column.title}: {column.value_LH[head]}."
                for column in texts
                if column.name != "verdict" and column.value_LH[head] != MISSING
            ),
        ]
        for head in heads.heads
    }
    return Overview(
        summary=scores_in_words(scores),
        notes=[] if disabled is None else [*together_in_words(disabled), *disabled.notes()],
        colourings=colourings,
        about=about,
        start=disabled.start if disabled is not None else first_head or _extreme(numbers[0]),
        examples=read_telling(run.folder / "ablation"),
    )


def together_in_words(disabled: DisabledHeads) -> list[str]:
    """The score without all heads that can each be spared; empty if it was not measured."""
    together = disabled.together
    if not together:
        return []
    parts = [
        f"{metric_label(row.metric)} is {number(row.score)}, {change_in_words(row.change, unit_of(row.metric))}"
        for row in together
    ]
    first = together[0]
    heads = first.heads.split()
    alone = sum(row["delta"] for row in disabled.heads[first.metric].values() if row["heads"] in heads)
    return [
        f"Without all {len(heads)} heads that can be spared, {' and '.join(parts)}, on the examples that selected "
        f"them; their single effects on {metric_label(first.metric)} add up to {number(100 * alone, 1, signed=True)}."
    ]


def _prune(run: Run) -> str:
    return f"{_learning(run)} analysis=prune"


def _learning(run: Run) -> str:
    """The start of a command that selects heads on other rows than it tests them on."""
    evaluation = (run.config().get("task") or {}).get("evaluation") or {}
    return f"{run.analyze_command}{' data.eval_fraction=0.5' if ALL in evaluation.values() else ''}"


def scores_in_words(scores: RunScores) -> str:
    """Each score with its interval and the majority baseline."""
    parts = []
    for line in scores.lines():
        constant = f", majority baseline {number(line.baseline)}" if np.isfinite(line.baseline) else ""
        parts.append(f"{line.name} {with_limits(line.value, line.low, line.high)}{constant}")
    if not parts:
        return ""
    answer = f" The majority baseline always answers “{scores.constant_answer}”."
    examples = next(iter(scores.sets.values())).count
    return f"On {examples:,} examples: {'; '.join(parts)}.{answer}"


def next_steps(
    run: Run, disabled: DisabledHeads | None, experiments: Container[str] = (), *, learned: bool | None = None
) -> list[NextStep]:
    """Three commands, each with the question that it answers.

    Args:
        run: The run.
        disabled: The effects of its disabled heads, if any.
        experiments: Names of the run's experiments.
        learned: Whether the model beats the majority baseline; None if unknown.
    """
    if run.config().get("checkpoint") == INITIAL:
        model = (run.config().get("model") or {}).get("name")
        if not (CONF / "model" / f"{model}.yaml").is_file():
            return []
        train = f"python -m bertsecrets train model={model}"
        needed = NextStep("Which heads does it need after fine-tuning?", train, ANNOUNCED)
        return [needed, view_step("each head", f"model={model}")]
    if run.of_own_module:
        # No command loads such a model.
        unsettled = 0 if disabled is None else sum(code == INCONCLUSIVE for code in disabled.verdicts.values())
        return [] if disabled is None or not unsettled else [_tell_more(run, disabled, unsettled)]
    command = run.analyze_command
    view = view_step("each head", f"checkpoint={run.analysed}", run)
    attended = NextStep("What do heads attend to?", f"{command} measure=[entropy,patterns,offsets]", "about a minute")
    open_questions = [attended] if "entropy" not in experiments else []
    if learned is False:
        # Needed heads and smaller models make no sense if the model learned nothing.
        return [*_trained_longer(run), *open_questions, view]
    faster = NextStep("How fast can it get?", f"{_learning(run)} shrink.speedup=2", "a few minutes")
    if disabled is None:
        trained = run.config().get("trained") or {}
        if not (Path(trained.get("folder") or run.folder) / run.ablation_path.name).is_file():
            task = run.config()["task"]
            labelled = bool(task.get("labels") or task.get("label_range"))
            needed = NextStep("Which heads does the model need?", f"{command} analysis=disable", ANNOUNCED)
            return [*[needed] * labelled, *open_questions, view]
        prune = NextStep("How many heads can be removed together?", _prune(run), ANNOUNCED)
        pruned = [prune] * ("pruning" not in experiments)
        smaller = [*pruned, *([faster] if "shrinking" not in experiments else [])]
        return [*[*smaller, *open_questions][:2], view]
    spared = len(disabled.spared)
    unsettled = sum(code == INCONCLUSIVE for code in disabled.verdicts.values())
    if "cosine_change" in experiments:
        # A sentence-embedding model is not pruned, and its heads are not grouped.
        return [*([_tell_more(run, disabled, unsettled)] if unsettled else []), *open_questions, view]
    some = disabled.partial and spared < len(disabled.verdicts)
    together = (
        f"{f'{spared} of {disabled.judged}' if some else f'These {spared} heads'} can each be spared. "
        "How many can be removed together?"
        if spared > 1
        else "How small can the model get?"
    )
    second = (
        _tell_more(run, disabled, unsettled)
        if unsettled
        else faster
        if disabled.grouped
        else NextStep("Which heads can replace each other?", f"{command} analysis=redundancy", ANNOUNCED)
    )
    return [faster if "pruning" in experiments else NextStep(together, _prune(run), ANNOUNCED), second, view]


def _trained_longer(run: Run) -> list[NextStep]:
    """The command that trains a built-in model and task longer; none for other models or tasks."""
    config = run.config()
    names = {section: (config.get(section) or {}).get("name") for section in ("model", "task")}
    epochs = (config.get("trainer") or {}).get("max_epochs")
    own = names["model"] == "folder" or (config.get("data") or {}).get("path") is not None
    known = all((CONF / section / f"{name}.yaml").is_file() for section, name in names.items())
    if own or not known or not isinstance(epochs, int):
        return []
    words = " ".join(f"{section}={copied(name)}" for section, name in names.items())
    command = f"python -m bertsecrets train {words} trainer.max_epochs={2 * epochs}"
    return [NextStep(f"Does it learn in {2 * epochs} epochs, on all training rows?", command, ANNOUNCED)]


def _tell_more(run: Run, disabled: DisabledHeads, unsettled: int) -> NextStep:
    """How to settle the heads without a verdict: with more of the run's own examples if there are enough, else by a
    plan with another margin.
    """
    row = disabled.any_row
    power, swept = only(found(run, Power), Power, mode=row["mode"]), only(found(run, Swept), Swept, mode=row["mode"])
    heads = f"{unknown_in_words(unsettled, HEAD.singular)}."
    examples = None if power is None else power.examples
    settles = (
        ""
        if examples is None
        else f" About {rounded(examples):,} examples would settle {'80 % of them' if unsettled > 1 else 'it'}"
    )
    whole = 0 if swept is None else swept.whole or 0
    disable = f"{run.analyze_command} analysis=disable"
    if examples is not None and examples <= whole:
        about = min(rounded(examples), whole)
        return NextStep(
            f"{heads}{settles}; the evaluation set has {whole:,}.",
            f"{disable} ablation.max_examples={about}",
            ANNOUNCED,
        )
    limited = (run.config().get("data") or {}).get("limit_eval") is not None
    if examples is not None and limited and not whole and not run.of_own_module:
        return NextStep(
            f"{heads}{settles}; this run took a sample of {row['count']:,} (data.limit_eval).",
            f"{disable} data.limit_eval=null",
            ANNOUNCED,
        )
    plan = f"python -m bertsecrets plan runs={on_page(run.folder)}"
    if row["margin"] is None:
        return NextStep(f"{heads} How many examples would settle them?", f"{plan} margin=1", "about half a minute")
    if power is None:
        return NextStep(f"{heads} More examples, more seeds, or another margin?", plan, "about half a minute")
    margin = 200 * power.margin
    has = f"; the evaluation set has {whole or row['count']:,}" if settles else ""
    return NextStep(
        f"{heads}{settles}{has}{'.' * bool(settles)} More seeds, or a margin of {number(margin, 1)} points?",
        f"{plan} margin={margin:g}",
        "about half a minute",
    )


def view_step(heads: str, model: str, run: Run | None = None) -> NextStep:
    """The command that shows attention in a sentence.

    Args:
        heads: The heads to show, in words.
        model: The setting that selects the model.
        run: The run, for a captured sentence that the model classifies correctly; None for any sentence.
    """
    question = f"What does {heads} attend to in your own sentence?"
    texts = [_ANY_SENTENCE] if run is None else _right_example(run)
    text = f'"{texts[0]}"' if texts == [_ANY_SENTENCE] else copied(texts[0] if len(texts) == 1 else texts)
    return NextStep(question, f"python -m bertsecrets view {model} text={text}", f"about {_ANALYSES_START} s")


def _right_example(run: Run) -> Sequence[str]:
    """The shortest captured example that the model classifies correctly, else any sentence."""
    trained = run.config().get("trained") or {}
    folder = Path(trained.get("folder") or run.folder)
    sets = sorted((folder / PREDICTIONS).glob("*.parquet"))
    if not sets:
        return [_ANY_SENTENCE]
    rows = pq.read_table(sets[0]).to_pylist()
    right = {
        row["index"]
        for row in rows
        if (logits := [value for name, value in row.items() if name.startswith("logit_")])
        and (len(logits) == 1 or row["label"] == logits.index(max(logits)))
    }
    texts = [example.texts for example in read_examples(folder / CAPTURES) if example.index in right]
    return min(texts, key=lambda each: sum(map(len, each)), default=[_ANY_SENTENCE])


def _extreme(column: HeadColumn) -> tuple[int, int]:
    """The head with the highest number; for changes of a score, the lowest."""
    value_LH = np.nan_to_num(-column.value_LH if column.effects else column.value_LH, nan=-np.inf)
    layer, head = np.unravel_index(int(value_LH.argmax()), value_LH.shape)
    return int(layer), int(head)


def _digits(value_LH: NDArray[np.float64]) -> int:
    """Decimals that fit most cells of a grid: two for numbers up to one, none for counts, else one."""
    if _whole(value_LH):
        return 0
    return 2 if np.nanmax(np.abs(value_LH), initial=0.0) <= 1 else 1


def _whole(value_LH: NDArray[np.float64]) -> bool:
    """Whether all numbers are whole, and some are not 0 or 1."""
    defined_N = value_LH[np.isfinite(value_LH)]
    return bool((defined_N == defined_N.round()).all() and np.abs(defined_N).max(initial=0.0) > 1)
