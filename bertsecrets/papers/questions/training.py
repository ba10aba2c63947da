"""Questions about what fine-tuning does: gradients, learning rates and dropout, and whether answers have the right reasons."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertsecrets.papers.models import Group, Model, Studied
from bertsecrets.papers.questions.answer import Array, Estimate, GroupAnswer, Missing, Part, estimate, widest_error
from bertsecrets.papers.statements.judge import UNTOLD
from bertsecrets.present.figures.rows import IntervalRow, interval_rows
from bertsecrets.present.figures.scatters import ScatterPanel, head_scatter
from bertsecrets.present.figures.style import seeds_in_words
from bertsecrets.present.grid import correlation_in_words
from bertsecrets.present.report.content import FigureBlock, Table
from bertsecrets.reporting.controls import DROPOUT, LAYER_DECAY, ONLY, PERMUTED, controls
from bertsecrets.reporting.runs import constant_score
from bertsecrets.results.formatting import MISSING, low_to_high, number
from bertsecrets.results.run import PREDICTIONS, TRAINING
from bertsecrets.results.scores import score_interval
from bertsecrets.results.views import MeasureView
from bertsecrets.statistics.intervals import paired_proportions
from bertsecrets.statistics.ranks import rank_correlation, spearman
from bertsecrets.statistics.replicates import effects_over_seeds


def gradients(models: Studied, group: Group) -> Iterator[Part]:
    """Whether drift follows gradient norms, and what other learning rates and shuffled labels do to it."""
    drift = group.views("drift", "cosine")
    pairs = [pair for model in group.learners if (pair := _norms_and_drift(model)) is not None]
    if not drift or not pairs:
        yield Missing(group.name, _NO_GRADIENTS, group.retrain("callbacks=default"))
        return
    norm_LH, drift_LH = (np.mean(values, axis=0) for values in zip(*pairs, strict=True))
    over_heads = rank_correlation(norm_LH, drift_LH)
    by_layer = spearman(np.nanmean(norm_LH, axis=1), np.nanmean(drift_LH, axis=1))
    tilts = {group.name: _tilt(drift)}
    for control in models.controls_of(group):
        views = control.views("drift", "cosine")
        if views:
            tilts[control.name] = _tilt(views)
    norms = f"larger gradients, {'larger' if over_heads.claim.rho > 0 else 'smaller'} change"
    parts = [norms if over_heads.significant else "", _halves(models, group, tilts)]
    short = "; ".join(filter(None, parts)) or UNTOLD
    sentence = (
        f"Over {over_heads.count} heads, the rank correlation of mean gradient norm and change of attention is "
        f"{correlation_in_words(over_heads)}; over the {len(norm_LH)} layers it is {number(by_layer, 2)}. "
        "The change of the upper half of the layers less that of the "
        f"lower is {tilts[group.name].text(3)} in 1 − cosine."
    )
    sentence += _not_compared(models, group)
    figures = _gradient_figures(group.name, len(pairs), norm_LH, drift_LH, tilts)
    yield GroupAnswer(group.name, short, sentence, [_tilt_table(tilts)], figures)
    yield from _missing_controls(models, group)


_NO_GRADIENTS = (
    "no run recorded gradient norms during training and the change of attention; gradients cannot be had afterwards, so the model "
    "has to be trained again."
)
_CONTROLS = {"inverted_rates": "inverted learning rates", "permuted_labels": "shuffled labels"}


def _explaining(models: Studied, group: Group) -> dict[str, Group]:
    """The comparable controls of :data:`_CONTROLS` by their name there."""
    present = {}
    for control in models.controls_of(group):
        values = controls(control.config)
        if float(values[LAYER_DECAY]) > 1:
            present["inverted_rates"] = control
        if values[PERMUTED] == "True":
            present["permuted_labels"] = control
    return present


def _halves(models: Studied, group: Group, tilts: Mapping[str, Estimate]) -> str:
    """Which half of the layers changes more, and under which controls it does so too; empty if that is not shown."""
    sign = tilts[group.name].sign
    if not sign:
        return ""
    with_drift = {name: control for name, control in _explaining(models, group).items() if control.name in tilts}
    also = [_CONTROLS[name] for name, control in with_drift.items() if tilts[control.name].sign == sign]
    otherwise = [_CONTROLS[name] for name, control in with_drift.items() if tilts[control.name].sign != sign]
    return f"{'upper' if sign > 0 else 'lower'} layers change more{_with(', also with', also)}{_with(', not shown with', otherwise)}"


def _with(words: str, names: Sequence[str]) -> str:
    return f"{words} {' and '.join(names)}" if names else ""


def _missing_controls(models: Studied, group: Group) -> Iterator[Missing]:
    present = _explaining(models, group)
    wanted = [name for name in _CONTROLS if name not in present]
    if not wanted:
        return
    why = (
        f"no run with {' and none with '.join(_CONTROLS[name] for name in wanted)}, to tell whether the order of the layers follows from "
        "the rates or from the task."
    )
    yield Missing(group.name, why, group.retrain(_under(wanted)))


def _under(names: Sequence[str]) -> str:
    """The setting that trains a model again under a control, or under each of several."""
    return f"{'-m ' * (len(names) > 1)}control={','.join(names)}"


def _norms_and_drift(model: Model) -> tuple[Array, Array] | None:
    """Mean gradient norm over training of each head, and its change of attention; None unless the same run has both."""
    flow = model.view("gradient_flow", lambda view: bool(view.rows.steps(view.name, "gradient_norm", TRAINING)))
    drift = model.view("drift", lambda view: view.has("cosine"))
    if flow is None or drift is None:
        return None
    drift_LH = 1 - drift.value("cosine")
    norm_LH = _mean_norms(flow, drift_LH.shape)
    return None if norm_LH is None else (norm_LH, drift_LH)


def _mean_norms(flow: MeasureView, size: tuple[int, ...]) -> Array | None:
    """Mean gradient norms ``[layers, heads]``; None where they were not recorded by head."""
    table = flow.rows.select(column="gradient_norm", stage=TRAINING).table
    table = table.filter(pc.is_valid(table["head"]))
    total_LH, count_LH = np.zeros(size), np.zeros(size)
    layer_N, head_N = (table[name].to_numpy().astype(np.int64) for name in ("layer", "head"))
    if not len(layer_N) or layer_N.max() >= size[0] or head_N.max() >= size[1]:
        return None
    value_N = table["value"].to_numpy()
    np.add.at(total_LH, (layer_N, head_N), value_N)
    np.add.at(count_LH, (layer_N, head_N), 1)
    with np.errstate(invalid="ignore"):
        return np.asarray(total_LH / count_LH)


def _tilt(views: Sequence[MeasureView]) -> Estimate:
    """By how much the upper half of the layers changed more than the lower, in 1 − cosine."""
    differences = []
    for view in views:
        drift_L = 1 - np.nanmean(view.value("cosine"), axis=1)
        half = len(drift_L) // 2
        differences.append(float(drift_L[len(drift_L) - half :].mean() - drift_L[:half].mean()))
    # The errors of the two halves may go opposite ways.
    return estimate(differences, 2 * widest_error(views[0].stderr("cosine")))


def _control(name: str) -> str:
    return name.partition(" · ")[2] or name


def _not_compared(models: Studied, group: Group) -> str:
    """Sentences on the controls that differ from the models in more than the control."""
    return "".join(
        f" Not comparable: {control.name}, which differs in {' and '.join(different)} too."
        for control, different in models.not_comparable(group)
    )


def _tilt_table(tilts: dict[str, Estimate]) -> Table:
    rows = [[name, *tilt.cells(), tilt.over] for name, tilt in tilts.items()]
    header = ["models", "upper minus lower half", "95 % interval", "over"]
    return Table(
        header, rows, "Change of attention (1 − cosine), mean of the upper half of the layers less the lower half"
    )


def _gradient_figures(
    name: str, seeds: int, norm_LH: Array, drift_LH: Array, tilts: dict[str, Estimate]
) -> list[FigureBlock]:
    drawn = np.isfinite(norm_LH) & (norm_LH > 0) & np.isfinite(drift_LH)
    last_two: NDArray[np.bool_] = np.zeros(norm_LH.shape, bool)
    last_two[-2:] = True
    scatter = head_scatter(
        [ScatterPanel(name, np.log10(norm_LH[drawn]), drift_LH[drawn], last_two[drawn])],
        title="Gradient norms and change of attention, head by head",
        x_label="log10 of the mean gradient norm",
        y_label="1 − cosine",
        note=f"a dot for each head, {seeds_in_words(seeds)}; filled: the last two layers",
    )
    blocks = [
        FigureBlock(
            f"gradients_{name}",
            scatter,
            f"Mean gradient norm of each head in training, against the change of its attention, {name}.",
            "Scatter.",
        )
    ]
    if len(tilts) > 1:
        intervals = interval_rows(
            [IntervalRow(label, tilt.value, tilt.low, tilt.high) for label, tilt in tilts.items()],
            title="Does the upper half of the layers change more?",
            unit="1 − cosine, upper half less lower half",
            note="lines: 95 % intervals over seeds, or over examples with one seed",
        )
        caption = f"Change of attention of the upper half of the layers less that of the lower, as usual and under controls: {name}."
        blocks.append(FigureBlock(f"controls_{name}", intervals, caption, "Dots with intervals."))
    return blocks


def without_attention_dropout(models: Studied, group: Group) -> Iterator[Part]:
    """Whether heads of a layer are less alike after fine-tuning without dropout of attention (Clark et al. 2019, section 6)."""
    unlike = {**controls({}), DROPOUT: "0.0"}
    control = next((control for control in models.controls_of(group) if controls(control.config) == unlike), None)
    if control is None:
        why = "no comparable model was fine-tuned without dropout of attention."
        settings = "control=no_attention_dropout 'measure=[drift,clusters]'"
        yield Missing(group.name, why, group.retrain(settings))
        return
    pairs = [pair for model in group.models if (pair := _distances(model, _counterpart(model, control)))]
    if not pairs:
        why = "no run measured the distances of heads with and without dropout of attention, of one seed and the same examples."
        for part in (group, control):
            yield Missing(part.name, why, part.command("analysis=clusters"))
        return
    distance_RSL = np.array([[view.value(_WITHIN).mean(axis=1) for view in pair] for pair in pairs])
    # The errors of the two models may go opposite ways.
    error_L = np.sum([view.stderr(_WITHIN).mean(axis=1) for view in pairs[0]], axis=0)
    every = range(len(error_L))
    rows, changes = [], {}
    for name, layers in {"all layers": [*every], **{f"layer {layer}": [layer] for layer in every}}.items():
        distance_RS = distance_RSL[:, :, layers].mean(axis=2)
        change = estimate(distance_RS[:, 1] - distance_RS[:, 0], float(error_L[layers].mean()))
        rows.append([name, *(number(mean) for mean in distance_RS.mean(axis=0)), *change.cells(4), change.over])
        changes[name] = change
    _, with_dropout, without, *_ = rows[0]
    sentence = (
        f"Heads of a layer are {with_dropout} nats apart on average, and {without} without dropout of attention, a change of "
        f"{changes['all layers'].text(4)}."
    )
    header = ["layers", "with dropout", "without", "change", "95 % interval", "over"]
    caption = (
        f"Distance of a head from the others of its layer in nats, with and without dropout of attention: {group.name}"
    )
    figure = interval_rows(
        [IntervalRow(name, change.value, change.low, change.high) for name, change in changes.items()],
        title="Are heads of a layer farther apart without dropout of attention?",
        unit="change of the Jensen-Shannon divergence (nats)",
        note="above 0: less alike; lines: 95 % intervals over seeds, or over examples with one seed",
    )
    block = FigureBlock(f"dropout_{group.name}", figure, f"{caption}.", "Dots with intervals.")
    short = {1: "less alike without dropout of attention", -1: "more alike without it"}.get(
        changes["all layers"].sign, UNTOLD
    )
    yield GroupAnswer(group.name, short, sentence, [Table(header, rows, caption)], [block])


_WITHIN = "within_layer"


def _distances(model: Model, control: Model | None) -> tuple[MeasureView, MeasureView] | None:
    """The distances between heads of two models on the same examples, as far as their runs kept which; None without them.

    A measure takes the same sample of the same examples, if it takes as many.
    """
    views = [part.view("clusters", lambda view: view.has(_WITHIN)) for part in (model, control) if part is not None]
    first, second = (*views, None)[:2]
    if first is None or second is None or first.count(_WITHIN) != second.count(_WITHIN):
        return None
    ours, theirs = (_predictions(view.run.folder, model) for view in (first, second))
    if ours is None or theirs is None or not ours["index"].equals(theirs["index"]):
        return None
    return first, second


def reasons(models: Studied, group: Group) -> Iterator[Part]:
    """Whether the model is better than a constant answer, and than a model that reads one sentence of each pair."""
    if _accuracies(group) is None:
        why = "the scores of the task have no accuracy, by which one sentence and both could be compared example by example."
        yield GroupAnswer(group.name, UNTOLD, f"Cannot be told: {why}")
        return
    constant = _constant(group)
    comparable = [(control, controls(control.config)) for control in models.controls_of(group)]
    alone = [control for control, values in comparable if _reads_one(values)]
    shuffled = [control for control, values in comparable if values[PERMUTED] == "True"]
    scored = ((compared.name, _accuracies(compared)) for compared in (group, *alone, *shuffled))
    rows = [_interval(name, accuracies) for name, accuracies in scored if accuracies is not None]
    gains = [(control, gain) for control in alone if (gain := _gain(group, control)) is not None]
    tested = {controls(control.config)[ONLY] for control, _ in gains}
    untested = [which for which in ("first", "second") if group.pairs and which not in tested]
    whole = rows[0]
    ends = f" (95 % interval {low_to_high(whole.low, whole.high)})" if math.isfinite(whole.low) else ""
    sentence = (
        f"Accuracy is {number(whole.value)}{ends}; always answering the most frequent class has {number(constant)}."
    )
    for control, gain in gains:
        sentence += f" Compared with the {_control(control.name)}, both sentences change it by {gain.text(1, 100, unit=' points')}."
    short = UNTOLD
    if gains:
        if all(gain.low > 0 for _, gain in gains):
            which = f"the {next(iter(tested))} sentence" if untested else "one sentence"
            short = f"{which} alone is not enough" if untested else "one sentence is not enough"
            sentence += (
                f" What {which} gives away does not explain the score; that no other shortcut does is not shown."
            )
        elif all(gain.high < 0.01 for _, gain in gains):
            short = "one sentence is as good as both"
            untested = []
            sentence += " Reading both gains less than a point: the model may answer without comparing the sentences."
        else:
            sentence += " Whether both sentences are better than one is not shown."
    elif group.pairs:
        sentence += " Whether one sentence of the pair would be enough cannot be told."
    else:
        sentence += (
            " The task has one sentence, so that none can be left out; other shortcuts are not tested here, and whether the "
            "reasons are right cannot be told."
        )
    sentence += _not_compared(models, group)
    if untested:
        why = (
            f"no comparable model that reads the {' and none that reads the '.join(untested)} sentence of each pair alone was "
            "evaluated on the same examples."
        )
        settings = _under([f"{which}_sentence" for which in untested])
        yield Missing(group.name, why, group.retrain(settings))
    figure = interval_rows(
        [*rows, IntervalRow(f"{group.task} · most frequent class", constant)],
        title="Accuracy with both sentences, with one, and without any",
        unit="accuracy",
        note="lines: 95 % intervals over seeds and examples, or Wilson's over examples with one seed",
        reference=None,
    )
    block = FigureBlock(
        f"reasons_{group.name}", figure, f"Accuracy as usual and under controls: {group.name}.", "Dots with intervals."
    )
    yield GroupAnswer(group.name, short, sentence, [*_gain_tables(gains), _score_table(rows, constant)], [block])


def _reads_one(values: Mapping[str, str]) -> bool:
    """Whether reading one sentence of each pair is the only control."""
    return values[ONLY] != "None" and values == {**controls({}), ONLY: values[ONLY]}


def _accuracies(group: Group) -> tuple[list[float], int] | None:
    """Each seed's accuracy on the first set, and the number of examples; None without accuracies."""
    values = [value for model in group.models if (value := model.first_set["model"].get("accuracy")) is not None]
    return (values, int(group.models[0].first_set["count"])) if values else None


