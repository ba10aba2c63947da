"""Reports of runs, and comparisons of several runs and their replicates."""
