"""The section on disabling of a comparison page: effects of single heads and of whole layers, side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.seeds import OverSeeds, over_seeds, stopped_early
from bertsecrets.results.components import KINDS
from bertsecrets.results.figures.grids import HeadPanel, head_panels
from bertsecrets.results.figures.layers import LayerPanel, layer_panels
from bertsecrets.results.figures.style import sample_size, seeds_in_words
from bertsecrets.results.formatting import head_label, heads_label, lower_first, number
from bertsecrets.results.report.content import FigureBlock, Section, Table, joined
from bertsecrets.results.run import CHECKPOINT
from bertsecrets.results.sections import (
    MOST_PANELS,
    agreement_in_words,
    agreement_table,
    condition_rows,
    left_out_panels,
    lowest_layer,
)
from bertsecrets.results.verdicts import DISPENSABLE, INCONCLUSIVE, NEEDED, WORDS
from bertsecrets.results.views import Comparison, Replicates

_MOST_ROWS = 20


@dataclass(frozen=True)
class Effects:
    """The effects at the last step of the first metric.

    Args:
        delta_RLH: Changes of the score, ``[replicates, layers, heads]``; a whole layer is one head.
        certain_RLH: Which of them are significant.
        needed_RLH: Which heads are needed.
        dispensable_RLH: Of which heads a loss that matters is ruled out.
        baseline_R: Scores of the models with nothing disabled.
        count: Examples; the most that a head has where they differ.
        fewest: The fewest that a head has.
        metric, mode: The score, and the mode of disabling.
        screened: Whether some run evaluated only the pairs whose prediction may change.
    """

    delta_RLH: NDArray[np.float64]
    certain_RLH: NDArray[np.bool_]
    needed_RLH: NDArray[np.bool_]
    dispensable_RLH: NDArray[np.bool_]
    baseline_R: NDArray[np.float64]
    count: int
    fewest: int
    metric: str
    mode: str
    screened: bool

    @property
    def what(self) -> str:
        """Metric and mode, as shown in tables."""
        return f"{self.metric} ({self.mode}{', screened' * self.screened})"


def effects(replicates: Replicates, kind: str) -> Effects | None:
    """Effects of every head or layer (``kind``); None if no replicate disabled any."""
    deltas, significant, needed, dispensable, baselines, last = [], [], [], [], [], None
    counts, screened = set(), False
    for view in replicates.views:
        singles = KINDS[kind].of(view.run.ablation_table().rows())
        singles = [row for row in singles if row["stage"] == CHECKPOINT] or singles
        run_size = view.run.size()
        if not singles or run_size is None:
            continue
        step = max(row["step"] for row in singles)
        first = last = next(row for row in singles if row["step"] == step)
        size = KINDS[kind].size(*run_size)
        delta_LH = np.full(size, np.nan)
        certain_LH, needed_LH, dispensable_LH = (np.zeros(size, bool) for _ in range(3))
        for row in singles:
            if all(row[name] == first[name] for name in ("step", "evaluation", "metric", "mode", "stage")):
                cell = KINDS[kind].cell(row)
                delta_LH[cell] = row["delta"]
                certain_LH[cell] = row["significant"]
                needed_LH[cell] = row["verdict"] == NEEDED
                dispensable_LH[cell] = row["verdict"] == DISPENSABLE
                counts.add(row["count"])
                screened |= row["sweep"] == "screened"
        deltas.append(delta_LH)
        significant.append(certain_LH)
        needed.append(needed_LH)
        dispensable.append(dispensable_LH)
        baselines.append(first["baseline"])
    if last is None:
        return None
    return Effects(
        np.stack(deltas),
        np.stack(significant),
        np.stack(needed),
        np.stack(dispensable),
        np.array(baselines),
        max(counts),
        min(counts),
        last["metric"],
        last["mode"],
        screened,
    )


def compare_effects(comparison: Comparison) -> Section | None:
    """The effects of disabling heads, then of disabling layers; None if no run disabled any."""
    return joined([section for section in (_heads(comparison), _layers(comparison)) if section is not None])


def _heads(comparison: Comparison) -> Section | None:
    panels: list[HeadPanel] = []
    cells: list[list[str]] = []
    repeated: dict[str, NDArray[np.float64]] = {}
    counts: list[int] = []
    replicated: list[int] = []
    rows: list[Mapping[str, object]] = []
    for label, replicates in comparison.replicates.items():
        effect = effects(replicates, "head")
        if effect is None:
            continue
        delta_RLH = effect.delta_RLH
        share_LH = effect.needed_RLH.mean(axis=0)
        # Coloured if more than half of the seeds show an effect.
        panels.append(HeadPanel(label, 100 * delta_RLH.mean(axis=0), effect.certain_RLH.mean(axis=0) > 0.5))
        counts += [effect.fewest, effect.count]
        replicated.append(len(delta_RLH))
        always = [(int(layer), int(head)) for layer, head in np.argwhere(share_LH == 1)]
        shown = heads_label(always[:10]) + (" …" if len(always) > 10 else "")
        ever = int((share_LH > 0).sum())
        rows += condition_rows(label, "ablation", effect.what, delta_RLH, np.full_like(delta_RLH, np.nan))
        cells.append([label, str(len(delta_RLH)), effect.what, str(ever), str(len(always)), shown or "none"])
        if len(delta_RLH) > 1:
            repeated[label] = delta_RLH
    if not panels:
        return None
    title = "Change of score when a head is disabled"
    figure = head_panels(
        panels[:MOST_PANELS],
        title=title,
        unit="change of score (points)",
        note=f"{seeds_in_words(replicated, pale=True)}; {sample_size(counts)} for each{left_out_panels(panels)}",
        effects=True,
    )
    header = ["condition", "seeds", "metric (mode)", "heads needed in any seed", "in every seed", "which"]
    tables = [Table(header, cells, "Which heads are needed, and in how many seeds")]
    paragraphs = []
    if repeated:
        tables.append(agreement_table(repeated, f"{title}: agreement between seeds"))
        paragraphs.append(agreement_in_words(repeated, lower_first(title)))
        some = sum(int(row[3]) for row in cells if int(row[1]) > 1)
        every = sum(int(row[4]) for row in cells if int(row[1]) > 1)
        findings = [
            f"Of {some} heads needed in some seed of a condition, {every} {'is' if every == 1 else 'are'} needed in every seed."
        ]
    else:
        ever = sum(int(row[3]) for row in cells)
        seeds = f"In {len(cells)} condition{'s' * (len(cells) > 1)} of one seed each"
        findings = [f"{seeds}, {ever} head{' is' if ever == 1 else 's are'} needed; other seeds may need others."]
    over = {
        label: judged
        for label, replicates in comparison.replicates.items()
        if (judged := over_seeds(replicates, "head")) is not None
    }
    left_out = [name for replicates in comparison.replicates.values() for name in stopped_early(replicates)]
    if over:
        findings.append(_replicated_in_words(over, "head"))
        tables.append(_over_seeds_table(over, "head", left_out))
        paragraphs.append(_OVER_SEEDS)
    if left_out:
        paragraphs.append(
            f"Left out of verdicts over seeds, as their heads do not share their examples (ablation.looks): {', '.join(left_out)}."
        )
    block = FigureBlock(
        "ablation", figure, f"{title}, side by side on one scale.", "Heatmaps of disabling effects by condition."
    )
    title = "Heads: disabling (figure 8 of Kovaleva et al.)"
    return Section(title, findings, paragraphs, tables, [block], rows=rows)


_OVER_SEEDS = (
    "Over seeds, a head is judged by its mean change of score, with an interval over seeds and examples, corrected over heads: "
    "such a verdict is about fine-tuning, that of a single run about this run only. With fewer than five seeds it is rough, and "
    "few heads can be needed by it."
)


def _replicated_in_words(over: Mapping[str, OverSeeds], what: str) -> str:
    """How many findings of single seeds replicate over seeds."""
    found, held, every = (
        sum(len(places) for places in lists)
        for lists in (
            [judged.needed_somewhere for judged in over.values()],
            [judged.replicated for judged in over.values()],
            [judged.in_every_seed for judged in over.values()],
        )
    )
    if not found:
        return f"No single seed finds a {what} that is needed, so there is nothing to replicate."
    verdicts = [verdict for judged in over.values() for verdict in judged.verdict]
    new = verdicts.count(NEEDED) - held
    return (
        f"Over seeds and examples, {held} of the {found} {what}s that some single seed finds needed {_are(held)} needed, and "
        f"{every} {_are(every)} found in every seed; {new} more {_are(new)} needed only over seeds, "
        f"{verdicts.count(DISPENSABLE)} of {len(verdicts)} {WORDS[DISPENSABLE]}, and for {verdicts.count(INCONCLUSIVE)} there are "
        f"{WORDS[INCONCLUSIVE]}."
    )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _over_seeds_table(over: Mapping[str, OverSeeds], what: str, left_out: Sequence[str]) -> Table:
    """Every variant that some seed finds needed, or all seeds together.

    Args:
        over: The judged variants of each condition.
        what: ``head`` or ``layer``.
        left_out: Runs that are not among the seeds, as they stopped early.
    """
    rows = []
    for label, judged in over.items():
        shown = [v for v in range(len(judged.places)) if v in judged.needed_somewhere or judged.verdict[v] == NEEDED]
        for v in sorted(shown, key=lambda v: judged.effects.delta[v])[:_MOST_ROWS]:
            delta, low, high = (
                number(100 * float(numbers[v]), 1, signed=True)
                for numbers in (judged.effects.delta, judged.effects.low, judged.effects.high)
            )
            seeds = sum(verdicts[v] == NEEDED for verdicts in judged.single)
            layer, head = judged.places[v]
            name = f"layer {layer}" if head is None else head_label(layer, head)
            rows.append(
                [label, name, f"{seeds} of {len(judged.single)}", f"{delta} ({low} to {high})", judged.verdict[v]]
            )
    header = ["condition", what, "seeds that find it needed", "mean change over seeds, points", "verdict over seeds"]
    without = f"; without {', '.join(left_out)}, which stopped early" if left_out else ""
    return Table(header, rows, f"Which {what}s that a single seed finds needed replicate{without}")


def _layers(comparison: Comparison) -> Section | None:
    panels: list[LayerPanel] = []
    cells: list[list[str]] = []
    counts: list[int] = []
    costs: dict[str, float] = {}
    for label, replicates in comparison.replicates.items():
        effect = effects(replicates, "layer")
        if effect is None:
            continue
        delta_RL, certain_RL = 100 * effect.delta_RLH[:, :, 0], effect.certain_RLH[:, :, 0]
        worst = lowest_layer(delta_RL.T)
        if worst is None:
            continue
        panels.append(LayerPanel(label, delta_RL, certain_RL.mean(axis=0) > 0.5))
        counts += [effect.fewest, effect.count]
        costs[label] = float(np.nanmean(delta_RL[:, worst]))
        always = ", ".join(str(layer) for layer in np.flatnonzero(effect.needed_RLH[:, :, 0].all(axis=0))) or "none"
        cost = number(costs[label], 1, signed=True)
        cells.append([label, str(len(delta_RL)), effect.what, f"layer {worst}", cost, always])
    if not panels:
        return None
    title = "Change of score when a whole layer's heads are disabled"
    figure = layer_panels(
        panels[:MOST_PANELS],
        title=title,
        unit="change of score (points)",
        note=f"dots: seeds; bars: their mean, pale where significant in at most half of them; {sample_size(counts)}"
        f"{left_out_panels(panels)}",
    )
    header = ["condition", "seeds", "metric (mode)", "worst layer", "points", "layers needed in every seed"]
    most = min(costs, key=lambda label: costs[label])
    # A loss is not shown as zero points.
    digits = 1 if abs(costs[most]) >= 0.05 else 3
    finding = (
        f"The largest mean loss with a whole layer disabled is that of {most}, {number(costs[most], digits, signed=True)} "
        "points; conditions are not tested against each other."
        if costs[most] < 0
        else "Disabling a whole layer lowers the score of no condition, on average over seeds."
    )
    block = FigureBlock("ablation_layers", figure, f"{title}, by condition.", "Bar charts of layers by condition.")
    title = "Layers: disabling (figure 9 of Kovaleva et al.)"
    over = {
        label: judged
        for label, replicates in comparison.replicates.items()
        if (judged := over_seeds(replicates, "layer")) is not None
    }
    findings = [finding, *([_replicated_in_words(over, "layer")] if over else [])]
    left_out = [name for replicates in comparison.replicates.values() for name in stopped_early(replicates)]
    tables = [Table(header, cells), *([_over_seeds_table(over, "layer", left_out)] if over else [])]
    return Section(title, findings, [], tables, [block])
