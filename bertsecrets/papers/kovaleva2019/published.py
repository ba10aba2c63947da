"""The numbers of Kovaleva et al. 2019, by our task names; layers count from 0 here and from 1 in the paper.

Numbers of table 1 are the paper's own. Those of its figures, and of the figures in its authors' notebook, were read off the
pictures; their last digit may be wrong.
"""

SCORES = {
    "mrpc": {"accuracy": (31.6, 68.3, 82.3), "f1": (0.0, 81.2, 87.9)},
    "stsb": {"pearson": (33.1, 2.9, 82.7)},
    "sst2": {"accuracy": (49.1, 80.5, 92.0)},
    "qqp": {"accuracy": (60.9, 63.2, 78.6), "f1": (0.0, 0.0, 65.2)},
    "rte": {"accuracy": (52.7, 52.7, 64.6)},
    "qnli": {"accuracy": (52.8, 49.5, 84.4)},
    "mnli": {"accuracy": (31.7, 61.0, 78.6)},
}
"""Table 1, in percent: pre-trained without fine-tuning, random weights fine-tuned, pre-trained and fine-tuned."""

PATTERNS = {
    "mrpc": (27.6, 4.2, 18.8, 7.5, 41.8),
    "stsb": (53.4, 5.9, 7.6, 4.2, 29.0),
    "sst2": (41.2, 4.2, 13.0, 5.5, 36.1),
    "qqp": (58.4, 2.9, 6.7, 7.1, 24.8),
    "rte": (35.4, 3.4, 13.9, 6.3, 40.9),
    "qnli": (35.3, 2.5, 23.5, 4.6, 34.0),
    "mnli": (58.4, 2.9, 12.2, 4.6, 21.8),
}
"""Figure 2, in percent: heterogeneous, block, vertical and diagonal, diagonal, vertical."""

RELATIONS = {(0, 1): 0.201, (6, 5): 0.209}
"""Figure 3: the two heads with the largest weights on FrameNet relations, ``(layer, head)``."""

DRIFT = {
    "mrpc": (0.97, 0.93, 0.89, 0.78, 0.79, 0.87, 0.84, 0.76, 0.64, 0.67, 0.37, 0.41),
    "stsb": (0.98, 0.90, 0.91, 0.88, 0.83, 0.91, 0.87, 0.88, 0.85, 0.78, 0.60, 0.49),
    "sst2": (0.98, 0.92, 0.92, 0.88, 0.86, 0.92, 0.89, 0.86, 0.85, 0.77, 0.64, 0.66),
    "qqp": (0.93, 0.91, 0.86, 0.83, 0.75, 0.79, 0.77, 0.76, 0.71, 0.67, 0.64, 0.70),
    "rte": (0.98, 0.91, 0.92, 0.86, 0.85, 0.89, 0.88, 0.84, 0.85, 0.80, 0.55, 0.52),
    "qnli": (0.95, 0.89, 0.91, 0.87, 0.87, 0.89, 0.86, 0.83, 0.79, 0.73, 0.63, 0.61),
    "mnli": (0.94, 0.81, 0.88, 0.86, 0.84, 0.87, 0.82, 0.82, 0.76, 0.70, 0.58, 0.59),
}
"""Figure 5: mean cosine similarity over the heads of each layer."""

SEPARATOR = {
    "mrpc": (0.03, 0.03, 0.04, 0.11, 0.25, 0.36, 0.39, 0.29, 0.22, 0.27, 0.30, 0.32),
    "stsb": (0.05, 0.05, 0.06, 0.18, 0.31, 0.33, 0.33, 0.39, 0.44, 0.34, 0.32, 0.15),
    "sst2": (0.05, 0.06, 0.08, 0.30, 0.60, 0.64, 0.60, 0.56, 0.57, 0.44, 0.20, 0.27),
    "qqp": (0.05, 0.06, 0.07, 0.17, 0.29, 0.26, 0.30, 0.33, 0.33, 0.30, 0.36, 0.31),
    "rte": (0.03, 0.03, 0.05, 0.14, 0.33, 0.32, 0.37, 0.31, 0.47, 0.39, 0.04, 0.03),
    "qnli": (0.03, 0.04, 0.05, 0.14, 0.26, 0.30, 0.30, 0.30, 0.29, 0.23, 0.01, 0.02),
    "mnli": (0.05, 0.06, 0.06, 0.17, 0.26, 0.28, 0.29, 0.30, 0.29, 0.26, 0.25, 0.28),
}
"""Figure 6: attention to [SEP], mean over the heads of each layer."""

