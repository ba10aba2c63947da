"""Where configurations become objects and runs: what train.py and analyze.py call."""
