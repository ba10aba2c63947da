"""Sweeps: units of work that are run once, alone, in a process of their own, and never lost when finished."""
