"""Text, tables, figures and pages of findings; nothing here computes or loads a model."""
