"""The report's section on attention from token to token."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsecrets.doors.feature_columns import RATE, Columns, counted, highest, shown, strongest
from bertsecrets.doors.wording import TOKEN_TO_TOKEN
from bertsecrets.measures.token_to_token import BEYOND, CLS_TO, FAR, MEAN, UNIFORM
from bertsecrets.results.figures.heatmap import heatmap
from bertsecrets.results.figures.panels import HeadPanel, head_panels
from bertsecrets.results.figures.style import number, sample_size
from bertsecrets.results.report.content import FigureBlock, Section, Table


def token_to_token_section(columns: Columns, figures: dict[str, Figure], lead: list[str]) -> Section:
    """What [CLS] attends to and which linked words attend to each other; adds to ``figures`` and ``lead``."""
    from_cls = [name for name in columns.names if name.startswith(CLS_TO)]
    pairs = [name.removesuffix(BEYOND) for name in columns.names if name.endswith(BEYOND)]
    blocks: list[FigureBlock] = []
    tables: list[Table] = []
    sentences: list[str] = []
    if from_cls:
        blocks.append(_cls_figure(columns, from_cls, figures))
        sentences.append(_cls_finding(columns, from_cls))
    if pairs:
        certain = columns.above_zero([name + BEYOND for name in pairs])
        blocks += _pair_figures(columns, pairs, certain, figures)
        tables.append(_pair_table(columns, pairs, certain))
        sentences.append(_beyond_finding(columns, pairs, certain))
    lead += sentences
    return Section(
        TOKEN_TO_TOKEN[columns.measure],
        paragraphs=[
            *sentences,
            "The largest attention between two linked words says little of syntax where they stand side by side: a head "
            "that looks at the next token finds most verbs of a subject (Kovaleva et al. 2019, section 4.5, saw the same). "
            "“Beyond position” is what is left of the mean attention over all such pairs of tokens once the mean attention "
            "between other words of the same sentences at the same signed distance is taken off, so that 0 is expected of a "
            f"head that goes by position alone. Heads are counted as beyond it by a one-sided t test over examples, at a "
            f"false discovery rate of {RATE:.0%} over all heads and kinds of words.",
        ],
        tables=tables,
        figures=blocks,
    )


def _cls_figure(columns: Columns, from_cls: Sequence[str], figures: dict[str, Figure]) -> FigureBlock:
    last_RH = np.stack([columns.value(name)[-1] for name in from_cls])
    title = f"What [CLS] attends to in the last layer ({len(columns.value(from_cls[0])) - 1})"
    figures[f"{columns.measure}_cls"] = heatmap(
        last_RH,
        title=title,
        unit="largest attention from [CLS]",
        count=[columns.count(name) for name in from_cls],
        limits=(0.0, max(0.5, float(np.nanmax(last_RH)))),
        rows=[shown(name.removeprefix(CLS_TO)) for name in from_cls],
    )
    caption = f"{title} (figure 7 of Kovaleva et al.)."
    return FigureBlock(figures[f"{columns.measure}_cls"], caption, "Heatmap of features by heads.")


def _cls_finding(columns: Columns, from_cls: Sequence[str]) -> str:
    means = {shown(name.removeprefix(CLS_TO)): float(np.nanmean(columns.value(name)[-1])) for name in from_cls}
    first, *others = sorted(means, key=lambda name: -means[name])
    then = f", then to {others[0]} ({means[others[0]]:.3f})" if others else ""
    return (
        f"In the last layer [CLS] attends most to {first} ({means[first]:.3f} on average over heads){then}; uniform "
        f"attention gives {np.nanmean(columns.value(UNIFORM)):.3f}."
    )


def _pair_figures(
    columns: Columns, pairs: Sequence[str], certain: Sequence[NDArray[np.bool_]], figures: dict[str, Figure]
) -> list[FigureBlock]:
    titles = [counted(columns, name, _pair_name(name)) for name in pairs]
    counts = sample_size([columns.count(name) for name in pairs])
    figures[f"{columns.measure}_pairs"] = head_panels(
        [HeadPanel(title, columns.value(name)) for title, name in zip(titles, pairs, strict=True)],
        title="Attention between linked words",
        unit="largest attention weight",
        note=counts,
        limits=(0.0, 1.0),
    )
    figures[f"{columns.measure}_beyond_position"] = head_panels(
        [
            HeadPanel(title, columns.value(name + BEYOND), certain_LH)
            for title, name, certain_LH in zip(titles, pairs, certain, strict=True)
        ],
        title="Attention between linked words, less what position alone gives",
        unit="attention beyond that at the same distance",
        note=f"{counts}; pale: not above position alone at a false discovery rate of {RATE:.0%}",
        signed=False,
    )
    return [
        FigureBlock(
            figures[f"{columns.measure}_pairs"],
            "Attention between linked words (figure 7 of Kovaleva et al.).",
            "Heatmaps of heads.",
        ),
        FigureBlock(
            figures[f"{columns.measure}_beyond_position"],
            "Attention to linked words beyond that to other words at the same distance.",
            "Heatmaps of heads; those not above position alone are pale.",
        ),
    ]


def _pair_name(name: str) -> str:
    return name.replace("_to_", " → ").replace("_", " ")


def _pair_table(columns: Columns, pairs: Sequence[str], certain: Sequence[NDArray[np.bool_]]) -> Table:
    header = [
        "words",
        "examples",
        "highest head ± standard error",
        "its mean",
        "of that beyond position",
        "it far apart",
    ]
    header += ["heads beyond position", "furthest beyond it ± standard error"]
    rows = []
    for name, certain_LH in zip(pairs, certain, strict=True):
        place = highest(columns.value(name))
        far = columns.value(name + FAR)[place] if name + FAR in columns.names else np.nan
        rows.append(
            [
                _pair_name(name),
                f"{columns.count(name):,}",
                strongest(columns, name),
                f"{columns.value(name + MEAN)[place]:.3f}",
                number(columns.value(name + BEYOND)[place], 3),
                f"{far:.3f}" if np.isfinite(far) else "–",
                f"{int(certain_LH.sum())} of {certain_LH.size}",
                strongest(columns, name + BEYOND),
            ]
        )
    caption = "Linked words, and how much of the highest head's mean attention to them is left without position"
    return Table(header, rows, caption)


def _beyond_finding(columns: Columns, pairs: Sequence[str], certain: Sequence[NDArray[np.bool_]]) -> str:
    """Which pair has the head that goes furthest beyond position, and how many pairs have any."""
    with_any = sum(bool(certain_LH.any()) for certain_LH in certain)
    best = max(pairs, key=lambda name: float(np.nanmax(columns.value(name + BEYOND))))
    return (
        f"Beyond position, {with_any} of {len(pairs)} kinds of linked words have a head that attends to them; furthest "
        f"goes {strongest(columns, best + BEYOND)} for {_pair_name(best)}."
    )
