"""The numbers of Clark et al. 2019; layers and heads count from 0 here and from 1 in the paper.

Numbers of figures were read off the pictures of the paper and of its authors' notebook; their last digit may be wrong. Tables
1 to 3 are of the Wall Street Journal and of CoNLL-2012; other texts may give other numbers.
"""

PREVIOUS = ((1, 4), (3, 5), (6, 11), (7, 4))
NEXT = ((0, 10), (1, 1), (2, 0), (2, 9), (5, 9))
"""Section 3.1: heads that give about half or more of their attention to the previous and to the next token."""

CLS = (0.04, 0.25, 0.24, 0.14, 0.02, 0.01, 0.01, 0.01, 0.01, 0.015, 0.02, 0.005)
SEPARATOR = (0.02, 0.05, 0.07, 0.20, 0.48, 0.545, 0.53, 0.565, 0.57, 0.48, 0.065, 0.07)
PUNCTUATION = (0.07, 0.11, 0.08, 0.08, 0.05, 0.045, 0.045, 0.05, 0.05, 0.07, 0.50, 0.57)
SEP_TO_SEP = (0.15, 0.14, 0.10, 0.48, 0.89, 0.91, 0.89, 0.91, 0.88, 0.37, 0.07, 0.10)
OTHER_TO_SEP = (0.03, 0.05, 0.08, 0.20, 0.47, 0.54, 0.53, 0.56, 0.565, 0.48, 0.07, 0.07)
"""Figure 2: attention by layer, mean over heads."""

SEPARATOR_GRADIENT = (1.11, 0.93, 0.76, 0.29, 0.06, 0.06, 0.07, 0.06, 0.06, 0.10, 0.34, 0.30)
"""Figure 3: gradient with respect to attention to [SEP], divided by that to any token, by layer."""

ENTROPY = (3.6, 2.9, 2.55, 2.75, 2.4, 1.9, 1.95, 1.75, 2.2, 2.5, 2.8, 2.85)
CLS_ENTROPY = (3.65, 3.6, 2.1, 2.75, 2.45, 2.35, 2.6, 2.05, 2.25, 2.8, 3.5, 3.89)
"""Figure 4, in nats: mean over heads by layer, of all rows and of the row of [CLS]."""

RELATIONS = {
    "all": (34.5, 26.3, None),
    "prep": (66.7, 61.8, (6, 3)),
    "pobj": (76.3, 34.6, (8, 5)),
    "det": (94.3, 51.7, (7, 10)),
    "nn": (70.4, 70.2, (3, 9)),
    "nsubj": (58.5, 45.5, (7, 1)),
    "amod": (75.6, 68.3, (3, 9)),
    "dobj": (86.8, 40.0, (7, 9)),
    "advmod": (48.8, 40.2, (6, 5)),
    "aux": (81.1, 71.5, (3, 9)),
    "poss": (80.5, 47.7, (6, 5)),
    "auxpass": (94.1, 82.5, (3, 9)),
    "ccomp": (48.8, 12.4, (7, 0)),
    "mark": (50.7, 14.5, (7, 1)),
    "prt": (99.1, 91.4, (5, 6)),
}
"""Table 1 in percent: the best head, the best fixed offset, and that head; ``auxpass`` as the notebook prints it, where the
table has the row slipped."""

UNIVERSAL = {
    "obj": "dobj",
    "compound": "nn",
    "nmod:poss": "poss",
    "aux:pass": "auxpass",
    "compound:prt": "prt",
}
"""Labels of Universal Dependencies -> those of the paper for the same relation, where they differ."""

COREFERENCE = {
    "nearest": (27, 29, 29, 19),
    "head_match": (52, 47, 67, 40),
    "rule_based": (69, 70, 77, 60),
    "head": (65, 64, 73, 58),
}
"""Table 2 in percent: all mentions, pronouns, proper names, nominal mentions."""

PROBES = {
    "right_branching": 26,
    "distances_words": 58,
    "random_attention_words": 30,
    "attention": 61,
    "attention_words": 77,
}
"""Table 3: words with the right head, in percent."""
