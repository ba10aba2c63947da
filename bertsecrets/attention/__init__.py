"""The only room that touches attention: watch it, override it, check that both work."""
