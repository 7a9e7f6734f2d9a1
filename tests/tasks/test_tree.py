"""A passage tells how it was found: a tree for every piece that its text was read in."""

from __future__ import annotations

from pathlib import Path

import pytest

import glassformer
from tests.tasks.reversing import ROWS, reverser, speaker


@pytest.mark.parametrize("beams", [1, 3])
def test_trees_lead_to_the_texts_and_change_nothing(beams: int) -> None:
    bundle = glassformer.load(reverser())
    texts = ["", *ROWS[-7:], "red\n\nblue gold"]
    plain = bundle.translate(texts, num_beams=beams, details=True)
    found = bundle.translate(texts, num_beams=beams, tree=True)
    assert [one.text for one in found] == [one.text for one in plain]
    assert [len(one.trees) for one in found] == [0, *[1] * 7, 2]  # none for nothing, one a line
    assert not any(one.trees for one in plain)
    for passage in found[1:-1]:
        (tree,) = passage.trees
        last = tree.result()
        path = tree.path(last)
        assert tree.num_beams == beams
        assert passage.score == pytest.approx(sum(n.logprob for n in path) / last.length_term, abs=1e-5)
        assert bundle.tokenizer is not None
        assert bundle.tokenizer.decode([node.token for node in path]) == passage.text


def test_each_drawn_text_has_its_own_tree_and_beams_share_one(tmp_path: Path) -> None:
    bundle = glassformer.load(speaker(tmp_path / "model", max_len=64))
    words = {"max_new_tokens": 6, "num_return_sequences": 2, "tree": True}
    (drawn,) = bundle.generate("the old", do_sample=True, seed=2, **words)
    for one in (drawn, *drawn.others):
        chosen = one.trees[0].path(one.trees[0].result())
        assert one.score == pytest.approx(sum(node.logprob for node in chosen), abs=1e-4)
    (searched,) = bundle.generate("the old", num_beams=3, **words)
    assert searched.trees == searched.others[0].trees
    assert searched.others[0].score == pytest.approx(
        searched.trees[0].result(1).score / searched.trees[0].result(1).length_term, abs=1e-5
    )
