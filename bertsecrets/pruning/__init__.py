"""Models with fewer heads: learned gates, pruning by any score, and physically smaller models."""
