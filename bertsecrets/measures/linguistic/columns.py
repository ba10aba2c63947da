"""Columns of the linguistic measures: name parts and labels."""

SPECIAL = {"cls": "[CLS]", "sep": "[SEP]", "sep_total": "all [SEP] tokens"}
"""Labels of the features of special tokens."""

UNIFORM, RANDOM, OVER_RANDOM = "_uniform", "_random", "_over_random"
"""Suffixes of the columns for uniform attention, random words, and the difference from random words."""

CLS_TO = "cls_to_"
"""Prefix of the columns for a feature's attention from [CLS]."""

MEAN, BEYOND, BEYOND_WORD, FAR = "_mean", "_beyond_position", "_beyond_received", "_far"
"""Suffixes of a word pair's columns besides the largest weight."""


def feature_label(feature: str) -> str:
    """A feature's label on pages."""
    return SPECIAL.get(feature, feature.replace("_", " "))


def pair_label(pair: str) -> str:
    """A pair's label on pages: ``verb → subject``."""
    return pair.replace("_to_", " → ").replace("_", " ")
