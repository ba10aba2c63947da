"""Training the pattern classifier on generated and annotated maps, and evaluating it on held-out ones."""
