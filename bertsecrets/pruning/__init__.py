"""Models with fewer heads: gates that learn which heads to keep, pruning by any score, and physically smaller models."""
