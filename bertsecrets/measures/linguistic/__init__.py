"""Attention to kinds of words and tokens: parts of speech, syntax, special tokens, linked words."""
