"""--tree FILE: how one text was found, as a picture or as numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.target import refuse_loss
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.generation import SearchTree
    from glassformer.tasks.writing import Passage

KINDS = (".svg", ".png", ".json")


def check_tree(file: Path, texts: Sequence[str], *, overwrite: bool) -> None:
    """Whether a tree can be asked for; what is wrong is told before a model is loaded."""
    if file.suffix.lower() not in KINDS:
        raise GlassformerError(f"a tree is written as {', '.join(KINDS)}; '{file}' has none of these endings")
    if len(texts) != 1:
        raise GlassformerError("--tree shows how one text was found; give that one as an argument")
    refuse_loss(file, "--tree", overwrite=overwrite)  # the folder is made where there is none


def only_tree(passage: Passage) -> SearchTree:
    """The tree of a text that was read in one piece."""
    if len(passage.trees) != 1:
        told = f"was read in {len(passage.trees)} pieces" if passage.trees else "holds nothing to read"
        raise GlassformerError(f"--tree shows one search, and the text {told}; give one sentence")
    return passage.trees[0]


def tree_numbers(bundle: Bundle, tree: SearchTree) -> dict[str, Any]:
    """The tree as plain lists and numbers, with what each token shows."""
    numbers = tree.to_json()
    for node, told in zip(tree.nodes, numbers["nodes"], strict=True):
        told["piece"] = _pieces(bundle, [one.token for one in tree.path(node)])[-1]
    return numbers


def write_tree(bundle: Bundle, tree: SearchTree, file: Path, text: str) -> None:
    """Write the tree as the file's ending says."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix.lower() == ".json":
            told = json.dumps(tree_numbers(bundle, tree), ensure_ascii=False)
            file.write_text(f"{told}\n", encoding="utf-8")
        else:
            _draw(bundle, tree, file, " ".join(text.split()))
    except OSError as error:
        raise GlassformerError(f"'{file}' cannot be written: {error.strerror}") from None


def _draw(bundle: Bundle, tree: SearchTree, file: Path, text: str) -> None:
    from glassformer import plotting as draw

    searched = f", {tree.num_beams} beams" if tree.num_beams > 1 else ""
    draw.save(draw.search_tree(tree, lambda ids: _pieces(bundle, ids), title=f"“{text}”{searched}"), file)


def _pieces(bundle: Bundle, ids: list[int]) -> list[str]:
    assert bundle.tokenizer is not None  # whatever writes has one
    return bundle.tokenizer.pieces(ids, side="target")
