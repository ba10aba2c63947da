"""Pages of their own: a sentence in a model, a head over a whole set, a plan of examples and seeds, a model card."""
