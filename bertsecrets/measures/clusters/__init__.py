"""Distances between all pairs of heads, and the groups that they form (Clark et al. 2019, section 6)."""
