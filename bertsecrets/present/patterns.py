"""Attention patterns on pages: figure 2 of Kovaleva et al. 2019, the pattern of each head, and their changes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bertsecrets.patterns.classes import NAMES, PATTERNS, Array, dominant_patterns, over_seeds, pattern_label
from bertsecrets.present.figures.patterns import ShareBar, pattern_bars, pattern_grid
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.grid import grid_comparison, highest
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import Section, Table, block
from bertsecrets.results.formatting import MISSING, are, head_label, number, percentage
from bertsecrets.results.run import INITIAL, TRAINING
from bertsecrets.results.views import Comparison, MeasureView

NAMED = "patterns assigned by a classifier trained on language models' labels, 77 to 87 % accurate on unseen models"
"""The end of the notes under figures of shares."""

ANNOTATED = (
    "A convolutional classifier assigns each map to one of the five patterns of Kovaleva et al. 2019 (section 4.1), "
    "or to none if two are about equally probable. It was trained on generated maps and on maps labelled by language "
    "models, not people. On maps of three models, each held out of training in turn, 87, 83 and 77 % of its "
    "predictions agreed with such labels (docs/patterns.md): expect one map in eight to one in four to be wrong."
)
"""Reliability of the pattern labels."""

_WIDEST = (
    "bars at the end of a share: 95 % intervals of the mean over heads, conservatively assuming that all heads' "
    "errors have the same sign"
)


def section(view: MeasureView) -> Section | None:
    """Shares of the patterns, the pattern of each head, and their changes; None without patterns."""
    if not all(view.has(name) for name in NAMES):
        return None
    share_LHC, error_LHC = _shares(view)
    if np.isnan(share_LHC).all():
        return Section(view.title, paragraphs=["No example has the 8 tokens required for a pattern."])
    note = f"{NAMED}; {sample_size(view.grid(NAMES[0])[2])}"
    every = _bar("all heads", share_LHC, error_LHC)
    layers = [_bar(f"layer {at}", share_LHC[at : at + 1], error_LHC[at : at + 1]) for at in range(len(share_LHC))]
    sentences, transitions = _movement(view)
    main_LH, most = dominant_patterns(share_LHC), int(every.share_C.argmax())
    ranked = Counter(pattern_label(PATTERNS[index]) for index in np.sort(main_LH[main_LH >= 0])).most_common()
    named = ", ".join(f"{name} {count}" for name, count in ranked)
    main = (
        f"According to the classifier, the most frequent pattern is {pattern_label(NAMES[most])} "
        f"({percentage(every.share_C[most])}); of {main_LH.size} heads {(main_LH >= 0).sum()} show one pattern in at "
        f"least half of their maps{': ' * bool(named)}{named}."
    )
    rows = [
        [
            pattern_label(name),
            f"{percentage(every.share_C[at], 1)} ± {percentage(every.error_C[at], 1)}",
            _highest(share_LHC[..., at]),
        ]
        for at, name in enumerate(NAMES)
    ]
    return Section(
        view.title,
        [main, *sentences],
        [f"{ANNOTATED} Shares depend on the classifier as well as on the model."],
        [
            Table(["pattern", "share of maps", "head with the highest share"], rows, "± half of a 95 % interval"),
            *transitions,
        ],
        [
            block(
                "patterns_shares",
                "Attention patterns, over all heads and by layer",
                pattern_bars,
                "Share of each pattern (figure 2 of the paper).",
                bars=[every, *layers],
                note=f"{note}; {_WIDEST}",
            ),
            block("patterns_heads", "The pattern of each head", pattern_grid, share_LHC=share_LHC, note=note),
        ],
        news=f"{ranked[0][1]} of {main_LH.size} heads {are(ranked[0][1])} {ranked[0][0]}" if ranked else "",
    )


def classes(view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
    """The pattern of at least half of a head's maps; a dash for none."""
    if not all(view.has(name) for name in NAMES):
        return {}
    labels = [*map(pattern_label, PATTERNS), MISSING]
    return {"pattern": [[labels[main] for main in main_H] for main_H in dominant_patterns(_shares(view)[0])]}


