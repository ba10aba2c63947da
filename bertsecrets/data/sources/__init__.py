"""Where rows come from: the hub, a folder in the GLUE layout, a treebank, or the project's own generator."""

from bertsecrets.data.sources.base import Source, SourceConfig, make_source

__all__ = ["Source", "SourceConfig", "make_source"]
