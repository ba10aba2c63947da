"""Several runs side by side: which are replicates of one condition, and what they say together."""
