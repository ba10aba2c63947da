"""Attention to linguistic features, and between linked words, on pages (Kovaleva et al. 2019, sections 4.4 and 4.5)."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertsecrets.measures.linguistic.columns import (
    BEYOND,
    BEYOND_WORD,
    CLS_TO,
    FAR,
    MEAN,
    OVER_RANDOM,
    RANDOM,
    SPECIAL,
    UNIFORM,
    feature_label,
    pair_label,
)
from bertsecrets.present.figures.grids import HeadPanel, head_panels, heatmap
from bertsecrets.present.figures.layers import LayerLine, layer_scatter
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.grid import highest
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.ranking import like_the_extreme, picked
from bertsecrets.present.report.content import Section, block, table
from bertsecrets.results.formatting import counted, have, head_label, listed, number, percentage
from bertsecrets.results.views import LEVEL, Array, MeasureView

_LOWEST = -8
"""Exponent (base 2) of the lowest multiple that the figure distinguishes from zero."""

Masks = Mapping[str, NDArray[np.bool_]]


def features_section(view: MeasureView) -> Section | None:
    """Attention to each feature, compared with random words; None if no example has any.

    Raises:
        MissingColumnError: If the run comes from a version without that comparison.
    """
    names = [name for name in _occurring(view) if not name.endswith((UNIFORM, RANDOM, OVER_RANDOM))]
    if not names:
        return None
    special = [name for name in names if name in ("cls", "sep")]
    words = [name for name in names if name not in SPECIAL]
    above = _beyond(view, names, OVER_RANDOM)
    columns: dict[str, Callable[[str], str]] = {
        "feature": feature_label,
        "examples": lambda name: f"{view.count(name):,}",
        "mean of heads": lambda name: _mean(view, name),
        "uniform": lambda name: _mean(view, name + UNIFORM),
        "random words": lambda name: _mean(view, name + RANDOM),
        "heads above that": lambda name: f"{above[name].sum()} of {above[name].size}",
        "highest head (95 %)": lambda name: _strongest(view, name),
    }
    sentence, head = _furthest_above_random(view, {name: above[name] for name in words})
    figures = []
    if special:
        title = "Attention to special tokens, by layer"
        drawn = block(
            f"{view.name}_special",
            title,
            layer_scatter,
            f"{title} (figure 6 of Kovaleva et al.).",
            panels={title: [LayerLine(SPECIAL[name], view.value(name)) for name in special]},
            unit="mean attention received",
            note=sample_size([view.count(name) for name in special]),
            level=float(np.nanmean(view.value(special[0] + UNIFORM))),
            level_name="uniform attention",
        )
        figures.append(drawn)
    if words:
        title = "Attention to words, as a multiple of attention to random words"
        powers = range(_LOWEST, -_LOWEST + 1)
        drawn = block(
            f"{view.name}_words",
            title,
            head_panels,
            f"{title} (section 4.4 of Kovaleva et al.).",
            panels=[
                HeadPanel(
                    _panel(view, name, feature_label(name)), np.log2(np.maximum(_ratio(view, name), 2.0**_LOWEST))
                )
                for name in words
            ],
            unit="multiple of random words",
            note=sample_size([view.count(name) for name in words]),
            signed=True,
            ticks={float(power): f"{2**power}×" if power >= 0 else f"1/{2**-power}×" for power in powers},
        )
        figures.append(drawn)
    return Section(
        view.title,
        [*([_special_in_words(view, special)] if special else ()), *sentence],
        [
            "Each number is the largest mean attention that a token with the feature receives, averaged over the "
            "examples with such a token (Kovaleva et al. 2019, section 4.4). The largest of several tokens exceeds "
            "uniform attention, 1/L, even if a head ignores the feature: “random words” is the head's expected "
            "number if the same number of random words of the example had the feature. Heads are counted as above it "
            f"by one-sided t tests of the differences over examples, at a false discovery rate of {percentage(LEVEL)} "
            "over all heads and features."
        ],
        [table(names, columns, "Features, over all heads, compared with random words")],
        figures,
        head=head,
    )


def pairs_section(view: MeasureView) -> Section | None:
    """Attention of [CLS] in the last layer, and between linked words; None if no example has either.

    Raises:
        MissingColumnError: If the run comes from a version without one of the comparisons.
    """
    names = _occurring(view)
    from_cls = [name for name in names if name.startswith(CLS_TO) and not name.endswith(RANDOM)]
    pairs = [name.removesuffix(BEYOND) for name in names if name.endswith(BEYOND)]
    if not from_cls and not pairs:
        return None
    by_position, by_word = (_beyond(view, pairs, end) for end in (BEYOND, BEYOND_WORD))
    beyond = {name: by_position[name] & by_word[name] for name in pairs}

    def at_highest(name: str, end: str) -> str:
        return number(float(view.value(name + end)[highest(view.value(name))]) if name + end in names else np.nan)

    columns: dict[str, Callable[[str], str]] = {
        "words": pair_label,
        "examples": lambda name: f"{view.count(name):,}",
        "highest head (95 %)": lambda name: _strongest(view, name),
        "its mean": lambda name: at_highest(name, MEAN),
        "of that beyond position": lambda name: at_highest(name, BEYOND),
        "of that beyond the word": lambda name: at_highest(name, BEYOND_WORD),
        "it far apart": lambda name: at_highest(name, FAR),
        "heads beyond both": lambda name: f"{beyond[name].sum()} of {beyond[name].size}",
        "furthest beyond position (95 %)": lambda name: _strongest(view, name + BEYOND),
    }
    caption = "Linked words, and the highest head's mean attention to them beyond position and word"
    sentence, head = _furthest_beyond(view, beyond)
    figures = []
    if from_cls:
        last_RH = np.stack([view.value(name)[-1] for name in from_cls])
        title = f"What [CLS] attends to in the last layer ({len(view.value(from_cls[0])) - 1})"
        drawn = block(
            f"{view.name}_cls",
            title,
            heatmap,
            f"{title} (figure 7 of Kovaleva et al.).",
            value_LH=last_RH,
            unit="largest attention from [CLS]",
            count=[view.count(name) for name in from_cls],
            limits=(0.0, max(0.5, float(np.nanmax(last_RH)))),
            rows=[feature_label(name.removeprefix(CLS_TO)) for name in from_cls],
        )
        figures.append(drawn)
    if beyond:
        drawn = block(
            f"{view.name}_beyond_position",
            "Attention between linked words beyond position",
            head_panels,
            "Attention to linked words beyond that to other words at the same distance.",
            panels=[
                HeadPanel(_panel(view, name, pair_label(name)), view.value(name + BEYOND), beyond_LH)
                for name, beyond_LH in beyond.items()
            ],
            unit="attention beyond that at the same distance",
            note=f"{sample_size([view.count(name) for name in beyond])}; pale: not significantly beyond both position "
            f"and word at a false discovery rate of {percentage(LEVEL)}",
            signed=False,
        )
        figures.append(drawn)
    return Section(
        view.title,
        [*([_from_cls_in_words(view, from_cls)] if from_cls else ()), *sentence],
        [
            "The largest attention between neighbours says little about syntax: a head that attends to the next "
            "token finds most verbs of a subject (Kovaleva et al. 2019, section 4.5). “Beyond position” is the mean "
            "attention over such pairs of tokens minus that between other words of the same sentences at the same "
            "signed distance; 0 is expected for a head that attends by position only. “Beyond the word” is the mean "
            "minus the attention to the same second words from the other words of the first word's sentence. Heads "
            "are counted as beyond both by one-sided t tests over examples, each at a false discovery rate of "
            f"{percentage(LEVEL)} over all heads and kinds of words."
        ],
        [table(pairs, columns, caption)] if pairs else [],
        figures,
        head=head,
    )


FEATURES, PAIRS = Presenter(features_section), Presenter(pairs_section)


def _occurring(view: MeasureView) -> list[str]:
    """Columns with at least one example, without sums over separators if there is only one."""
    names = [column.name for column in view.columns if view.has(column.name) and view.count(column.name)]

    def repeats(name: str) -> bool:
        single = name.replace("sep_total", "sep")
        return (
            name != single and single in names and np.array_equal(view.value(name), view.value(single), equal_nan=True)
        )

    return [name for name in names if not repeats(name)]


def _beyond(view: MeasureView, names: Sequence[str], end: str) -> Masks:
    """Which heads have a difference significantly above 0 in the columns with this suffix, corrected jointly."""
    beyond = view.beyond(dict.fromkeys((name + end for name in names), 0.0))
    return {name: beyond[name + end] for name in names}


def _mean(view: MeasureView, name: str) -> str:
    return number(float(np.nanmean(view.value(name))))


def _strongest(view: MeasureView, name: str) -> str:
    """The head with the highest value of a column, with simultaneous limits over all heads."""
    top = highest(view.value(name))
    return f"{head_label(*top)}: {picked(top, *view.grid(name), bounds=view.column(name).limits)}"


def _panel(view: MeasureView, name: str, label: str) -> str:
    """A panel's title with the number of examples, kept on one line."""
    return f"{label} (n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{view.count(name):,})"


