"""Where rows come from: the hub, a folder in the GLUE layout, or the project's own generator."""

from bertsecrets.data.sources.base import Source, SourceConfig, make_source

__all__ = ["Source", "SourceConfig", "make_source"]
