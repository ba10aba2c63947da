"""Heads that attend from a mention to its antecedent (Clark et al. 2019, section 4.3)."""
