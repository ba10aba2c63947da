"""Kovaleva et al. 2019 section by section: our figure, the published value, and what agrees."""
