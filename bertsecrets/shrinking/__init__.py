"""Smaller, faster models: heads and neurons removed by measured time."""
