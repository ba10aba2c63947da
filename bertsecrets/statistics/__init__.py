"""Intervals, tests, corrections and rank correlation for every room above."""