def _ratio(view: MeasureView, name: str) -> Array:
    ratio_LH: Array = view.value(name) / view.value(name + RANDOM)
    return ratio_LH


def _special_in_words(view: MeasureView, special: Sequence[str]) -> str:
    """The layers that attend most to special tokens."""
    mean_L = {name: np.nanmean(view.value(name), 1) for name in special}
    if len(view.value(special[0])) == 1:
        received = listed([f"{SPECIAL[name]} {number(means[0])}" for name, means in mean_L.items()])
        return f"In the only layer, tokens give {received} of their attention to special tokens on average."
    peaks = {name: int(np.nanargmax(means)) for name, means in mean_L.items()}
    told = [
        f"{SPECIAL[name]} equally in all layers ({number(means[0])})"
        if number(float(np.nanmin(means))) == number(float(np.nanmax(means)))
        else f"{SPECIAL[name]} in layer {peaks[name]} ({number(means[peaks[name]])} on average over heads)"
        for name, means in mean_L.items()
    ]
    order = ""
    if len(special) == 2 and peaks["cls"] != peaks["sep"]:
        which = "the paper's order" if peaks["cls"] < peaks["sep"] else "not the paper's order"
        order = f"; that is {which}, [CLS] early and [SEP] late, but differences between layers are not tested"
    return f"Mean attention is highest to {listed(told)}{order}."


