"""Sink heads: is a head's attention to a special token a no-op? Diagnosis by norms, test by intervention."""
