"""Turns a run's folder into figures, a report and the findings in words."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from omegaconf import DictConfig

from bertsecrets.doors.ablation_summary import ablation_sections
from bertsecrets.doors.beside import beside_sections
from bertsecrets.doors.changed_and_needed import changed_and_needed
from bertsecrets.doors.frame_relations import relation_sections
from bertsecrets.doors.linguistic_sections import linguistic_sections
from bertsecrets.doors.other_measures import other_sections
from bertsecrets.doors.pattern_summary import pattern_sections
from bertsecrets.doors.scores import RunScores
from bertsecrets.doors.wording import DRIFT, DRIFT_COLUMNS
from bertsecrets.results.captures import read_examples, read_maps, read_steps
from bertsecrets.results.console import HeadLine, outstanding_heads
from bertsecrets.results.figures.gallery import MapPanel, gallery
from bertsecrets.results.figures.gradients import gradient_against_drift, gradient_flow, spearman
from bertsecrets.results.figures.heatmap import heatmap
from bertsecrets.results.figures.scores import scores as scores_figure
from bertsecrets.results.figures.trajectory import trajectory
from bertsecrets.results.relations import RelationRecord
from bertsecrets.results.report.content import FigureBlock, HeadViewer, Report, Section, Table, ViewerExample
from bertsecrets.results.run import CHECKPOINT, TRAINING, Run
from bertsecrets.results.table import HeadTable

GRADIENTS = "gradient_flow"
_GALLERY_TOKENS = 40


@dataclass
class Summary:
    """The report, its figures by file name, and the heads that changed most."""

    report: Report
    figures: dict[str, Figure] = field(default_factory=dict)
    heads: list[HeadLine] = field(default_factory=list)


def summarise(run: Run, scores: RunScores, heads: int, config: DictConfig) -> Summary:
    """Everything that a run's folder says, for people.

    Args:
        run: Its head table and captures are read from disk.
        scores: Of the run's last validation.
        heads: How many of the most changed heads the map gallery shows.
        config: For the facts at the top of the page.
    """
    table = run.table()
    figures: dict[str, Figure] = {}
    lead: list[str] = []
    sections = [_scores_section(run, scores, figures, lead)] if scores.lines() else []
    changed: list[HeadLine] = []
    latest = _latest(table)
    if latest is not None:
        stage, step = latest
        changed = outstanding_heads(table, DRIFT, "cosine", stage, step, first="lowest", limit=max(heads, 10))
        if step != scores.step:
            lead.append(
                f"Scores, and all that an analysis adds, are of the weights of step {scores.step}, by default a run's best "
                f"checkpoint; how much heads changed is of step {step}, where training had come."
            )
        sections.append(_drift_section(table, stage, step, changed, figures, lead))
        if len(table.steps(DRIFT, "cosine", TRAINING)) > 1:
            sections.append(_trajectory_section(table, figures))
        if table.steps(GRADIENTS, "gradient_norm", TRAINING):
            sections.append(_gradient_section(table, stage, step, int(config.task.training.batch_size), figures, lead))
    sections += pattern_sections(table, figures, lead)
    sections += relation_sections(table, RelationRecord.read(run.folder), figures, lead)
    sections += linguistic_sections(table, figures, lead)
    sections += other_sections(table, figures)
    sections += beside_sections(table, figures, lead)
    ablation = run.ablation_table()
    sections += ablation_sections(ablation, run.checks(), figures, lead)
    if latest is not None:
        both = changed_and_needed(table.grid(DRIFT, "cosine", *latest)[0], ablation, figures, lead)
        sections += [both] if both is not None else []
    viewer = _viewer(run, changed)
    if viewer is not None and changed:
        sections.append(_gallery_section(run, changed[:heads], figures))
    report = Report(
        title=f"What changed inside {run.model} on {run.task}",
        subtitle=run.name,
        facts=_facts(run, scores, config),
        lead=lead,
        sections=[*sections, _reading_section()],
        viewer=viewer,
    )
    return Summary(report, figures, changed[:5])


def _latest(table: HeadTable) -> tuple[str, int] | None:
    """Stage and step of the newest drift; a finished checkpoint's before those of its training."""
    for stage in (CHECKPOINT, TRAINING):
        steps = table.steps(DRIFT, "cosine", stage)
        if steps:
            return stage, steps[-1]
    return None


def _facts(run: Run, scores: RunScores, config: DictConfig) -> list[tuple[str, str]]:
    facts = [
        ("model", run.model),
        ("task", run.task),
        ("initialisation", run.init.replace("_", " ")),
        ("seed", str(config.seed)),
        ("optimiser steps", str(scores.step)),
        ("time", f"{scores.seconds:.0f} s"),
    ]
    if "optimizer" in config:
        facts += [
            ("learning rate", f"{config.optimizer.learning_rate:g}"),
            ("batch size", str(config.task.training.batch_size)),
            ("epochs", str(config.trainer.max_epochs)),
        ]
    return facts


