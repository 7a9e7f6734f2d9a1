"""The tree of a search, drawn."""

from glassformer.plotting.tree.paint import search_tree

__all__ = ["search_tree"]
