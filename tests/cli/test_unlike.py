"""What `classify` says of pictures that are unlike those a model has learnt."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import glassformer
from glassformer.interpret.examples import example_input


@pytest.fixture(scope="module")
def seven() -> Image.Image:
    """A drawn digit, light on dark."""
    drawn = example_input(glassformer.load("pocket-digits")).image
    assert drawn is not None
    return Image.open(io.BytesIO(base64.b64decode(drawn.partition(",")[2]))).convert("L")


def photograph() -> Image.Image:
    """Something with colours, about as bright as digits are, of 900 x 600."""
    rows, columns = np.mgrid[0:600, 0:900]
    pixels = np.stack([rows // 5, columns // 12, np.zeros_like(rows)], -1)
    return Image.fromarray(pixels.astype(np.uint8))


def test_only_what_is_unlike_is_told(run: Any, seven: Image.Image, tmp_path: Path) -> None:
    nothing = "nothing in it to read, and its label is a guess"
    pictures = {
        "seven": (seven, []),
        "large": (seven.resize((300, 300)).convert("RGB"), []),
        "paper": (
            ImageOps.invert(seven),
            ["1 picture is much lighter than those that the model 'pocket-digits'"],
        ),
        "black": (Image.new("L", (28, 28)), [f"1 picture is of one shade, with {nothing}"]),
        "speck": (Image.new("RGB", (1, 1), "white"), [f"1 picture is of one shade, with {nothing}"]),
        "photo": (
            photograph(),
            [
                "1 picture is in colour, and the model 'pocket-digits' has learnt grey ones",
                "1 picture is more than 16 times as large as what the model 'pocket-digits' reads",
            ],
        ),
    }
    for name, (picture, told) in pictures.items():
        picture.save(tmp_path / f"{name}.png")
        done = run("classify", "pocket-digits", tmp_path / f"{name}.png")
        assert done.code == 0 and done.out
        lines = done.err.splitlines()
        assert len(lines) == len(told), (name, lines)
        assert all(line.startswith(f"note: {one}") for line, one in zip(lines, told, strict=True)), lines
    paper = tmp_path / "paper.png"
    assert run("classify", "pocket-digits", paper, paper).err.startswith("note: 2 pictures are much lighter")
