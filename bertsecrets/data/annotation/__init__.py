"""Annotation of texts that come without: by a pipeline that the user names, done once and kept."""

from bertsecrets.data.annotation.annotator import Annotator, make_annotator

__all__ = ["Annotator", "make_annotator"]
