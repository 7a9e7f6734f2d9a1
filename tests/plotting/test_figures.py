"""Figures show what they are given, read back from the figure or from the written file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

import glassformer
from glassformer import Mask, plotting
from glassformer.errors import ShapeError
from glassformer.plotting import fonts


def image_of(figure: Figure, axes: int = 0) -> np.ndarray:
    return np.asarray(figure.axes[axes].images[0].get_array())


def test_attention_figures_hold_the_weights_and_labels() -> None:
    weights = torch.rand(6, 3, 5)
    figure = plotting.attention_map(weights[0], queries=["a", " b", "$"], keys=list("vwxyz"))
    assert np.allclose(image_of(figure), weights[0].numpy())
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["a", "␣b", r"\$"]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == list("vwxyz")
    grid = plotting.attention_grid(weights, columns=4)
    assert sum(axes.get_visible() for axes in grid.axes) == 6
    for head in range(6):
        assert np.allclose(image_of(grid, head), weights[head].numpy())


def test_attention_of_a_record() -> None:
    model = glassformer.tiny("original").eval()
    record = glassformer.observe(model, (torch.randint(1, 80, (2, 7)), torch.randint(1, 80, (2, 5))))
    name = "decoder.blocks.1.cross_attn"
    one = plotting.attention_weights(record, name, head=2, row=1)
    assert torch.equal(one, record.weights(name)[1, 2])
    assert torch.allclose(plotting.attention_weights(record, name).sum(-1), torch.ones(5))


def test_mask_map_is_filled_where_attending_is_allowed() -> None:
    dense = Mask(causal=True, window=2).dense(4, 4)
    assert dense is not None
    cells = next(c for c in plotting.mask_map(dense).axes[0].collections if isinstance(c, QuadMesh))
    assert np.array_equal(np.asarray(cells.get_array()).astype(bool), dense[0, 0].numpy())


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plotting.attention_map(torch.rand(2, 3, 4)),
        lambda: plotting.attention_map(torch.rand(2, 3), keys=["a"]),
        lambda: plotting.attention_text(torch.rand(2, 3), ["a"], ["b"] * 3),
        lambda: plotting.mask_map(torch.ones(3)),
    ],
)
def test_wrong_shapes_are_errors(draw) -> None:
    with pytest.raises(ShapeError):
        draw()


def test_text_map_puts_the_shade_under_its_key() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    lines = plotting.attention_text(weights, ["p", "q"], ["a", "b", "c"], ascii_only=True).plain.splitlines()
    heading, first, second = (line.ljust(10) for line in lines)
    column = {key: heading.index(key) for key in "abc"}
    assert [first[column[k]] for k in "abc"] == [" ", "#", " "]
    assert [second[column[k]] for k in "abc"] == ["*", " ", "*"]
    keys = [f"word{n}" for n in range(30)]  # wider than a cell: written downwards
    lines = plotting.attention_text(torch.eye(30), ["q"] * 30, keys, width=70).plain.splitlines()
    assert "".join(line[2] for line in lines[:6]).strip() == "word0"


def test_korean_is_romanized_if_no_font_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    have = fonts._drawable()
    for token in ("안녕하세요", " the", "\n", "\x00", "値段", "🙂", "é", "▁a", "Ġthe"):
        assert all(ord(letter) in have for letter in fonts.label(token)), token
    latin = frozenset(range(0x20, 0x7F))
    monkeypatch.setattr(fonts, "_drawable", lambda: latin)
    assert [fonts.label(text) for text in ("안녕", "한글", "値")] == ["annyeong", "hangeul", "U+5024"]
    monkeypatch.setattr(fonts, "_drawable", lambda: latin | {ord("안"), ord("녕")})
    assert fonts.label("안녕") == "안녕"


def test_saved_files_are_deterministic(tmp_path: Path) -> None:
    mask = torch.ones(4, 4).tril()
    files = [plotting.save(plotting.mask_map(mask), tmp_path / "a" / f"{n}.png") for n in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_labels_of_all_heads_are_inside_the_figure() -> None:
    words = "the animal did not cross the street".split()
    figure = plotting.attention(torch.ones(4, 7, 7) / 7, words, title="One layer")
    figure.canvas.draw()
    labels = [text for axes in figure.axes for text in axes.get_xticklabels()]
    assert len(labels) == 28
    for text in labels:
        box = text.get_window_extent()
        assert box.y0 >= 0 and figure.bbox.contains(box.x0, box.y0), text.get_text()
