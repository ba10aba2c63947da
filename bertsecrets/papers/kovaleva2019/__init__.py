"""Kovaleva et al. 2019 section by section: our figures, the published values, and which of its statements hold."""
