"""Compressed attention maps, in a form that browsers can unpack."""

import base64
import zlib
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from matplotlib.colors import to_hex
from numpy.typing import ArrayLike, NDArray

from bertsecrets.results.figures.style import DIVERGING, SEQUENTIAL
from bertsecrets.results.formatting import visible
from bertsecrets.results.report.content import ViewerExample

_STOPS = 33


def encode_prefix(examples: Sequence[ViewerExample], most: int) -> list[str]:
    """JSON of the first examples, as many as fit into ``most`` characters; safe inside a script element.

    Each is ``{"name", "tokens", "heads", "stages": [{"name", "layers": [...]}]}``; a layer is the base64 of the zlib
    stream of its weights ``[heads, T, T]``, one byte each, 255 for a weight of 1.
    """
    kept: list[str] = []
    for example in examples:
        text = _encode(example)
        most -= len(text)
        if most < 0:
            break
        kept.append(text)
    return kept


def colour_stops() -> dict[str, list[str]]:
    """The colours of weights and of differences, from the low to the high end, as ``#rrggbb``."""
    places = np.linspace(0, 1, _STOPS)
    return {
        name: [to_hex(colour) for colour in mpl.colormaps[colours](places)]
        for name, colours in (("weight", SEQUENTIAL), ("change", DIVERGING))
    }


def _encode(example: ViewerExample) -> str:
    stages = [
        {"name": visible(name), "layers": [_pack(layer_HQK) for layer_HQK in _quantise(attention_LHQK)]}
        for name, attention_LHQK in example.stages
    ]
    heads = np.shape(example.stages[0][1])[1]
    content = {
        "name": visible(example.name),
        "tokens": [visible(token) for token in example.tokens],
        "heads": heads,
        "stages": stages,
    }
    return str(htmlsafe_json_dumps(content, separators=(",", ":")))


def _quantise(attention_LHQK: ArrayLike) -> NDArray[np.uint8]:
    weight_LHQK = np.asarray(attention_LHQK, np.float32)
    return np.asarray(np.rint(weight_LHQK.clip(0, 1) * 255), np.uint8)


def _pack(weight_HQK: NDArray[np.uint8]) -> str:
    return base64.b64encode(zlib.compress(weight_HQK.tobytes(), 9)).decode("ascii")