def _furthest_above_random(view: MeasureView, above: Masks) -> tuple[list[str], tuple[int, int] | None]:
    """A sentence on the head furthest above random words, and the head."""
    if not above:
        return [], None
    ratios = {name: np.where(above_LH, _ratio(view, name), -1.0) for name, above_LH in above.items()}
    best = max(ratios, key=lambda name: float(np.nanmax(ratios[name])))
    if not above[best].any():
        kinds = f"any of the {len(above)} kinds of words" if len(above) > 1 else feature_label(best)
        return [f"No head gives {kinds} significantly more attention than random words of the same examples."], None
    top, label, count = highest(ratios[best]), feature_label(best), int(above[best].sum())
    # The numbers of random words come from the same head, so only the excess has its own error.
    stderr_LH = view.stderr(best + OVER_RANDOM) / view.value(best + RANDOM)
    like = like_the_extreme(_ratio(view, best), stderr_LH, view.grid(best + OVER_RANDOM)[2])
    heads = f"{count} of {above[best].size} heads {'give' if count > 1 else 'gives'}"
    sentence = (
        f"Furthest above random words of the same examples is attention to {label} in {head_label(*top)}, "
        f"{ratios[best][top]:.1f} times as much; "
        f"{heads if above[best].size > 1 else 'it is the only head, and gives'} {label} significantly more."
    )
    return [f"{sentence} {like}".strip()], top


def _from_cls_in_words(view: MeasureView, from_cls: Sequence[str]) -> str:
    """The main targets of [CLS] in the last layer."""
    means = {name: float(np.nanmean(view.value(name)[-1])) for name in from_cls}
    told = [
        f"{feature_label(name.removeprefix(CLS_TO))} ({number(means[name])}; random words get "
        f"{number(float(np.nanmean(view.value(name + RANDOM)[-1])))})"
        for name in sorted(means, key=lambda name: -means[name])[:2]
    ]
    return f"In the last layer, the mean attention of [CLS] over heads is highest to {', then to '.join(told)}."


def _furthest_beyond(view: MeasureView, beyond: Masks) -> tuple[list[str], tuple[int, int] | None]:
    """A sentence on how many pairs have a head beyond position and word, and the head furthest beyond position."""
    kinds = counted(len(beyond), "kind of linked words", "kinds of linked words")
    furthest = {name: np.where(beyond_LH, view.value(name + BEYOND), -np.inf) for name, beyond_LH in beyond.items()}
    found = [name for name, beyond_LH in beyond.items() if beyond_LH.any()]
    if not found:
        sentence = f"No head attends to any of {kinds} significantly beyond both position and word."
        return [sentence] if beyond else [], None
    best = max(found, key=lambda name: float(furthest[name].max()))
    top, grid = highest(furthest[best]), view.grid(best + BEYOND)
    sentence = (
        f"Of {kinds}, {len(found)} {have(len(found))} a head that attends to them beyond both position and word; "
        f"furthest beyond position is {head_label(*top)} for {pair_label(best)}, "
        f"{picked(top, *grid, columns=len(beyond))}."
    )
    return [f"{sentence} {like_the_extreme(*grid)}".strip()], top
