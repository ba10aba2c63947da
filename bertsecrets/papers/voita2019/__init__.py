"""Voita et al. 2019, *Analyzing Multi-Head Self-Attention*, as a page."""
