"""Labelling attention maps by eye: sampling maps, the annotation page and contact sheets, and importing labels."""
