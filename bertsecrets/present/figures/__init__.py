"""One function per kind of figure; each returns a matplotlib Figure and changes no global state.

Altair draws heatmaps faster, but would be a second library: other figures need matplotlib, and a page's own grid of
heads handles clicks.
"""
