"""Pictures show what they are given: read back off the figure, or off the written file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from PIL import Image
from rich.cells import cell_len

import glassformer
from glassformer import GlassformerError, Mask, plotting
from glassformer.plotting import fonts


def image_of(figure: Figure, axes: int = 0) -> np.ndarray:
    return np.asarray(figure.axes[axes].images[0].get_array())


def test_attention_map_holds_the_weights_and_labels() -> None:
    weights = torch.rand(3, 5).softmax(-1)
    figure = plotting.attention_map(weights, queries=["a", " b", "$"], keys=list("vwxyz"))
    assert np.allclose(image_of(figure), weights.numpy())
    axes = figure.axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["a", "␣b", r"\$"]
    assert [t.get_text() for t in axes.get_xticklabels()] == list("vwxyz")


def test_attention_grid_has_one_map_a_head() -> None:
    weights = torch.rand(6, 3, 5)
    figure = plotting.attention_grid(weights, columns=4)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == 6
    for head in range(6):
        assert np.allclose(image_of(figure, head), weights[head].numpy())


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


def test_position_pictures_hold_the_table() -> None:
    table = glassformer.SinusoidalPositions(16, max_len=30).table
    assert np.allclose(image_of(plotting.position_heatmap(table)), table.numpy())
    waves = plotting.position_waves(table, (0, 5, 99))  # the last is no dimension of this table
    assert [axes.get_ylabel() for axes in waves.axes] == ["dim 0", "dim 5"]
    assert np.allclose(waves.axes[1].lines[1].get_ydata(), table[:, 5].numpy())


def test_saved_files_are_pictures_and_the_same_every_time(tmp_path: Path) -> None:
    files = [plotting.save(plotting.wirings(), tmp_path / "deep" / f"{n}.png") for n in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()
    with Image.open(files[0]) as picture:
        colours = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert len(np.unique(colours, axis=0)) > 10  # not a blank page


@pytest.mark.parametrize(
    ("draw_it", "words"),
    [
        (lambda: plotting.attention_map(torch.rand(2, 3, 4)), "(T, S)"),
        (lambda: plotting.attention_map(torch.rand(2, 3), keys=["a"]), "1 labels were given for 3 keys"),
        (lambda: plotting.attention_grid(torch.rand(2, 3)), "(H, T, S)"),
        (lambda: plotting.attention_text(torch.rand(2, 3), ["a"], ["b"] * 3), "do not fit"),
        (lambda: plotting.position_heatmap(torch.rand(3)), "(positions, d_model)"),
        (lambda: plotting.mask_map(torch.ones(3)), "(T, S)"),
    ],
)
def test_wrong_shapes_are_a_sentence(draw_it, words: str) -> None:
    with pytest.raises(GlassformerError) as error:
        draw_it()
    assert words in str(error.value)


# ---- in the terminal --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5, 12, 40, 100])
@pytest.mark.parametrize("word", ["x", "token", "안녕", "a very long word indeed"])
def test_text_map_fits_eighty_columns(count: int, word: str) -> None:
    text = plotting.attention_text(torch.rand(3, count), [word, "b", "c"], [word] * count, width=80)
    lines = text.plain.splitlines()
    assert max(map(cell_len, lines)) <= 80
    if cell_len(lines[-1].rstrip()) and "keys)" in lines[-1]:
        assert f"of {count} keys" in lines[-1]


def test_text_map_puts_the_shade_under_its_key() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    lines = plotting.attention_text(weights, ["p", "q"], ["a", "b", "c"], ascii_only=True).plain.splitlines()
    heading, first, second = (line.ljust(10) for line in lines)
    column = {key: heading.index(key) for key in "abc"}
    assert [first[column[k]] for k in "abc"] == [" ", "#", " "]
    assert [second[column[k]] for k in "abc"] == ["*", " ", "*"]
    assert all(line.isascii() for line in lines)


def test_keys_wider_than_a_cell_are_written_downwards() -> None:
    keys = [f"word{n}" for n in range(30)]
    lines = plotting.attention_text(torch.eye(30), ["q"] * 30, keys, width=70).plain.splitlines()
    assert "".join(line[2] for line in lines[:6]).strip() == "word0"


# ---- letters ------------------------------------------------------------------------------------------


def test_korean_is_romanised_only_where_no_font_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    latin = frozenset(range(0x20, 0x7F))
    monkeypatch.setattr(fonts, "_drawable", lambda: latin)
    assert fonts.label("안녕") == "annyeong"
    assert fonts.label("한글") == "hangeul"
    assert fonts.label("値") == "U+5024"
    monkeypatch.setattr(fonts, "_drawable", lambda: latin | {ord("안"), ord("녕")})
    assert fonts.label("안녕") == "안녕"


def test_every_label_is_in_letters_the_fonts_have() -> None:
    have = fonts._drawable()
    for token in ("안녕하세요", " the", "\n", "\x00", "値段", "🙂", "é", "▁a", "Ġthe"):
        assert all(ord(letter) in have for letter in fonts.label(token)), token
