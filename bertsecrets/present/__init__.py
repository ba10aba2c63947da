"""Words, tables, figures and pages of what was found; nothing here computes or loads a model."""
