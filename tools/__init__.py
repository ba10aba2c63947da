"""Tools run from a checkout: what makes the data and weights that the package ships, and its benchmarks of planted
truth.
"""
