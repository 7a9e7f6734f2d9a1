"""Create figures in a common style, without pyplot's global state, and save them as PNG or SVG."""

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
# Okabe and Ito's colors, safe for color-blind readers
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#d55e00", "#009e73", "#cc79a7"


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the common fonts and colors inside the block."""
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


def new_figure(width: float, height: float) -> Figure:
    """Create an empty white figure; width and height in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.09)
    figure = Figure(figsize=(width, height), facecolor=PAPER, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def hide_frame(axes: Axes) -> None:
    """Hide the tick marks and the frame."""
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def save(figure: Figure, path: str | Path, *, dpi: int = 144) -> Path:
    """Save a figure as SVG or PNG, by the file's suffix; the same figure gives the same bytes."""
    from matplotlib import rc_context

    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # matplotlib warns if a font has no bold face
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    # glyphs as paths, so that a file looks the same without the font
    with rc_context({"svg.hashsalt": "glassformer", "svg.fonttype": "path"}):
        if target.suffix.lower() == ".svg":
            figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
        else:
            figure.savefig(target, format="png", dpi=dpi, metadata={"Software": None})
    return target
