"""What measures are called in front of readers."""

DRIFT = "drift"

FEATURES = {
    "features": "Attention to linguistic features",
    "features_kovaleva": "Attention to linguistic features, by the original code's definitions",
}
TOKEN_TO_TOKEN = {
    "token_to_token": "Attention from token to token",
    "token_to_token_kovaleva": "Attention from token to token, by the original code's definitions",
}
"""Measures of features and of linked words, and their titles."""

DRIFT_COLUMNS = {
    "cosine": ("Cosine similarity of attention maps with those before fine-tuning", "cosine similarity (1: unchanged)"),
    "jensen_shannon": (
        "Jensen-Shannon divergence from the maps before fine-tuning",
        "divergence in nats (0: unchanged)",
    ),
    "cls_cosine": ("Cosine similarity, classification token's row alone", "cosine similarity (1: unchanged)"),
    "cls_jensen_shannon": (
        "Jensen-Shannon divergence, classification token's row",
        "divergence in nats (0: unchanged)",
    ),
}
"""Title and unit of each column of the drift measure."""


MEASURES = {
    "frame_relations": ("Attention along frame relations", "attention weight, mean over sentences"),
    **{name: (title, "largest mean attention received by a token") for name, title in FEATURES.items()},
    **{name: (title, "largest attention weight") for name, title in TOKEN_TO_TOKEN.items()},
    "offsets": ("Attention to neighbouring tokens", "mean weight given to the token there"),
    "patterns": ("Attention patterns", "share of a head's maps"),
}
"""Title and unit of the measures whose columns share them."""


def described(measure: str, column: str) -> tuple[str, str]:
    """Title and unit of a measure's column; its plain names where nothing better is known."""
    if measure == DRIFT and column in DRIFT_COLUMNS:
        return DRIFT_COLUMNS[column]
    title, unit = MEASURES.get(measure, (measure.replace("_", " "), ""))
    name = column.replace("_", " ")
    return f"{title}: {name}" if name else title, unit or name
