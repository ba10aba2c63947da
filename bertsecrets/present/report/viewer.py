"""Compressed attention maps, in a form that browsers can unpack, and what the viewer needs beside them."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from matplotlib.colors import to_hex
from numpy.typing import ArrayLike, NDArray

from bertsecrets.present.figures.style import DIVERGING, SEQUENTIAL, effect_scale
from bertsecrets.present.report.content import HeadHistory, HeadsTogether, Overview, ViewerExample
from bertsecrets.results.formatting import MISSING, number, visible
from bertsecrets.results.verdicts import WORDS

_STOPS = 33

_PIECE, _WORD = "##", "\N{LOWER ONE EIGHTH BLOCK}"
"""What marks a piece within a word in WordPiece, and one that begins a word in SentencePiece."""

_LEVELS = (255, 63)
"""Steps to which weights are rounded: the finest that fits."""

_COARSE = (31, 15, 7)
"""Further steps, for the first example only: without it there is no viewer."""


def encode_prefix(examples: Sequence[ViewerExample], most: int) -> list[str]:
    """JSON of the first examples, as many as fit into ``most`` characters; safe inside a script element.

    Each is ``{"name", "tokens", "sentences", "special", "heads", "levels", "stages": [{"name", "layers": [...]}]}``; a
    layer is the base64 of the zlib stream of its weights ``[heads, T, T]``, one byte each: byte b of n levels stands
    for the weight (b / n)², so that small weights keep their digits. Examples that do not fit with 255 levels get
    fewer.
    """
    encoded: list[str] = []
    for example in examples:
        text = next(
            (
                text
                for levels in (_LEVELS if encoded else (*_LEVELS, *_COARSE))
                if len(text := _encode(example, levels)) <= most
            ),
            None,
        )
        if text is None:
            break
        most -= len(text)
        encoded.append(text)
    return encoded


def colour_stops() -> dict[str, list[str]]:
    """The colours of weights, of differences and of effects, from the low to the high end, as ``#rrggbb``."""
    scales = {
        "weight": mpl.colormaps[SEQUENTIAL],
        "change": mpl.colormaps[DIVERGING],
        "effects": effect_scale([-1.0, 1.0])[1],
    }
    shares = np.linspace(0, 1, _STOPS)
    return {name: [to_hex(colour) for colour in colours(shares)] for name, colours in scales.items()}


def head_columns(table: HeadsTogether | None) -> list[Mapping[str, Any]]:
    """The columns by which the viewer colours heads: ``{"label", "cells", "effects"}``, with numbers, texts, or None.

    >>> from bertsecrets.present.report.content import HeadColumn
    >>> head_columns(HeadsTogether([HeadColumn("drift", "Drift", "cosine", "cosine", np.array([[-0.5, np.nan]]))]))
    [{'label': 'Drift: cosine', 'cells': {'0.0': -0.5, '0.1': None}, 'effects': False}]
    """
    if table is None:
        return []
    return [
        {
            "label": visible(f"{column.title}: {column.label}"),
            "cells": {
                f"{layer}.{head}": None if text == MISSING else round(value, 3) if column.is_number else visible(text)
                for (layer, head), value, text in zip(
                    table.heads, column.value_LH.ravel().tolist(), column.texts, strict=True
                )
            },
            "effects": column.effects,
        }
        for column in table.columns
    ]


def histories(head_histories: Sequence[HeadHistory]) -> list[Mapping[str, Any]]:
    """What the viewer needs of histories: ``{"label", "stages": {stage: cells}}``, with None for undefined numbers.

    >>> histories([HeadHistory("Drift", {"step 5": [[0.98765, float("nan")]]})])
    [{'label': 'Drift', 'stages': {'step 5': {'0.0': 0.9877, '0.1': None}}}]
    """
    return [
        {
            "label": visible(history.label),
            "stages": {
                visible(stage): {
                    f"{layer}.{head}": _rounded(value)
                    for (layer, head), value in np.ndenumerate(np.asarray(value_LH, np.float64))
                }
                for stage, value_LH in history.values.items()
            },
        }
        for history in head_histories
    ]


def overview_data(overview: Overview) -> dict[str, Any]:
    """What the first screen needs beside its HTML; a head's map is one byte for each weight, as in
    :func:`encode_prefix`.
    """
    return {
        "views": [
            {
                "text": view.texts,
                "value": [[_rounded(value) for value in value_H] for value_H in np.asarray(view.value_LH, np.float64)],
                "codes": view.codes or None,
                "layers": [[number(value, view.digits, signed=view.signed), code] for value, code in view.layers]
                or None,
                "scale": "effects" if view.effects else "change" if view.signed else "weight",
            }
            for view in overview.colourings
        ],
        "about": {
            f"{layer}.{head}": [visible(line) for line in lines] for (layer, head), lines in overview.about.items()
        },
        "start": f"{overview.start[0]}.{overview.start[1]}",
        "words": {**WORDS, "": "not disabled"},
        "stops": colour_stops(),
        "examples": {
            f"{layer}.{head}": {
                "tokens": [visible(token) for token in example.tokens],
                "label": visible(example.label),
                "answers": [
                    [visible(name), *(float(f"{value:.4g}") for value in values)] for name, *values in example.answers
                ],
                "map": _pack(_quantise(example.attention_QK, _LEVELS[0])),
            }
            for (layer, head), example in overview.examples.items()
        },
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None


def words_of(tokens: Sequence[str], special: Sequence[bool] = ()) -> list[int]:
    """The number of each token's word, counted from 0; a special token is a word of its own.

    A piece continues a word if it begins with ``##``, or, where pieces that begin a word are marked with ``\u2581``,
    if it has no mark and no punctuation stands between.

    >>> words_of(["[CLS]", "un", "##hap", "##py", "."]), words_of(["<s>", "▁un", "happy", "."], [True, *[False] * 3])
    ([0, 1, 1, 1, 2], [0, 1, 1, 2])
    """
    marked = any(token.startswith(_WORD) for token in tokens)
    words: list[int] = []
    for at, token in enumerate(tokens):
        joins = at > 0 and not (special and (special[at] or special[at - 1]))
        if token.startswith(_PIECE) and len(token) > len(_PIECE):
            continues = joins
        else:
            continues = joins and marked and token[:1].isalnum() and tokens[at - 1][-1:].isalnum()
        words.append(words[-1] + (not continues) if words else 0)
    return words


def _encode(example: ViewerExample, levels: int) -> str:
    stages = [
        {"name": visible(name), "layers": [_pack(layer_HQK) for layer_HQK in _quantise(attention_LHQK, levels)]}
        for name, attention_LHQK in example.stages
    ]
    heads = np.shape(example.stages[0][1])[1]
    content = {
        "name": visible(example.name),
        "tokens": [visible(token) for token in example.tokens],
        "sentences": list(example.sentences),
        "special": list(example.special),
        "words": words_of(example.tokens, example.special),
        "heads": heads,
        "levels": levels,
        "stages": stages,
    }
    return str(htmlsafe_json_dumps(content, separators=(",", ":")))


def _quantise(attention_LHQK: ArrayLike, levels: int) -> NDArray[np.uint8]:
    weight_LHQK = np.asarray(attention_LHQK, np.float32)
    return np.asarray(np.rint(np.sqrt(weight_LHQK.clip(0, 1)) * levels), np.uint8)


def _pack(weight_HQK: NDArray[np.uint8]) -> str:
    return base64.b64encode(zlib.compress(weight_HQK.tobytes(), 6)).decode("ascii")
