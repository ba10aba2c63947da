"""The numbers of Voita et al. 2019, of the encoder of a translation model of 6 layers of 8 heads."""

PRUNED = {"WMT": (48, 10, -0.15), "OpenSubtitles": (48, 4, -0.25)}
"""Section 6.3: heads of the encoder, heads kept, and the change of BLEU."""

POSITIONAL = 0.90
"""Section 5.1: share of tokens whose highest attention falls on one relative position."""
