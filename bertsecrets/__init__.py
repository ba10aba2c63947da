"""bertsecrets: which attention heads does a fine-tuned encoder really use?"""

__version__ = "0.1.0"