def _constant(group: Group) -> float:
    return constant_score(group.models, next(iter(group.models[0].scores["sets"])), "accuracy")


def _interval(name: str, scored: tuple[list[float], int]) -> IntervalRow:
    interval = score_interval("accuracy", *scored)
    return IntervalRow(name, interval.mean, interval.low, interval.high)


def _gain(full: Group, alone: Group) -> Estimate | None:
    """What both sentences gain over one, paired over examples, and over seeds where there are several; None without such pairs.

    All seeds count that answered the examples of the first.
    """
    pairs: list[dict[int, int]] = []
    for model in full.models:
        counterpart = _counterpart(model, alone)
        correct_alone, correct = None if counterpart is None else _correct(counterpart), _correct(model)
        if correct_alone is None or correct is None or correct_alone.keys() != correct.keys():
            continue
        if not pairs or pairs[0].keys() == correct.keys():
            pairs.append({index: right - correct_alone[index] for index, right in sorted(correct.items())})
    if not pairs:
        return None
    gain_SN = np.array([list(pair.values()) for pair in pairs])
    seeds, count = gain_SN.shape
    if seeds > 1:
        # Seeds that answer the same examples share their noise: it does not shrink with the number of seeds.
        covariance_SS = np.cov(gain_SN) / count
        noise = [
            covariance_SS[part].mean(keepdims=True) for part in (~np.eye(seeds, dtype=bool), np.eye(seeds, dtype=bool))
        ]
        effect = effects_over_seeds(gain_SN.mean(axis=1, keepdims=True), *noise, margin=0.0, level=0.95, largest=1.0)
        low, high = (float(limit[0]) for limit in effect.limits)
        return Estimate(float(effect.delta[0]), low, high, "seeds and examples")
    lost, won = (int((gain_SN[0] == sign).sum()) for sign in (-1, 1))
    # Of one seed, both models answered the same examples: only those that one of them gets right tell them apart.
    low_V, high_V = paired_proportions([lost], [won], count)(np.array([0.025]))
    return Estimate(float(gain_SN.mean()), float(low_V[0]), float(high_V[0]), "examples")


