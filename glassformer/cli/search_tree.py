"""--tree FILE: the search tree of one text, as a figure or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.outputs import check_output_file
from glassformer.errors import ConflictError, GlassformerError, InvalidValueError

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.generation import SearchTree
    from glassformer.tasks.text_generation import GeneratedText

SUFFIXES = (".svg", ".png", ".json")


@dataclass(eq=False)
class NoSingleTreeError(GlassformerError):
    """The search tree of a text that was generated in no part or in several."""

    parts: int
    template = "the search tree shows one search, but the text was read in {parts} parts"


def check_tree_output(
    path: Path, texts: Sequence[str] | None, out: Path | None, file: Path | None, *, overwrite: bool
) -> None:
    """Check --tree before a model is loaded."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidValueError(
            name="tree", value=str(path), expected=f"a file ending in {', '.join(SUFFIXES)}"
        )
    if len(texts or ()) != 1 or file is not None:
        raise ConflictError(names=("tree", "TEXT"), reason="a search tree is drawn for exactly one text")
    if out is not None and out.absolute() == path.absolute():
        raise ConflictError(names=("tree", "out"), reason="both name the same file")
    path.parent.mkdir(parents=True, exist_ok=True)
    check_output_file(path, overwrite=overwrite)


def write_tree(bundle: Bundle, result: GeneratedText, path: Path, text: str) -> dict[str, Any]:
    """Write the search tree of a text; return it as JSON values."""
    if len(result.trees) != 1:
        raise NoSingleTreeError(parts=len(result.trees))
    (tree,) = result.trees
    values = _tree_values(bundle, tree)
    if path.suffix.lower() == ".json":
        path.write_text(json.dumps(values, ensure_ascii=False) + "\n", encoding="utf-8")
        return values
    from glassformer import plotting

    beams = f", {tree.num_beams} beams" if tree.num_beams > 1 else ""
    title = f"“{' '.join(text.split())}”{beams}"
    plotting.save(plotting.search_tree(tree, lambda ids: _pieces(bundle, ids), title=title), path)
    return values


def _tree_values(bundle: Bundle, tree: SearchTree) -> dict[str, Any]:
    values = tree.to_json()
    for node, node_values in zip(tree.nodes, values["nodes"], strict=True):
        node_values["piece"] = _pieces(bundle, [step.token for step in tree.path(node)])[-1]
    return values


def _pieces(bundle: Bundle, ids: list[int]) -> list[str]:
    assert bundle.tokenizer is not None  # every text model has one
    return bundle.tokenizer.pieces(ids, side="target")