def _scores_section(run: Run, scores: RunScores, figures: dict[str, Figure], lead: list[str]) -> Section:
    lines = scores.lines()
    first = lines[0]
    count = next(iter(scores.sets.values())).count
    constant = f"{first.baseline:.3f}" if np.isfinite(first.baseline) else "no defined score"
    lead.append(
        f"On {count} development examples the model's {first.name} is {first.value:.3f}; always answering "
        f"“{scores.constant_answer}” has {constant}."
    )
    rows = [
        [line.name, _with_error(line.value, line.stderr), _number(line.baseline), _number(line.value - line.baseline)]
        for line in lines
    ]
    figures["scores"] = scores_figure(
        lines,
        title="Scores beside a constant answer",
        count=[scores.sets[line.name.split("/")[0]].count for line in lines],
    )
    return Section(
        "Scores",
        paragraphs=[
            "The constant answer is the training set's most frequent class, or its mean score: a model that does not "
            "beat it has learned nothing that its heads could tell of. Where that class is the negative one its F1 is 0, "
            "which is easily beaten: look at the accuracy then."
        ],
        tables=[Table(["metric", "model", "constant answer", "difference"], rows, "± one standard error")],
        figures=[
            FigureBlock(figures["scores"], "Scores of the model and of a constant answer.", "Dot chart of scores.")
        ],
    )


def _drift_section(
    table: HeadTable, stage: str, step: int, changed: Sequence[HeadLine], figures: dict[str, Figure], lead: list[str]
) -> Section:
    blocks = []
    for column, (title, unit) in DRIFT_COLUMNS.items():
        if not table.select(measure=DRIFT, column=column, stage=stage, step=step).table.num_rows:
            continue
        value_LH, stderr_LH, count_LH = table.grid(DRIFT, column, stage, step)
        # One scale for all runs, so that two reports can be laid side by side; nats end at ln 2.
        limits = (0.0, 1.0) if column.endswith("cosine") else (0.0, float(np.log(2)))
        marked = [(line.layer, line.head) for line in changed[:5]] if column == "cosine" else None
        figure = heatmap(
            value_LH, title=title, unit=unit, count=count_LH, stderr_LH=stderr_LH, limits=limits, marked=marked
        )
        figures[f"drift_{column}"] = figure
        blocks.append(FigureBlock(figure, f"{title}, step {step}.", f"Heatmap of {title.lower()} by layer and head."))
    value_LH, _, _ = table.grid(DRIFT, "cosine", stage, step)
    mean_L = np.nanmean(value_LH, axis=1)
    most, least = int(np.nanargmin(mean_L)), int(np.nanargmax(mean_L))
    top = changed[0]
    lead.append(
        f"Attention changed most in layer {most} (mean cosine {mean_L[most]:.3f} with the maps before fine-tuning) and "
        f"least in layer {least} ({mean_L[least]:.3f})."
    )
    lead.append(
        f"The head that changed most is layer {top.layer} · head {top.head}: cosine {_with_error(top.value, top.stderr)}."
    )
    return Section(
        "How each head's attention changed",
        paragraphs=[
            "Each number compares a head's attention maps with the same head's before fine-tuning, on the same examples, "
            "averaged over examples; padding is left out unless the run says otherwise (Kovaleva et al. 2019, "
            "section 4.3). The five most changed heads are outlined."
        ],
        tables=[
            Table(
                ["head", "cosine ± standard error"],
                [[f"layer {line.layer} · head {line.head}", _with_error(line.value, line.stderr)] for line in changed],
                "The heads that changed most",
            ),
            Table(
                ["layer", "mean cosine over heads", "lowest head", "highest head"],
                [
                    [str(layer), _number(mean_L[layer]), _number(np.nanmin(row)), _number(np.nanmax(row))]
                    for layer, row in enumerate(value_LH)
                ],
                "By layer",
            ),
        ],
        figures=blocks,
    )


def _trajectory_section(table: HeadTable, figures: dict[str, Figure]) -> Section:
    steps = table.steps(DRIFT, "cosine", TRAINING)
    grids = [table.grid(DRIFT, "cosine", TRAINING, step) for step in steps]
    figure = trajectory(
        steps,
        np.stack([value_LH for value_LH, _, _ in grids]),
        title="Drift while the model learns",
        unit="cosine similarity (1: unchanged)",
        count=grids[-1][2],
    )
    figures["drift_trajectory"] = figure
    caption = "Cosine similarity with the maps before fine-tuning, at every validation."
    return Section(
        "When it happened", figures=[FigureBlock(figure, caption, "Line chart of drift by layer and head over steps.")]
    )