def comparison(compared: Comparison) -> Section | None:
    """Shares of the patterns over all heads by condition, and every column as in the default section."""
    bars, counts, seeds = [], [], []
    for label, replicates in compared.replicates.items():
        grids = [grid for name in NAMES if (grid := replicates.grids(name)) is not None]
        if len(grids) == len(NAMES):
            share_RLHC = np.stack([grid.value_RLH for grid in grids], axis=-1)
            error_RLHC = np.stack([grid.stderr_RLH for grid in grids], axis=-1)
            bars.append(ShareBar(label, *over_seeds(share_RLHC, error_RLHC)))
            counts.append(grids[0].count)
            seeds.append(len(share_RLHC))
    heads = grid_comparison(compared)
    if not bars or heads is None:
        return heads
    over = "over seeds (Student's t)" if min(seeds) > 1 else "over seeds if there are several, else over examples"
    free_N = [float(bar.share_C[[NAMES.index(name) for name in ("heterogeneous", "block")]].sum()) for bar in bars]
    most, least = int(np.argmax(free_N)), int(np.argmin(free_N))
    others = (
        f" of {bars[most].name} and {percentage(free_N[least])} of those of {bars[least].name}" if len(bars) > 1 else ""
    )
    finding = (
        "Heterogeneous and block maps, which Kovaleva et al. consider potentially informative, are "
        f"{percentage(free_N[most])} of the maps{others}; in the paper 32 % (MRPC) to 61 % (QQP)."
    )
    rows = [
        [
            bar.name,
            *(
                f"{percentage(of, 1)} ± {percentage(reach, 1)}"
                for of, reach in zip(bar.share_C, bar.error_C, strict=True)
            ),
            percentage(free, 1),
        ]
        for bar, free in zip(bars, free_N, strict=True)
    ]
    header = ["", *map(pattern_label, NAMES), "heterogeneous + block"]
    figure = block(
        "patterns_shares",
        "Attention patterns, over all heads",
        pattern_bars,
        bars=bars,
        note=f"{NAMED}; {sample_size(counts)} for each; bars at the end of a share: 95 % intervals {over}",
    )
    return replace(
        heads,
        title="Attention patterns (figure 2 of Kovaleva et al.)",
        findings=[finding, *heads.findings],
        paragraphs=[ANNOTATED, *heads.paragraphs],
        tables=[Table(header, rows, f"Share of attention maps ± half of a 95 % interval {over}"), *heads.tables],
        figures=[figure, *heads.figures],
    )


PRESENTER = Presenter(section, comparison, classes)


def _shares(view: MeasureView) -> tuple[Array, Array]:
    """Shares and their standard errors, ``[layers, heads, patterns]``."""
    return np.stack([view.value(name) for name in NAMES], -1), np.stack([view.stderr(name) for name in NAMES], -1)


def _bar(name: str, share_LHC: Array, error_LHC: Array) -> ShareBar:
    return ShareBar(name, *over_seeds(share_LHC[None], error_LHC[None]))


def _highest(share_LH: Array) -> str:
    head = highest(share_LH)
    return f"{head_label(*head)} ({percentage(share_LH[head])})" if share_LH[head] > 0 else MISSING


def _movement(view: MeasureView) -> tuple[list[str], list[Table]]:
    """Changes since the model before fine-tuning, or since the first step with patterns; empty without either."""
    steps = [step for step in view.rows.steps(view.name, NAMES[0], TRAINING) if view.step is None or step < view.step]
    before, start = view.at(INITIAL), "before fine-tuning"
    if before is None and steps:
        before, start = view.at(TRAINING, steps[0]), f"at step {steps[0]}"
    if before is None:
        return [], []
    shares = [_shares(moment)[0] for moment in (before, view)]
    before_LH, after_LH = map(dominant_patterns, shares)
    labels = [*map(pattern_label, PATTERNS), "none"]
    counts = np.zeros((len(labels), len(labels)), int)
    np.add.at(counts, (before_LH.ravel(), after_LH.ravel()), 1)
    transitions = Table(
        [f"{start} (rows), at step {view.step}", *labels],
        [[label, *map(str, count_C)] for label, count_C in zip(labels, counts.tolist(), strict=True)],
        "Heads by the pattern of at least half of their maps",
    )
    change_C = np.subtract(*(np.nanmean(share_LHC, axis=(0, 1)) for share_LHC in reversed(shares)))
    most = int(np.abs(change_C).argmax())
    named_LH = (before_LH >= 0) & (after_LH >= 0)
    sentence = (
        f"Compared with the model {start}, {((before_LH != after_LH) & named_LH).sum()} of the {named_LH.sum()} heads "
        f"with a pattern both times changed it; the share that changed most is {pattern_label(NAMES[most])}, by "
        f"{number(100 * change_C[most], 1, signed=True)} percentage points."
    )
    return [sentence], [transitions]
