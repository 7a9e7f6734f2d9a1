"""Blank figures in one look, and writing them as PNG or SVG.

Figures are made without pyplot, so drawing leaves no global state behind and needs no display.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.plotting.fonts import font_families

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, FAINT, PAPER = "#1f2933", "#7b8794", "#cbd2d9", "#ffffff"
# Okabe and Ito's colours: told apart with any common colour blindness
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#cc79a7"


@contextmanager
def look() -> Iterator[None]:
    """The settings under which everything here is drawn; they end with the block."""
    from matplotlib import rc_context

    settings: dict[Any, Any] = {
        "font.family": list(font_families()),
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlepad": 10,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "axes.titlecolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.unicode_minus": False,
    }
    with rc_context(settings):
        yield


def blank(width: float, height: float) -> Figure:
    """An empty white figure of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.09)
    figure = Figure(figsize=(width, height), facecolor=PAPER, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def bare(axes: Axes) -> None:
    """No tick marks and no frame: labels alone."""
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def save(figure: Figure, path: str | Path, *, dpi: int = 144) -> Path:
    """Write a figure, the same bytes every time for the same figure: as SVG by that ending, else as PNG.

    Letters in an SVG are drawn, not named, so that it looks alike where their font is missing.
    """
    from matplotlib import rc_context

    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # the library would write its own version, or the hour, into the file, and each picture would change
    with (
        _silent("matplotlib.font_manager"),
        rc_context({"svg.hashsalt": "glassformer", "svg.fonttype": "path"}),
    ):
        if target.suffix.lower() == ".svg":
            figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
        else:
            figure.savefig(target, format="png", dpi=dpi, metadata={"Software": None})
    return target


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Without the warnings of a logger, such as that a font has no bold face and another stands in."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
