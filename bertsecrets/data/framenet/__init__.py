"""FrameNet: its lexicographic examples as annotated sentences."""
