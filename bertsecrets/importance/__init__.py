"""Scores that estimate what a head's attention does, each in a file of its own."""
