"""Attention to linguistic features: how much each head attends to nouns, subjects, [SEP] and the like."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsecrets.data.batch import Batch
from bertsecrets.data.example import Matching
from bertsecrets.data.tokenization import EncodedSplit
from bertsecrets.errors import UserError
from bertsecrets.grid import Column
from bertsecrets.measures.base import Feed, Length, MaxExamples, Measure, Need, once_per_batch
from bertsecrets.measures.linguistic.baselines import RandomWords
from bertsecrets.measures.linguistic.columns import SPECIAL, counted, feature_label, occurring, strongest
from bertsecrets.measures.linguistic.matching import matching_of
from bertsecrets.measures.linguistic.word_features import Feature, check_occurs, features_from_config
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.figures.layers import LayerLine, layer_scatter
from bertsecrets.present.figures.style import sample_size
from bertsecrets.present.grid import highest
from bertsecrets.present.ranking import like_the_extreme
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.results.formatting import head_label, number
from bertsecrets.results.views import LEVEL, MeasureView
from bertsecrets.settings import typed

KOVALEVA = "features_kovaleva"
"""Name of the measure with ``matching=kovaleva``."""

_RECEIVED = "largest mean attention received by a token"
_LOWEST = -8
"""Exponent (base 2) of the lowest multiple that the figure distinguishes from zero."""

Absent = Literal["exclude", "kovaleva"]

UNIFORM, RANDOM, OVER_RANDOM = "_uniform", "_random", "_over_random"
"""Suffixes of the columns with the value under uniform attention, that of random words, and the difference from it."""


def attention_received(attention_BHQK: Tensor, real_BS: Tensor) -> Tensor:
    """The mean attention that each token receives from the L real tokens, ``[B, H, S]`` in 0..1; padding receives 0."""
    weight_BS = real_BS.to(attention_BHQK.dtype)
    weight_B11Q = (weight_BS / weight_BS.sum(-1, keepdim=True))[:, None, None]
    return (weight_B11Q @ attention_BHQK)[:, :, 0]


def pooled(values_BHS: Tensor, mask_BFS: Tensor, features: Iterable[Feature]) -> Tensor:
    """The largest value (or the sum) among the tokens of each feature, ``[B, H, F]``; NaN if there is no such token."""
    # -inf, not 0: an absent feature is told from one that gets nothing.
    values_BHF = values_BHS[:, :, None].masked_fill(~mask_BFS[:, None], -torch.inf).amax(-1)
    for column, feature in enumerate(features):
        if feature.pool == "sum":
            values_BHF[:, :, column] = (values_BHS * mask_BFS[:, None, column]).sum(-1)
    return values_BHF.masked_fill(~mask_BFS.any(-1)[:, None], torch.nan)


class Features(Measure):
    """Attention to linguistic features (Kovaleva et al. 2019, section 4.4; methods K5).

    Columns:
        ``<feature>``: s = max over tokens j with the feature of (1/L) * sum over the L real tokens i of A_ij, special
            tokens included, in 0..1; with ``pool: sum``, the sum over j.
        ``<feature>_uniform``: the value under uniform attention on the same examples: 1/L for each token.
        ``<feature>_random``: the expectation of the same head's number if as many random words of the example had the
            feature, exactly (:class:`RandomWords`): the largest of several words exceeds 1/L in any head.
        ``<feature>_over_random``: ``<feature>`` minus that, example by example; -1..1.

    Args:
        features: Name -> kinds, see :class:`Feature`.
        matching: From words to tokens: by character ``offsets``, or by spelling as the original code does (``kovaleva``).
        absent: Examples without the feature: ``exclude`` ignores them, as the paper says; ``kovaleva`` counts them
            as 0, as the original code does for all features but negation.
        max_examples: A random sample of this many examples; None for all. The paper takes 1000.
        max_length: Truncate to this many tokens; None for the task's. The original's is 200.

    Raises:
        UserError: If there is no feature, a feature is not valid, or ``matching`` or ``absent`` does not exist.
    """

    name = "features"
    title = "Attention to linguistic features"
    tracked = ()

    @typed
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        features: Mapping[str, Mapping[str, Any] | None],
        matching: Matching = "offsets",
        absent: Absent = "exclude",
        max_examples: MaxExamples = None,
        max_length: Length | None = None,
    ) -> None:
        self.features = features_from_config(features)
        if not self.features:
            raise UserError("The measure of linguistic features has no features; give at least one under features.")
        if matching == "kovaleva":
            # One table may hold both definitions, under different names.
            self.name = KOVALEVA
            self.title = "Attention to linguistic features, by the original code's definitions"
        kinds = {
            "": "",
            UNIFORM: ", uniform attention",
            RANDOM: ", as many random words",
            OVER_RANDOM: ", over as many random words",
        }
        self.columns = tuple(
            Column(name + kind, feature_label(name) + text, _RECEIVED, role="baseline" if kind else "value")
            for kind, text in kinds.items()
            for name in self.features
        )
        super().__init__(num_layers, num_heads)
        if any(feature.needs_annotation for feature in self.features.values()):
            self.needs = frozenset({Need.ANNOTATION})
        self.matching = matching
        self.feed = Feed(max_examples=max_examples, max_length=max_length)
        # The original code ignores negation where it is absent.
        as_zero = [
            absent == "kovaleva" and not (feature.negation or feature.contains) for feature in self.features.values()
        ]
        self._as_zero_F = torch.tensor(as_zero)
        self._tokens = matching_of(matching, self.features)

    def prepare(self, split: EncodedSplit) -> None:
        check_occurs(self.name, self.features, split.examples)
        self._tokens.prepare(split)

    def per_example(self, attention_BHQK: Tensor, batch: Batch, reference_BHQK: Tensor | None) -> Tensor:
        mask_BFS, random_words = self._find(batch)
        real_BS = batch.attention_mask_BS.to(attention_BHQK.dtype)
        uniform_B1S = (real_BS / real_BS.sum(-1, keepdim=True))[:, None]
        received_BHS = attention_received(attention_BHQK, real_BS)
        received_BHF, uniform_B1F = (
            pooled(values_BHS, mask_BFS, self.features.values()) for values_BHS in (received_BHS, uniform_B1S)
        )
        uniform_BHF = uniform_B1F.expand_as(received_BHF)
        random_BHF = random_words.expected(received_BHS)
        values_BHC = torch.cat((received_BHF, uniform_BHF, random_BHF, received_BHF - random_BHF), dim=-1)
        # Each feature has four columns.
        as_zero_C = self._as_zero_F.repeat(4).to(values_BHC.device)
        return values_BHC.masked_fill(values_BHC.isnan() & as_zero_C, 0.0)

    @once_per_batch
    def _find(self, batch: Batch) -> tuple[Tensor, RandomWords]:
        mask_BFS = self._tokens.masks(batch)
        return mask_BFS, RandomWords(self.features.values(), mask_BFS, batch, by_token=self.matching == "kovaleva")

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Attention to each feature, compared with as many random words; None if no example has any.

        Raises:
            MissingColumnError: If the run is of a version without that comparison.
        """
        names = [name for name in occurring(view) if not name.endswith((UNIFORM, RANDOM, OVER_RANDOM))]
        special = [name for name in names if name in ("cls", "sep")]
        words = [name for name in names if name not in SPECIAL]
        if not names:
            return None
        about_words, head = _most_attended(view, words)
        return Section(
            view.title,
            [*_early_and_late(view, special), *about_words],
            [
                "Each number is the largest mean attention that a token with the feature receives, averaged over the "
                "examples that have such a token (Kovaleva et al. 2019, section 4.4). Uniform attention gives every token "
                "1/L, but the largest of several tokens exceeds that even if a head ignores the feature: “as many random "
                "words” is what the head would give on average if other words of the same example, as many of them, had the "
                "feature. Heads are counted as above it by a one-sided t test of the differences over examples, at a false "
                f"discovery rate of {LEVEL:.0%} over all heads and features."
            ],
            [_table(view, names)],
            [*_special_figures(view, special), *_word_figure(view, words)],
            head=head,
        )


