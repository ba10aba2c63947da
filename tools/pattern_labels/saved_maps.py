"""Attention maps that somebody saved as arrays, of models whose weights are not at hand."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertsecrets.errors import UserError
from bertsecrets.patterns.classifier import MIN_LENGTH
from bertsecrets.results.run import INITIAL
from tools.pattern_labels.map_set import MapRow

_SEPARATORS = ("[SEP]", "</s>")
_ROWS_SUM_TO_1_WITHIN = 1e-3


def read_saved_maps(files: Sequence[Path]) -> tuple[list[MapRow], dict[str, Tensor]]:
    """Rows and weights of every head's map in some files, one example in each.

    Args:
        files: ``<model>.npz`` with the arrays ``attention`` (``[layers, heads, L, L]``, rows sum to 1) and ``tokens``
            (the L tokens; ``[SEP]`` or ``</s>`` ends a segment).

    Raises:
        UserError: If a file cannot be read or holds something else.
    """
    rows: list[MapRow] = []
    maps: dict[str, Tensor] = {}
    for path in files:
        attention_LHQQ, tokens = _arrays(path)
        ends = [position for position, token in enumerate(tokens) if token in _SEPARATORS]
        pair = bool(ends) and any(token not in _SEPARATORS for token in tokens[ends[0] + 1 :])
        for layer, head in np.ndindex(*attention_LHQQ.shape[:2]):
            row = MapRow(
                map=f"{path.stem}-l{layer:02d}h{head:02d}",
                task="saved",
                model=path.stem,
                init="pretrained",
                stage=INITIAL,
                layer=layer,
                head=head,
                example=0,
                length=len(tokens),
                segments=1 + pair,
                separator=ends[0] if ends else -1,
            )
            rows.append(row)
            maps[row.map] = torch.from_numpy(attention_LHQQ[layer, head]).half()
    return rows, maps


def _arrays(path: Path) -> tuple[np.ndarray, list[str]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            attention_LHQQ, tokens = arrays["attention"], [str(token) for token in arrays["tokens"]]
    except (OSError, KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(
            f"File '{path}' cannot be read as saved maps ({error}); give an .npz file with the arrays attention and "
            "tokens."
        ) from error
    size = len(tokens)
    if attention_LHQQ.ndim != 4 or attention_LHQQ.shape[2:] != (size, size) or size < MIN_LENGTH:
        raise UserError(
            f"attention in '{path}' is {' x '.join(map(str, attention_LHQQ.shape))} for {size} tokens; expected layers "
            f"x heads x tokens x tokens, with at least {MIN_LENGTH} tokens."
        )
    if not np.allclose(attention_LHQQ.sum(-1), 1, atol=_ROWS_SUM_TO_1_WITHIN):
        raise UserError(f"Rows of attention in '{path}' do not sum to 1; give weights after the softmax.")
    return attention_LHQQ, tokens
