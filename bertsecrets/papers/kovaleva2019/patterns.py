"""Section 4.1, figures 1 and 2: which patterns the maps show, task by task, and a map of each pattern."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from bertsecrets.papers.chapter import (
    Answers,
    Chapter,
    Claim,
    PaperRuns,
    claims_tables,
    not_learned,
    published_for,
    without_unlearned,
)
from bertsecrets.papers.kovaleva2019 import published
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import MIN_LENGTH, load_classifier
from bertsecrets.patterns.measure import ANNOTATED, NAMED, Patterns, over_seeds
from bertsecrets.reporting.runs import FinishedRun
from bertsecrets.results.captures import read_maps, read_steps
from bertsecrets.results.figures.map_sheets import TitledMap, map_sheet
from bertsecrets.results.figures.patterns import ShareBar, pattern_bars
from bertsecrets.results.figures.style import sample_size
from bertsecrets.results.formatting import head_label, number
from bertsecrets.results.report.content import FigureBlock, Section, Table
from bertsecrets.results.run import CAPTURES

_NAMES = tuple(column.name for column in Patterns.columns)
_PAPER_ORDER = ("heterogeneous", "block", "vertical_diagonal", "diagonal", "vertical")
_CLOSE = 0.05


def patterns(runs: PaperRuns) -> Chapter | None:
    """Shares of the patterns of fine-tuned models, per task; None if no run measured them."""
    bars, drawn, rows, counts = [], [], [], []
    for condition in runs.pretrained:
        grids = [grid for name in _NAMES if (grid := condition.grids(Patterns.name, name)) is not None]
        if len(grids) < len(_NAMES):
            continue
        share_RLHC = np.stack([grid.value_RLH for grid in grids], axis=-1)
        error_RLHC = np.stack([grid.stderr_RLH for grid in grids], axis=-1)
        bar = ShareBar(runs.name(condition), *over_seeds(share_RLHC, error_RLHC))
        bars.append(bar)
        drawn.append(replace(bar, name=runs.title(condition)))
        counts.append(grids[0].count)
        rows.append([bar.name, *_with_published(_shares(bar), published_for(condition, published.PATTERNS))])
    if not bars:
        return None
    claims = _claims(runs, bars)
    typical = typical_maps(runs)
    blocks = (
        [FigureBlock("paper_figure1", typical, "Figure 1: a map of each pattern.", "Five attention maps.")]
        if typical is not None
        else []
    )
    figure = pattern_bars(
        drawn,
        _NAMES,
        title="Share of each attention pattern",
        note=f"{NAMED}; {sample_size(counts)} for each; bars at the end of a share: 95% intervals over seeds, or over examples "
        "where there is one seed",
        unit="share of attention maps",
    )
    blocks.append(FigureBlock("paper_figure2", figure, "Figure 2, by task.", "Stacked bars of the shares of patterns."))
    section = Section(
        "Section 4.1, figures 1 and 2: which patterns do the heads show?",
        paragraphs=[
            ANNOTATED,
            *not_learned(runs, runs.pretrained),
            "Shares of patterns depend on the classifier as well as on the model: with the same annotated maps and nearly the "
            "same network, Prasanna et al. 2020 found shares that differ from the paper's by up to 30 percentage points.",
        ],
        tables=[
            *claims_tables(claims),
            Table(
                ["task", *(name.replace("_", " + ") for name in _NAMES)],
                rows,
                "Share of attention maps in percent, these runs / paper (figure)",
            ),
        ],
        figures=blocks,
    )
    return Chapter(section, claims)


def _shares(bar: ShareBar) -> dict[str, float]:
    return dict(zip(_NAMES, np.asarray(bar.share_C).tolist(), strict=True))


def _with_published(shares: Mapping[str, float], theirs: Sequence[float] | None) -> list[str]:
    known = {} if theirs is None else dict(zip(_PAPER_ORDER, theirs, strict=True))
    return [
        number(100 * share, 1) + (f" / {number(known[name], 1)}" if name in known else "")
        for name, share in shares.items()
    ]


def _claims(runs: PaperRuns, bars: Sequence[ShareBar]) -> list[Claim]:
    ends = {bar.name: _ends(bar) for bar in bars}
    informative = [share["heterogeneous"] + share["block"] for share in (_shares(bar) for bar in bars)]
    within, heterogeneous, vertical = Answers(), Answers(), Answers()
    for name, (low, high) in ends.items():
        within[name] = _between(low["informative"], high["informative"], 0.32 - _CLOSE, 0.61 + _CLOSE)
        heterogeneous[name] = _between(low["heterogeneous"], high["heterogeneous"], -1.0, 0.5)
        vertical[name] = _between(low["vertical"], high["vertical"], 1 / 3, 2.0)
    within, heterogeneous, vertical = (
        without_unlearned(runs, runs.pretrained, answers) for answers in (within, heterogeneous, vertical)
    )
    return [
        Claim(
            "Maps that could be informative (heterogeneous and block) are 32% to 61% of all, by task.",
            f"They are {_range(informative)}; within 5 points of that range, with their intervals: {within}.",
            within.everywhere,
        ),
        Claim(
            "In most cases less than half of the maps are heterogeneous (in the paper's figure, for 4 of 7 tasks).",
            f"Less than half, with their intervals: {heterogeneous}.",
            heterogeneous.mostly,
        ),
        Claim(
            "At least a third of the heads simply attend to [SEP] and [CLS] (in the paper's figure, for 4 of 7 tasks).",
            f"A third or more of the maps are vertical, with their intervals: {vertical}.",
            vertical.mostly,
        ),
    ]


def _ends(bar: ShareBar) -> tuple[dict[str, float], dict[str, float]]:
    """Lower and upper ends of the intervals of all shares, in 0..1, and of heterogeneous and block maps together."""
    reach = dict(zip(_NAMES, np.asarray(bar.error_C).tolist(), strict=True))
    shares = _shares(bar)
    shares["informative"] = shares["heterogeneous"] + shares["block"]
    reach["informative"] = reach["heterogeneous"] + reach["block"]
    low, high = ({name: share + sign * reach[name] for name, share in shares.items()} for sign in (-1, 1))
    return (
        {name: max(0.0, end) for name, end in low.items()},
        {name: min(1.0, end) for name, end in high.items()},
    )


def _between(low: float, high: float, least: float, most: float) -> bool | None:
    """Whether an interval lies inside two limits; None if it reaches over one of them or is not known."""
    if not np.isfinite([low, high]).all():
        return None
    if least <= low and high <= most:
        return True
    return False if high < least or low > most else None


def _range(shares: Sequence[float]) -> str:
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return low if low == high else f"{low} to {high}"


def typical_maps(runs: PaperRuns) -> Figure | None:
    """The fine-tuned models' map of each pattern that the classifier is most certain of; None if no run kept maps."""
    classifier = load_classifier()
    best: dict[int, tuple[float, str, Tensor]] = {}
    kept = 0
    for condition in runs.pretrained:
        for map_LHQK in _last_maps(condition.runs[0]):
            length = map_LHQK.shape[-1]
            if length < MIN_LENGTH:
                continue
            kept += map_LHQK[..., 0, 0].numel()
            judgement = classifier(map_LHQK, torch.ones(map_LHQK.shape[0], length, dtype=torch.bool))
            for place in range(len(PATTERNS)):
                probability_LH = judgement.probability_P[..., place].masked_fill(judgement.pattern != place, -1.0)
                layer, head = divmod(int(probability_LH.argmax()), probability_LH.shape[1])
                probability = float(probability_LH[layer, head])
                if probability > best.get(place, (0.0,))[0]:
                    source = f"{runs.name(condition)}, {head_label(layer, head)}"
                    best[place] = (probability, source, map_LHQK[layer, head])
    if not best:
        return None
    titled = [
        TitledMap(
            f"{PATTERNS[place].replace('_', ' + ')} ({number(probability, 2)})\n{source}\n{map_QK.shape[-1]} tokens",
            map_QK,
        )
        for place, (probability, source, map_QK) in sorted(best.items())
    ]
    return map_sheet(
        titled,
        title="A map of each pattern, after fine-tuning",
        note=f"of {kept:,} maps that the runs kept, those that the classifier is most certain of (its probability in "
        "brackets); attending tokens downward, attended tokens to the right; from dark violet (0) to yellow (the "
        "largest weight of the map); layers and heads count from 0",
    )


def _last_maps(run: FinishedRun) -> Iterator[Tensor]:
    steps = read_steps(run.folder / CAPTURES)
    if steps:
        yield from read_maps(steps[max(steps)]).values()