def _gradient_section(
    table: HeadTable, stage: str, step: int, batch_size: int, figures: dict[str, Figure], lead: list[str]
) -> Section:
    layers = table.select(measure=GRADIENTS, stage=TRAINING, head=None)
    steps = layers.steps(GRADIENTS, "gradient_norm", TRAINING)
    norm_SL = _over_steps(layers, "gradient_norm", steps)
    ratio_SL = _over_steps(layers, "update_ratio", steps)
    figures["gradient_flow"] = gradient_flow(
        steps, norm_SL, ratio_SL, title="Gradients and updates by layer", batch_size=batch_size
    )
    value_LH, _, count_LH = table.grid(DRIFT, "cosine", stage, step)
    drift_L, norm_L = 1 - np.nanmean(value_LH, axis=1), norm_SL.mean(axis=0)
    figures["gradient_against_drift"] = gradient_against_drift(
        norm_L,
        drift_L,
        title="Do layers drift more because they get larger gradients?",
        unit="1 − cosine",
        count=count_LH,
    )
    rho = spearman(norm_L, drift_L)
    finding = (
        "layers with larger gradients did drift more"
        if rho > 0.5
        else "layers with larger gradients drifted less, so that gradient size does not explain the drift"
        if rho < -0.5
        else "gradient size alone does not explain which layers drifted"
    )
    sentence = (
        f"Over {len(drift_L)} layers the rank correlation of mean gradient norm and drift is {rho:.2f}: {finding}."
    )
    lead.append(sentence)
    return Section(
        "Gradient flow",
        paragraphs=[
            sentence + " With as few layers as a model has, only a correlation near ±1 says much.",
            "Norms are taken before clipping. The update ratio is the size of one optimiser step relative to the weights.",
        ],
        figures=[
            FigureBlock(figures["gradient_flow"], "By layer, through training.", "Line chart of gradient norms."),
            FigureBlock(
                figures["gradient_against_drift"], "Mean gradient norm against drift, by layer.", "Scatter of layers."
            ),
        ],
    )


def _over_steps(layers: HeadTable, column: str, steps: Sequence[int]) -> NDArray[np.float64]:
    return np.stack([layers.grid(GRADIENTS, column, TRAINING, step)[0][:, 0] for step in steps])


def _viewer(run: Run, changed: Sequence[HeadLine]) -> HeadViewer | None:
    """Maps before, in the middle of and after training: three moments are enough to see a change."""
    examples, files = read_examples(run.captures), read_steps(run.captures)
    if not examples or not files:
        return None
    steps = list(files)
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    maps = {step: read_maps(files[step]) for step in chosen}
    start = (changed[0].layer, changed[0].head) if changed else (0, 0)
    return HeadViewer(
        [
            ViewerExample(
                f"example {example.index} ({example.label})",
                example.tokens,
                [(_stage_name(step), maps[step][example.index].numpy()) for step in chosen],
            )
            for example in examples
        ],
        start,
    )


def _gallery_section(run: Run, changed: Sequence[HeadLine], figures: dict[str, Figure]) -> Section:
    files = read_steps(run.captures)
    first, last = min(files), max(files)
    examples = read_examples(run.captures)
    # The longest example whose tokens can still be read in print.
    fitting = [example for example in examples if len(example.tokens) <= _GALLERY_TOKENS]
    example = (
        max(fitting, key=lambda one: len(one.tokens)) if fitting else min(examples, key=lambda one: len(one.tokens))
    )
    before, after = (read_maps(files[step])[example.index].numpy() for step in (first, last))
    panels = []
    for line in changed:
        row, place = f"layer {line.layer} · head {line.head}", (line.layer, line.head)
        panels.append(MapPanel(row, _stage_name(first), before[place], example.tokens))
        if last != first:
            panels.append(MapPanel(row, _stage_name(last), after[place], example.tokens))
            panels.append(MapPanel(row, "difference", after[place] - before[place], example.tokens, signed=True))
    figures["maps"] = gallery(panels, title="The most changed heads, before and after")
    caption = f"Example {example.index} ({example.label}): {' / '.join(example.texts)}"
    return Section(
        "Maps before and after",
        paragraphs=["Rows are the tokens that attend, columns the tokens attended to."],
        figures=[FigureBlock(figures["maps"], caption, "Attention maps of the most changed heads.")],
    )


def _stage_name(step: int) -> str:
    return "before fine-tuning" if step == 0 else f"step {step}"


def _reading_section() -> Section:
    return Section(
        "How to read this page",
        paragraphs=[
            "Layers and heads are counted from 0; layer 0 is next to the input. The papers count from 1, so that their "
            "head 12-9 is layer 11 · head 8 here.",
            "Every number of this page is in heads.parquet, one row for each head, and in scores.json, in the run's "
            "folder. A difference between two heads that is smaller than about two standard errors is noise.",
        ],
    )


def _number(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "–"


def _with_error(value: float, stderr: float) -> str:
    return f"{value:.3f} ± {stderr:.3f}" if np.isfinite(stderr) else _number(value)
