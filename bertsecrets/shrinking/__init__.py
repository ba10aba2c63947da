"""Smaller, faster models: heads and neurons removed by measured time, a room that nothing below knows of."""
