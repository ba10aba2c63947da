"""Columns of the linguistic measures: the parts of their names, and their labels."""

SPECIAL = {"cls": "[CLS]", "sep": "[SEP]", "sep_total": "all [SEP] together"}
"""Labels of the features of special tokens."""

UNIFORM, RANDOM, OVER_RANDOM = "_uniform", "_random", "_over_random"
"""Suffixes of the columns with the value under uniform attention, that of random words, and the difference from it."""

CLS_TO = "cls_to_"
"""Beginning of the columns with what a feature gets from [CLS]."""

MEAN, BEYOND, BEYOND_WORD, FAR = "_mean", "_beyond_position", "_beyond_received", "_far"
"""Suffixes of the columns of a pair of words beside the largest weight."""


def feature_label(feature: str) -> str:
    """A feature's label on pages."""
    return SPECIAL.get(feature, feature.replace("_", " "))


def pair_label(pair: str) -> str:
    """A pair's label on pages: ``verb → subject``."""
    return pair.replace("_to_", " → ").replace("_", " ")
