"""Probes: parsers trained on a frozen encoder's attention (Clark et al. 2019, section 5)."""
