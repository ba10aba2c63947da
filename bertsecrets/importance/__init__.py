"""Scores that estimate the importance of heads, each in a separate file."""