def _counterpart(model: Model, control: Group) -> Model | None:
    """The model of the same seed under a control."""
    return next((candidate for candidate in control.models if candidate.seed == model.seed), None)


def _predictions(folder: Path, model: Model) -> pa.Table | None:
    """What a run of a model kept of its predictions for the first set, in order of the examples; None without any."""
    path = folder / PREDICTIONS / f"{next(iter(model.scores['sets']))}.parquet"
    return pq.read_table(path).sort_by("index") if path.is_file() else None


def _correct(model: Model) -> dict[int, bool] | None:
    """Which examples of the first set the model answers right, by their index; None without predictions."""
    table = _predictions(model.parts[0].folder, model)
    if table is None:
        return None
    logits_NC = np.stack([table[name].to_numpy() for name in table.column_names if name.startswith("logit_")], -1)
    if logits_NC.shape[1] < 2:
        return None
    right_N = logits_NC.argmax(-1) == table["label"].to_numpy()
    return dict(zip(table["index"].to_pylist(), right_N.tolist(), strict=True))


def _gain_tables(gains: Sequence[tuple[Group, Estimate]]) -> list[Table]:
    cells = [[_control(control.name), *gain.cells(1, 100), gain.over] for control, gain in gains]
    header = ["compared with", "gain, points of accuracy", "95 % interval", "over"]
    return [Table(header, cells, "What both sentences gain over one")] if cells else []


def _score_table(rows: Sequence[IntervalRow], constant: float) -> Table:
    cells = [[row.name, number(row.value), low_to_high(row.low, row.high)] for row in rows]
    cells.append(["most frequent class", number(constant), MISSING])
    return Table(
        ["models", "accuracy", "95 % interval"],
        cells,
        "Accuracy on the same evaluation set; intervals over seeds and examples, or of one seed over examples",
    )
