"""Attention along annotated frame relations (Kovaleva et al. 2019, section 4.2)."""
