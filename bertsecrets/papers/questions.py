"""Answers to readers' questions besides statements: further tests, controls, blocked attention and groups of heads."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from bertsecrets.ablation.blocking import over_seeds
from bertsecrets.ablation.rows import Blocked
from bertsecrets.papers.lines import Line, tables
from bertsecrets.papers.models import Group, Model, Studied
from bertsecrets.papers.statements.judge import UNMEASURED, UNTOLD, subject_of, taken
from bertsecrets.papers.statements.kinds import KINDS, Correlation
from bertsecrets.papers.statements.sheet import UNLIMITED
from bertsecrets.papers.statements.test import Reading, Test
from bertsecrets.present.disabling import rounded
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.frame_relations import relation_heads
from bertsecrets.present.report.content import FigureBlock, Section
from bertsecrets.present.special_tokens import blocking_table
from bertsecrets.reporting.runs import constant_score
from bertsecrets.results.components import GROUP
from bertsecrets.results.disabled import rows_of
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.formatting import listed
from bertsecrets.results.run import PREDICTIONS, controls, words_of_controls
from bertsecrets.results.scores import LEVEL, score_interval
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED, WORDS
from bertsecrets.results.views import MeasureView
from bertsecrets.settings import CONF
from bertsecrets.statistics.intervals import paired_proportions
from bertsecrets.statistics.replicates import effects_over_seeds

_NONE: Mapping[str, Any] = MappingProxyType({})


def numbers(
    models: Studied,
    tests: Mapping[str, Mapping[str, Any]],
    caption: str,
    heading: str = "number",
    *,
    form: str = "+",
    under: Mapping[str, str] = _NONE,
    paired: bool = False,
    figure: Mapping[str, str] = _NONE,
) -> Section | None:
    """Numbers of fine-tuned models and of models fine-tuned under controls, tested like statements but without
    correction; None if no run has them.

    Args:
        models: The models.
        tests: Label of the number -> its kind of test and settings, the state it is ``about`` (by default ``tuned``),
            and the ``words`` for a number significantly above or below the threshold.
        caption, heading, form: Caption of the table, heading of the column of numbers, and the format of its cells.
        under: Names of controls -> their labels: models under controls are also tested.
        paired: Whether to test the change due to a control, seed by seed: its number minus the usual one,
            conservatively adding both errors.
        figure: ``name``, ``title`` and ``unit`` of a figure of the numbers under controls; empty for none.
    """
    lines: list[dict[str, Any]] = []
    answers: dict[str, list[str]] = {group.name: [] for group in models.tuned}
    for label, settings in tests.items():
        values = dict(settings)
        about, words = values.pop("about", "tuned"), values.pop("words", {})
        test = KINDS[values["kind"]].read(f"test of {label}", {"above": 0.0, **values})
        of_zero = test.model_copy(update={"above": 0.0, "below": None})
        sides: dict[str, int] = {}
        for group in models.tuned:
            controlled = models.controls_of(group) if under else []
            usual: dict[str, Reading] = {}
            # Models trained with gates share the controls of the usual ones.
            for tested in (tested for tested in [group, *controlled] if tested.name not in sides):
                present, _ = taken(subject_of(models, tested, about).sheets, test.reading)
                readings = {sheet.name: reading for sheet, reading in present}
                if not readings:
                    continue
                line = _line(test, [*readings.values()], group, tested.name, label)
                lines.append(line)
                sides[tested.name] = line["side"]
                if tested is group:
                    usual = readings
                elif paired and (both := readings.keys() & usual.keys()):
                    changes = [
                        replace(
                            reading,
                            value=reading.value - usual[seed].value,
                            stderr=reading.stderr + usual[seed].stderr,
                            limits=UNLIMITED,
                        )
                        for seed, reading in readings.items()
                        if seed in both
                    ]
                    line = _line(of_zero, changes, group, f"{tested.name}, minus {group.name}", label)
                    lines.append(line)
                    answers[group.name] += filter(None, [words.get(line["side"])])
            side = sides.get(group.name, "")
            if not paired and (word := words.get(side)):
                by_option = {option_of(control): sides.get(control.name) for control in controlled}
                also = [name for option, name in under.items() if by_option.get(option) == side]
                otherwise = [name for option, name in under.items() if by_option.get(option) not in (side, None)]
                word += f", also with {listed(also)}" if also else ""
                word += f", not significant with {listed(otherwise)}" if otherwise else ""
                answers[group.name].append(word)
    if not lines:
        return None
    columns = {
        "models": "{name}",
        **({"quantity": "{label}"} if len(tests) > 1 else {}),
        heading: f"{{value:{form}}}",
        "95 % interval": f"{{low:{form}}} to {{high:{form}}}",
        "over": "{over}",
    }
    blocks = []
    for name in dict.fromkeys(line["group"] for line in lines) if figure else ():
        rows = [IntervalRow(of["name"], of["value"], of["low"], of["high"]) for of in lines if of["group"] == name]
        if len(rows) > 1:
            note = "lines: 95 % intervals over seeds and examples, or over examples with one seed"
            drawn = interval_rows(rows, title=figure["title"], unit=figure["unit"], note=note)
            caption_of = f"{figure['title']}, {name}."
            blocks.append(FigureBlock(f"{figure['name']}_{name}", drawn, caption_of, "Dots with intervals."))
    # Without a control, there is no difference to test.
    measured = not paired or len({line["name"] for line in lines}) > len({line["group"] for line in lines})
    return Section(
        tables=tables(lines, columns, caption),
        figures=blocks,
        summary=in_few_words({name: "; ".join(words) for name, words in answers.items()}, measured=measured),
    )


def _line(test: Test, readings: Sequence[Reading], group: Group, name: str, label: str) -> dict[str, Any]:
    """A number over seeds with its interval; ``side`` is ``above`` or ``below`` if it differs significantly from the
    threshold, else empty.
    """
    found = test.judge(readings)
    over = "heads" if isinstance(test, Correlation) else "examples"
    return {
        "group": group.name,
        "name": name,
        "label": label,
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "over": f"seeds and {over}" if len(readings) > 1 else over,
        "side": ("above" if found.value > test.threshold else "below") if found.p_value <= LEVEL else "",
    }


def in_few_words(answers: Mapping[str, str], *, measured: bool) -> str:
    """The answers of all models in a few words, grouped by answer."""
    if not measured:
        return UNMEASURED
    words = dict.fromkeys(answer or UNTOLD for answer in answers.values())
    if len(words) < 2:
        return next(iter(words), UNTOLD)
    return "; ".join(
        f"{word} ({', '.join(name for name, answer in answers.items() if (answer or UNTOLD) == word)})"
        for word in words
    )


def option_of(group: Group) -> str:
    """The name of the control under which models were fine-tuned; empty for others."""
    own = controls(group.config)
    for path in sorted((CONF / "control").glob("*.yaml")):
        if controls(yaml.safe_load(path.read_text("utf-8"))) == own:
            return path.stem
    return ""


def blocked(models: Studied, token: str, meanings: Mapping[str, str]) -> Section | None:
    """The score with attention to or from a token blocked in all heads, over seeds; None if no run blocked it.

    Args:
        models: The models.
        token: Name of the token.
        meanings: The verdicts on attention to and from it, separated by a comma -> a summary in a few words.
    """
    paragraphs, shown = [], []
    answers: dict[str, str] = {}
    for group in models.tuned:
        found = [rows for view in group.views("blocking") if (rows := view.found(Blocked))]
        rows = over_seeds(found) if found else []
        both = {row.direction: row for row in rows if row.token == token}
        if both.keys() != {"to", "from"}:
            continue
        verdicts = f"{WORDS[both['to'].verdict]}, {WORDS[both['from'].verdict]}"
        answers[group.name] = meanings.get(verdicts, "")
        changes = "; ".join(f"{direction}: {both[direction].change:+points}" for direction in ("to", "from"))
        paragraphs.append(f"{group.name}: {both['to'].metric} with attention blocked in all heads, {changes}.")
        shown.append(blocking_table(rows, len(found)))
    if not answers:
        return None
    return Section(paragraphs=paragraphs, tables=shown, summary=in_few_words(answers, measured=True))


_REDUNDANT = "redundant"


def groups_by_seed(models: Studied) -> Iterator[Line]:
    """How many groups of heads with similar maps have each verdict, by seed, and how many examples would settle the
    others.
    """
    for group in models.tuned:
        for model in group.learners:
            view = model.view("ablation", ready=lambda view: bool(_tested_groups(view)))
            rows = [] if view is None else _tested_groups(view)
            if not rows:
                continue
            conclusive = {row["heads"]: row["verdict"] for row in rows if row["verdict"] in (DISPENSABLE, NEEDED)}
            conclusive |= {row["heads"]: _REDUNDANT for row in rows if row["redundant"]}
            kinds = Counter(conclusive.values())
            tested = any(row["p_controls"] is not None and math.isfinite(row["p_controls"]) for row in rows)
            # Assuming that the median undecided group has no effect.
            enough = [
                row["count"] * ((row["delta"] - row["low"]) / row["margin"]) ** 2
                for row in rows
                if row["heads"] not in conclusive and row["margin"] and math.isfinite(row["low"])
            ]
            worst = min(rows, key=lambda row: float(row["interaction"]))
            yield {
                "task": group.name,
                "seed": model.seed,
                "examples": rows[0]["count"],
                "groups": len(rows),
                "redundant": kinds[_REDUNDANT] if tested else None,
                "spared": kinds[DISPENSABLE],
                "needed": kinds[NEEDED],
                "undecided": len(rows) - len(conclusive),
                "enough": f"about {rounded(float(np.median(enough))):,}" if enough else None,
                "beyond": Estimate(*(100 * worst[f"interaction{end}"] for end in ("", "_low", "_high"))),
            }


def _tested_groups(view: MeasureView) -> list[dict[str, Any]]:
    """The groups of heads whose members were also disabled singly."""
    return [row for row in rows_of(GROUP, view.run.ablation_table()) if row["interaction"] is not None]


def heads_that_follow(models: Studied) -> Iterator[Line]:
    """How many heads that follow frame relations before fine-tuning are needed afterwards."""
    before = models.before("frame_relations", lambda view: view.has("weight") and view.has("over_position"))
    for group in models.tuned:
        view = next((view for (model, _), view in before.items() if model == group.model), None)
        effect = group.effects("head")
        relation_LH = None if view is None else relation_heads(view)
        if relation_LH is not None and effect is not None:
            needed_LH = effect.needed_LH if effect.judged else None
            yield {
                "task": group.name,
                "follow": int(relation_LH.sum()),
                "heads": relation_LH.size,
                "used": None if needed_LH is None else int((relation_LH & needed_LH).sum()),
                "needed": None if needed_LH is None else int(needed_LH.sum()),
            }


def accuracies(models: Studied) -> Iterator[Line]:
    """The accuracy of fine-tuned models and of those under controls of the data, and of the most frequent class."""
    for group in models.tuned:
        for compared in [group, *_of_data(models, group)]:
            values = [model.first_set.model.get("accuracy", math.nan) for model in compared.models]
            if np.isfinite(values).any():
                interval = score_interval("accuracy", values, compared.models[0].first_set.count)
                line = {"name": compared.name, "accuracy": interval.mean}
                yield {**line, "low": interval.low, "high": interval.high}
        name = next(iter(group.models[0].scores.sets))
        if "accuracy" in group.models[0].first_set.constant:
            yield {"name": "most frequent class", "accuracy": constant_score(group.models, name, "accuracy")}


def _of_data(models: Studied, group: Group) -> list[Group]:
    """The controls that only change the data: one sentence of each pair, or shuffled labels."""
    options = ("first_sentence", "second_sentence", "permuted_labels")
    return [control for control in models.controls_of(group) if option_of(control) in options]


def gains(models: Studied) -> Iterator[Line]:
    """The gain of both sentences over one, paired over examples, and over seeds if there are several."""
    for group in models.tuned:
        for control in _of_data(models, group):
            if option_of(control) == "permuted_labels":
                continue
            alone = {model.seed: _correct(model) for model in control.models}
            pairs = [(_correct(model), alone.get(model.seed, {})) for model in group.models]
            # Use all seeds with the same examples as the first.
            complete = [(both, one) for both, one in pairs if both and both.keys() == one.keys()]
            complete = [(both, one) for both, one in complete if both.keys() == complete[0][0].keys()]
            if complete:
                gain = _gain(np.array([[both[index] - one[index] for index in sorted(both)] for both, one in complete]))
                yield {
                    "name": " · ".join(words_of_controls(controls(control.config))),
                    "gain": 100 * gain.value,
                    "low": 100 * gain.low,
                    "high": 100 * gain.high,
                    "over": "seeds and examples" if len(complete) > 1 else "examples",
                }


def _gain(gain_SN: "np.ndarray[tuple[int, ...], np.dtype[Any]]") -> Estimate:
    """The mean of gains ``[seeds, examples]`` of −1, 0 or 1, with its interval."""
    seeds, count = gain_SN.shape
    if seeds > 1:
        # Seeds on the same examples share their noise, which does not decrease with the number of seeds.
        covariance_SS, own_SS = np.cov(gain_SN) / count, np.eye(seeds, dtype=bool)
        noise = [covariance_SS[part].mean(keepdims=True) for part in (~own_SS, own_SS)]
        effect = effects_over_seeds(gain_SN.mean(axis=1, keepdims=True), *noise, margin=0.0, level=0.95, largest=1.0)
        low, high = (float(limit[0]) for limit in effect.limits)
        return Estimate(float(effect.delta[0]), low, high)
    lost, won = (int((gain_SN[0] == sign).sum()) for sign in (-1, 1))
    # With one seed, both models saw the same examples, and only discordant examples distinguish them.
    low_V, high_V = paired_proportions([lost], [won], count)(np.array([0.025]))
    return Estimate(float(gain_SN.mean()), float(low_V[0]), float(high_V[0]))


def _correct(model: Model) -> dict[int, bool]:
    """Which examples of the first set the model predicts correctly, by index; empty without predicted classes."""
    path = model.parts[0].folder / PREDICTIONS / f"{next(iter(model.scores.sets))}.parquet"
    if not path.is_file():
        return {}
    table = pq.read_table(path).sort_by("index")
    names = [name for name in table.column_names if name.startswith("logit_")]
    if len(names) < 2:
        return {}
    right_N = np.stack([table[name].to_numpy() for name in names], -1).argmax(-1) == table["label"].to_numpy()
    return dict(zip(table["index"].to_pylist(), right_N.tolist(), strict=True))
