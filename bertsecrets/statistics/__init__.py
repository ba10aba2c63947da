"""Confidence intervals, tests, multiple-comparison corrections and rank correlation."""
