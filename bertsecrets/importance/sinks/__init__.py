"""Sink heads: do heads that rest on a special token do nothing there? Diagnosis by norms, test by intervention."""
