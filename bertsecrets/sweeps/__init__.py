"""Sweeps: jobs that run in separate processes, resume after an interruption, and never run twice once finished."""
