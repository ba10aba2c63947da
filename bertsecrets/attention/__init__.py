"""The only package that touches attention: watch it, override it, and check that both work."""
