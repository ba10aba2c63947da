"""One function per kind of figure; each returns a matplotlib Figure and changes no global state.

``benchmarks/drawing.py`` compares matplotlib with Altair.
"""