def _special_figures(view: MeasureView, special: Sequence[str]) -> list[FigureBlock]:
    if not special:
        return []
    title, note = "Attention to special tokens, by layer", sample_size([view.count(name) for name in special])
    unit = "mean attention received"
    by_layer = layer_scatter(
        {title: [LayerLine(SPECIAL[name], view.value(name)) for name in special]},
        title=title,
        unit=unit,
        note=note,
        level=float(np.nanmean(view.value(special[0] + UNIFORM))),
        level_name="uniform attention",
    )
    by_head = head_panels(
        [HeadPanel(counted(view, name, SPECIAL[name]), view.value(name)) for name in special],
        title="Attention to special tokens, head by head",
        unit=unit,
        note=note,
        limits=(0.0, 1.0),
    )
    caption = f"{title} (figure 6 of Kovaleva et al.)."
    return [
        FigureBlock(
            f"{view.name}_special", by_layer, caption, "Heads as dots by layer, with a line through the means."
        ),
        FigureBlock(f"{view.name}_special_heads", by_head, "The same, head by head.", "Heatmaps of heads."),
    ]


def _word_figure(view: MeasureView, words: Sequence[str]) -> list[FigureBlock]:
    if not words:
        return []
    title = "Attention to words, in multiples of that to as many random words"
    figure = head_panels(
        [
            HeadPanel(
                counted(view, name, feature_label(name)),
                np.log2(np.maximum(_ratio(view, name), 2.0**_LOWEST)),
            )
            for name in words
        ],
        title=title,
        unit="times as many random words",
        note=sample_size([view.count(name) for name in words]),
        signed=True,
        ticks={
            float(power): f"{2**power}×" if power >= 0 else f"1/{2**-power}×" for power in range(_LOWEST, -_LOWEST + 1)
        },
    )
    caption = f"{title} (section 4.4 of Kovaleva et al.)."
    return [FigureBlock(f"{view.name}_words", figure, caption, "Heatmaps of heads, one for each feature.")]


