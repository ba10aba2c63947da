"""Heads that attend along syntactic dependencies (Clark et al. 2019, section 4)."""
