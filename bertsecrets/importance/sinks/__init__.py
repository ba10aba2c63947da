"""Sink heads: is the attention that heads park on a special token a no-op? Diagnosis by norms, test by intervention."""
