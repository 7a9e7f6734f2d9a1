"""Draw where the norms of a block sit: post, pre, parallel. Used by `docs.pictures`."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from glassformer.plotting.canvas import BLUE, GREEN, INK, ORANGE, blank, look, save

FOLDER = Path(__file__).parent / "pictures"
TEXTS = {"norm": "norm", "attn": "attention", "ffn": "feed-forward"}
COLOURS = {"norm": ORANGE, "attn": BLUE, "ffn": GREEN}


def wirings() -> Path:
    """Where the norms of a block sit: data flows upwards, the residual stream is on the left."""
    with look():
        figure = blank(7.2, 4.2)
        post, pre, parallel = figure.subplots(1, 3)
        for axes, title, note in (
            (post, "post (the paper)", "norm(x + f(x))"),
            (pre, "pre (today)", "x + f(norm(x))"),
            (parallel, "parallel", "x + attn(norm(x)) + ffn(norm(x))"),
        ):
            axes.set(xlim=(0, 4), ylim=(-0.7, 8.6))
            axes.axis("off")
            axes.set_title(title, pad=18)
            axes.text(2, 8.75, note, ha="center", va="bottom", fontsize=8.5)
        _post(post)
        _pre(pre)
        _parallel(parallel)
    return save(figure, FOLDER / "wirings.png")


def _box(axes: Axes, kind: str, x: float, y: float, width: float = 1.9) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - 0.3),
            width,
            0.6,
            boxstyle="round,pad=0.04,rounding_size=0.12",
            facecolor=COLOURS[kind],
            edgecolor="none",
            zorder=3,
        )
    )
    axes.text(x, y, TEXTS[kind], ha="center", va="center", color="white", fontsize=8, zorder=4)


def _plus(axes: Axes, x: float, y: float) -> None:
    axes.scatter([x], [y], s=150, facecolor="white", edgecolor=INK, linewidth=1.2, zorder=5)
    axes.text(x, y - 0.02, "+", ha="center", va="center", fontsize=11, zorder=6)


def _path(axes: Axes, *points: tuple[float, float]) -> None:
    """A line through the points with an arrow head at its end."""
    xs, ys = zip(*points, strict=True)
    axes.plot(xs[:-1], ys[:-1], color=INK, linewidth=1.2, solid_joinstyle="round", zorder=1)
    axes.annotate(
        "",
        xy=points[-1],
        xytext=points[-2],
        arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0},
        zorder=1,
    )


def _stream(axes: Axes, x: float) -> None:
    """The residual stream: from the input straight up to the output."""
    axes.text(x, -0.35, "x", ha="center", va="top", style="italic")
    _path(axes, (x, -0.3), (x, 8.4))


def _post(axes: Axes) -> None:
    stream, side = 0.8, 2.6
    for low, kind in ((0.0, "attn"), (4.0, "ffn")):
        _path(axes, (stream, low + 0.5), (side, low + 0.5), (side, low + 1.0))
        _box(axes, kind, side, low + 1.35)
        _path(axes, (side, low + 1.65), (side, low + 2.2), (stream + 0.2, low + 2.2))
        _plus(axes, stream, low + 2.2)
        _box(axes, "norm", stream, low + 3.2, 1.3)
    _stream(axes, stream)


def _pre(axes: Axes) -> None:
    stream, side = 0.8, 2.6
    for low, kind in ((0.0, "attn"), (4.0, "ffn")):
        _path(axes, (stream, low + 0.4), (side, low + 0.4), (side, low + 0.8))
        _box(axes, "norm", side, low + 1.15, 1.3)
        _path(axes, (side, low + 1.45), (side, low + 2.05))
        _box(axes, kind, side, low + 2.4)
        _path(axes, (side, low + 2.7), (side, low + 3.2), (stream + 0.2, low + 3.2))
        _plus(axes, stream, low + 3.2)
    _stream(axes, stream)


def _parallel(axes: Axes) -> None:
    stream, left, right = 0.4, 1.55, 3.2
    middle = (left + right) / 2
    _path(axes, (stream, 1.0), (middle, 1.0), (middle, 1.6))
    _box(axes, "norm", middle, 1.95, 1.3)
    for x, kind in ((left, "attn"), (right, "ffn")):
        _path(axes, (middle, 2.3), (middle, 2.9), (x, 2.9), (x, 3.5))
        _box(axes, kind, x, 3.85, 1.45)
    _path(axes, (right, 4.2), (right, 5.6), (stream + 0.2, 5.6))
    axes.plot([left, left], [4.2, 5.6], color=INK, linewidth=1.2, zorder=1)
    _plus(axes, stream, 5.6)
    _stream(axes, stream)