FIRST = {
    "mrpc": (0.12, 0.27, 0.22, 0.10, 0.04),
    "stsb": (0.19, 0.39, 0.26, 0.16, 0.04),
    "sst2": (0.15, 0.32, 0.34, 0.19, 0.04),
    "qqp": (0.19, 0.28, 0.23, 0.13, 0.03),
    "rte": (0.08, 0.20, 0.21, 0.11, 0.01),
    "qnli": (0.14, 0.24, 0.21, 0.10, 0.03),
    "mnli": (0.15, 0.28, 0.23, 0.13, 0.03),
}
"""Figure 6: attention to [CLS] in the first five layers; at most 0.04 above."""

FEATURES = {
    "qqp": {
        "nouns": (0.031, 0.052),
        "verbs": (0.038, 0.048),
        "pronouns": (0.012, 0.012),
        "subjects": (0.025, 0.031),
        "objects": (0.022, 0.028),
        "negation": (0.021, 0.018),
        "sep": (0.270, 0.237),
        "cls": (0.099, 0.076),
    },
}
"""The authors' notebook: attention to features, mean over all heads, before and after fine-tuning."""

FROM_FIRST = {
    "qqp": {
        "sep": 0.25,
        "verbs": 0.101,
        "nouns": 0.064,
        "subjects": 0.040,
        "objects": 0.037,
        "negation": 0.031,
        "pronouns": 0.028,
        "cls": 0.002,
    },
}
"""The authors' notebook: attention from [CLS] to features in the last layer after fine-tuning, mean over its heads."""

PAIRS = {
    "qqp": {
        "subject_to_verb": ((2, 0, 0.606), (2, 9, 0.606), (5, 9, 0.528)),
        "verb_to_subject": ((3, 5, 0.543), (6, 11, 0.420), (1, 4, 0.401)),
    },
}
"""The authors' notebook: the heads that attend most between linked words after fine-tuning: layer, head, attention."""

HEADS = {
    "mrpc": (0.8826, 0.876, 0.894),
    "stsb": (0.8897, 0.887, 0.891),
    "sst2": (0.9197, 0.914, 0.922),
    "qqp": (0.881, 0.875, 0.883),
    "rte": (0.585, 0.560, 0.596),
    "qnli": (0.914, 0.904, 0.916),
    "mnli": (0.8385, 0.827, 0.841),
}
"""Figure 8: score of the whole model, and the lowest and the highest with one head disabled."""

LAYERS = {
    "mrpc": (0.883, 0.867, 0.869, 0.862, 0.878, 0.865, 0.862, 0.854, 0.861, 0.882, 0.887, 0.884),
    "stsb": (0.887, 0.888, 0.888, 0.885, 0.889, 0.889, 0.890, 0.887, 0.888, 0.884, 0.886, 0.878),
    "sst2": (0.921, 0.922, 0.913, 0.919, 0.911, 0.906, 0.907, 0.908, 0.915, 0.912, 0.914, 0.914),
    "qqp": (0.858, 0.871, 0.873, 0.861, 0.857, 0.859, 0.873, 0.877, 0.879, 0.878, 0.876, 0.882),
    "rte": (0.617, 0.578, 0.588, 0.585, 0.574, 0.603, 0.596, 0.585, 0.596, 0.596, 0.581, 0.578),
    "qnli": (0.912, 0.909, 0.910, 0.907, 0.908, 0.907, 0.905, 0.903, 0.901, 0.828, 0.872, 0.892),
    "mnli": (0.836, 0.837, 0.834, 0.833, 0.828, 0.830, 0.824, 0.831, 0.829, 0.807, 0.829, 0.834),
}
"""Figure 9: score with all heads of a layer disabled."""