def _early_and_late(view: MeasureView, special: Sequence[str]) -> list[str]:
    """The layers that attend most to special tokens."""
    if not special:
        return []
    layers = {name: np.nanmean(view.value(name), 1) for name in special}
    first = layers[special[0]]
    if len(first) == 1:
        received = " and ".join(f"{SPECIAL[name]} {number(layers[name][0])}" for name in special)
        return [f"In the only layer, tokens give on average {received} of their attention to special tokens."]
    peaks = {name: int(np.nanargmax(mean_L)) for name, mean_L in layers.items()}
    peaks_in_words = " and ".join(
        f"{SPECIAL[name]} in layer {peaks[name]} ({number(layers[name][peaks[name]])} on average over heads)"
        if number(float(np.nanmin(layers[name]))) != number(float(np.nanmax(layers[name])))
        else f"{SPECIAL[name]} equally in all layers ({number(layers[name][0])})"
        for name in special
    )
    order = ""
    if len(special) == 2 and peaks["cls"] != peaks["sep"]:
        earlier = peaks["cls"] < peaks["sep"]
        which = "the paper's order" if earlier else "not the paper's order"
        order = f"; that is {which}, [CLS] early and [SEP] late, but differences between layers are not tested"
    return [f"Mean attention is highest to {peaks_in_words}{order}."]


def _most_attended(view: MeasureView, words: Sequence[str]) -> tuple[list[str], tuple[int, int] | None]:
    """A sentence on the head furthest above as many random words, and the head."""
    if not words:
        return [], None
    certain = _over_random(view, words)
    heads = view.value(words[0]).size
    if not any(certain_LH.any() for certain_LH in certain.values()):
        kinds = f"any of the {len(words)} kinds of words" if len(words) > 1 else feature_label(words[0])
        return [f"No head is shown to give {kinds} more than as many random words of the same examples."], None
    ratios = {name: np.where(certain[name], _ratio(view, name), -1.0) for name in words}
    best = max(words, key=lambda name: float(np.nanmax(ratios[name])))
    top = highest(ratios[best])
    # The random words' numbers are those of the whole head: only the excess has an error of its own.
    like = like_the_extreme(
        _ratio(view, best),
        view.stderr(best + OVER_RANDOM) / view.value(best + RANDOM),
        view.grid(best + OVER_RANDOM)[2],
    )
    sentence = (
        f"Furthest above as many random words of the same examples is attention to {feature_label(best)} in "
        f"{head_label(*top)}, {ratios[best][top]:.1f} times as much; {_significantly(int(certain[best].sum()), heads)} "
        f"{feature_label(best)} significantly more."
    )
    return [f"{sentence} {like}".strip()], top


def _significantly(count: int, heads: int) -> str:
    if heads == 1:
        return "it is the only head, and gives"
    return f"{count} of {heads} heads {'gives' if count == 1 else 'give'}"


def _table(view: MeasureView, names: Sequence[str]) -> Table:
    rows = [
        {
            "feature": feature_label(name),
            "examples": f"{view.count(name):,}",
            "mean of heads": number(float(np.nanmean(view.value(name)))),
            "uniform": number(float(np.nanmean(view.value(name + UNIFORM)))),
            "as many random words": number(float(np.nanmean(view.value(name + RANDOM)))),
            "heads above that": f"{int(certain_LH.sum())} of {certain_LH.size}",
            "highest head ± standard error": strongest(view, name),
        }
        for name, certain_LH in _over_random(view, names).items()
    ]
    return Table.of(rows, "Features, over all heads, compared with as many random words")


def _over_random(view: MeasureView, names: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Which heads give each feature significantly more than as many random words, tested together."""
    beyond = view.beyond(dict.fromkeys((name + OVER_RANDOM for name in names), 0.0))
    return {name: beyond[name + OVER_RANDOM] for name in names}


def _ratio(view: MeasureView, name: str) -> NDArray[np.float64]:
    return view.value(name) / view.value(name + RANDOM)
