"""Planted truth: classifiers with heads of known importance, and scores of heads held against it and against exact
effects.
"""
