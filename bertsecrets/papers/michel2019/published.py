"""The numbers of Michel et al. 2019 for BERT (base, uncased) on MNLI; layers count from 0.

Numbers of figures were read off the pictures of the paper; their last digit may be wrong.
"""

CURVE = {
    0: 0.836,
    10: 0.835,
    20: 0.835,
    30: 0.832,
    40: 0.828,
    50: 0.815,
    60: 0.79,
    70: 0.755,
    80: 0.54,
    90: 0.39,
    100: 0.32,
}
"""Figure 3b: accuracy on MNLI by percent of heads pruned, in the order of I_h."""

SINGLE_EFFECTS = {0: 0.836, 20: 0.82, 40: 0.77, 60: 0.69, 80: 0.37}
"""Figure 3b, dashed: the same in the order of the effects of removing single heads."""

PRUNABLE = {"mnli": 40, "sst2": 60, "cola": 50, "mrpc": 50}
"""Section 4 and appendix B: percent of heads that go without noticeable loss."""

ONE_HEAD = (-0.01, 0.10, -0.14, -0.53, -0.29, -0.52, 0.05, -0.72, -0.96, 0.07, -0.19, -0.12)
"""Table 3: change of accuracy in points, on the matched set of MNLI, when a layer keeps its best head alone."""

TRANSFER = 0.68
"""Section 3.4: correlation of the heads' effects on the two sets of MNLI."""

SPEED_UP = 17.5
"""Table 4: percent more examples per second at batch sizes from 16, with half of the heads pruned."""
