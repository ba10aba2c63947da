"""Controls: training settings that test what a run's numbers mean, as recorded in its configuration."""

from collections.abc import Mapping
from typing import Any

LAYER_DECAY, ONLY, PERMUTED = "optimizer.layer_decay", "data.only", "data.permute_labels"
DROPOUT = "model.attention_dropout"


def controls(config: Mapping[str, Any]) -> dict[str, str]:
    """The value of every control by key; for an analysis, those of the analysed run.

    A run of an earlier version, which has no such keys, has the values of a run without controls.
    """
    trained = config.get("trained") or {}
    data = config.get("data") or {}
    decay = trained.get("layer_decay", (config.get("optimizer") or {}).get("layer_decay", 1.0))
    dropout = trained.get("attention_dropout", (config.get("model") or {}).get("attention_dropout"))
    return {
        LAYER_DECAY: _number(decay),
        DROPOUT: _number(dropout),
        ONLY: str(data.get("only")),
        PERMUTED: str(data.get("permute_labels", False)),
    }


def controls_in_words(config: Mapping[str, Any]) -> list[str]:
    """What each control of a run changes, in words; empty without controls."""
    return in_words(controls(config))


def in_words(values: Mapping[str, str]) -> list[str]:
    """What controls change, by their values; those that are left out are not used."""
    values = {**controls({}), **values}
    words = []
    if values[LAYER_DECAY] != "1.0":
        words.append(f"learning rate × {values[LAYER_DECAY]} per layer downwards")
    if values[DROPOUT] != "None":
        words.append(f"attention dropout {values[DROPOUT]}" if float(values[DROPOUT]) else "no attention dropout")
    if values[ONLY] != "None":
        words.append(f"{values[ONLY]} sentence only")
    if values[PERMUTED] == "True":
        words.append("training labels shuffled")
    return words


def _number(value: object) -> str:
    return str(float(value)) if isinstance(value, (int, float)) else str(value)
