"""Statistics that more than one room needs."""
