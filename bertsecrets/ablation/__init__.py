"""Disabling heads and layers: which ones does the model need?"""
