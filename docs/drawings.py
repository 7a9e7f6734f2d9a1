"""Drawings of the parts of a Transformer and of the packages, as boxes and arrows, for docs/concepts.

Every function returns a figure. A unit of the coordinates is an inch; data flows from left to right, and in
`transformer` from bottom to top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from glassformer.plotting.canvas import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PINK, figure_style, new_figure

Point = tuple[float, float]


class Drawing:
    """A canvas with boxes, arrows and labels."""

    def __init__(self, width: float, height: float) -> None:
        with figure_style():
            self.figure = new_figure(width, height)
            self.axes = self.figure.subplots()
        self.axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
        self.axes.axis("off")

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        style = {"ha": "center", "va": "center", "fontsize": 9, "zorder": 6} | style
        with figure_style():
            self.axes.text(x, y, text, **style)

    def shape(self, x: float, y: float, text: str) -> None:
        """Write the shape of a tensor."""
        self.text(x, y, text, fontsize=7.5, color=GREY)

    def box(
        self, x: float, y: float, text: str, color: str, width: float = 1.1, height: float = 0.42
    ) -> None:
        """Draw a box around its center."""
        self._patch(x, y, width, height, facecolor=color, edgecolor="white", zorder=4)
        self.text(x, y, text, color="white", fontsize=8.5, linespacing=1.15)

    def frame(self, x: float, y: float, width: float, height: float, label: str) -> None:
        """Draw a frame around its center, for what is repeated; the label is at its top left corner."""
        self._patch(x, y, width, height, facecolor="#f5f7fa", edgecolor=FAINT, zorder=0)
        self.text(x - width / 2, y + height / 2 + 0.06, label, ha="left", va="bottom", color=GREY)

    def _patch(self, x: float, y: float, width: float, height: float, **style: Any) -> None:
        corner = (x - width / 2, y - height / 2)
        boxstyle = "round,pad=0.0,rounding_size=0.08"
        self.axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=boxstyle, **style))

    def plus(self, x: float, y: float) -> None:
        self.axes.scatter([x], [y], s=110, facecolor="white", edgecolor=INK, linewidth=1.1, zorder=5)
        self.text(x, y - 0.008, "+", fontsize=10)

    def arrow(self, *points: Point, color: str = INK) -> None:
        """Draw a line through the points, with an arrow head at its end."""
        xs, ys = zip(*points[:-1], strict=True)
        self.axes.plot(xs, ys, color=color, linewidth=1.1, solid_joinstyle="round", zorder=2)
        style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
        self.axes.annotate("", xy=points[-1], xytext=points[-2], arrowprops=style, zorder=2)


def scaled_dot_product_attention() -> Figure:
    d = Drawing(7.6, 1.95)
    row = 1.05
    for name, shape, y in (("Q", "(T, d_k)", 1.3), ("K", "(S, d_k)", 0.8), ("V", "(S, d_v)", 0.25)):
        d.text(0.15, y, name, style="italic")
        d.shape(0.55, y, shape)
    for y, end in ((1.3, 1.17), (0.8, 0.93)):
        d.arrow((0.85, y), (1.05, y), (1.05, end), (1.25, end))
    steps = ((1.65, "Q Kᵀ", BLUE), (2.75, "÷ √d_k", GREY), (3.85, "mask", GREY), (4.95, "softmax", PINK))
    for (x, text, color), end in zip(steps, (2.35, 3.45, 4.55, 6.0), strict=True):
        d.box(x, row, text, color, 0.8)
        d.arrow((x + 0.4, row), (end, row))
    d.shape(2.2, row - 0.34, "scores (T, S)")
    d.box(6.3, row, "× V", BLUE, 0.6)
    d.arrow((0.85, 0.25), (6.3, 0.25), (6.3, row - 0.21))
    d.arrow((5.65, row), (5.65, 1.6))
    d.text(5.65, 1.72, "weights (T, S)", fontsize=8.5)
    d.arrow((6.6, row), (6.95, row))
    d.text(7.22, row, "output", fontsize=8.5)
    d.shape(7.22, row - 0.18, "(T, d_v)")
    return d.figure


def multi_head_attention() -> Figure:
    d = Drawing(7.6, 2.2)
    d.text(0.2, 1.75, "x", style="italic")
    d.shape(0.2, 1.57, "(T, D)")
    d.text(0.2, 0.8, "x or k_v", fontsize=8.5)
    d.shape(0.2, 0.62, "(S, D)")
    for y, name in ((1.75, "q_proj"), (1.1, "k_proj"), (0.45, "v_proj")):
        start = 0.45 if name == "q_proj" else 0.55
        height = 1.75 if name == "q_proj" else 0.8
        d.arrow((start, height), (0.75, height), (0.75, y), (0.95, y))
        d.box(1.4, y, name, GREY, 0.9)
        d.arrow((1.85, y), (2.65, y))
        d.shape(2.25, y - 0.13, "(T, H·K)" if name == "q_proj" else "(S, H·K)")
    for n in range(3, -1, -1):
        d._patch(3.5 + 0.1 * n, 1.05 + 0.06 * n, 1.7, 1.6, facecolor=BLUE, edgecolor="white", zorder=3)
    d.text(3.5, 1.15, "ScaledDotProduct-\nAttention", color="white", fontsize=8.5)
    d.text(3.5, 0.65, "H heads, each (T, K)", color="white", fontsize=7.5)
    d.arrow((4.65, 1.1), (5.0, 1.1))
    d.box(5.35, 1.1, "concat", GREY, 0.7)
    d.arrow((5.7, 1.1), (6.0, 1.1))
    d.box(6.4, 1.1, "out_proj", GREY, 0.8)
    d.arrow((6.8, 1.1), (7.1, 1.1))
    d.text(7.35, 1.1, "out", fontsize=8.5)
    d.shape(7.35, 0.92, "(T, D)")
    return d.figure


def feed_forward_network() -> Figure:
    d = Drawing(7.6, 1.75)
    row = 0.85
    for x, height, name, color in (
        (0.5, 0.4, "x\n(D)", INK),
        (2.8, 1.25, "(d_ff)", GREEN),
        (4.8, 1.25, "(d_ff)", GREEN),
        (7.1, 0.4, "out\n(D)", INK),
    ):
        d._patch(x, row + 0.1, 0.16, height, facecolor=color, edgecolor="none", zorder=3)
        d.text(x, row - height / 2 + 0.02, name, va="top", fontsize=8, color=GREY)
    for x, name, start, end in (
        (1.65, "linear", 0.6, 2.7),
        (3.8, "ReLU", 2.9, 4.7),
        (5.95, "linear", 4.9, 7.0),
    ):
        d.arrow((start, row + 0.1), (end, row + 0.1))
        d.box(x, row + 0.1, name, GREEN if name == "linear" else PINK, 0.9)
    return d.figure


def _sublayers(d: Drawing, x: float, row: float, names: Sequence[tuple[str, str]]) -> float:
    """Draw post-norm sublayers from x on: each with its residual connection and norm; return the new x."""
    for name, color in names:
        d.arrow((x, row), (x + 0.35, row))
        d.box(x + 0.95, row, name, color, 1.2, 0.5)
        d.arrow((x + 1.55, row), (x + 1.74, row))
        d.plus(x + 1.84, row)
        d.arrow((x + 0.12, row), (x + 0.12, row + 0.55), (x + 1.84, row + 0.55), (x + 1.84, row + 0.12))
        d.arrow((x + 1.94, row), (x + 2.1, row))
        d.box(x + 2.35, row, "norm", ORANGE, 0.5, 0.36)
        x += 2.6
    return x


def encoder_layer() -> Figure:
    d = Drawing(7.6, 1.35)
    row = 0.45
    d.text(0.95, row, "x", style="italic", ha="right")
    end = _sublayers(d, 1.05, row, (("MultiHead-\nAttention", BLUE), ("FeedForward-\nNetwork", GREEN)))
    d.arrow((end, row), (end + 0.3, row))
    d.text(end + 0.35, row, "out", ha="left")
    d.shape(0.7, row - 0.22, "(B, S, D)")
    d.shape(end + 0.5, row - 0.22, "(B, S, D)")
    return d.figure


def decoder_layer() -> Figure:
    d = Drawing(8.8, 1.9)
    row = 1.0
    d.text(0.25, row, "x", style="italic", ha="right")
    attention = (("MultiHead-\nAttention", BLUE), ("MultiHead-\nAttention", BLUE))
    end = _sublayers(d, 0.35, row, (*attention, ("FeedForward-\nNetwork", GREEN)))
    d.text(1.3, row - 0.42, "causal", fontsize=8.5, color=BLUE)
    d.text(2.0, 0.2, "enc_output", ha="right")
    d.shape(2.4, 0.2, "(B, S, D)")
    d.arrow((2.75, 0.2), (3.9, 0.2), (3.9, row - 0.25))
    d.text(4.0, row - 0.5, "keys and values", fontsize=8.5, ha="left", color=BLUE)
    d.arrow((end, row), (end + 0.25, row))
    d.text(end + 0.3, row, "out", ha="left")
    d.shape(0.25, row - 0.22, "(B, T, D)")
    d.shape(end + 0.35, row - 0.22, "(B, T, D)")
    return d.figure


def encoder_decoder() -> Figure:
    d = Drawing(7.6, 2.35)
    top, middle, bottom = 1.95, 1.15, 0.4
    columns = (("1", 1.7), ("2", 3.2), ("N", 5.4))
    for row, name, color, source in ((top, "EncoderLayer", BLUE, "x"), (bottom, "DecoderLayer", GREEN, "y")):
        d.text(0.3, row, source, style="italic")
        d.shape(0.3, row - 0.2, "(B, S, D)" if source == "x" else "(B, T, D)")
        d.arrow((0.45, row), (1.1, row))
        for number, x in columns:
            d.box(x, row, f"{name} {number}", color, 1.2)
        d.arrow((2.3, row), (2.6, row))
        d.arrow((3.8, row), (4.1, row))
        d.text(4.3, row, "···", color=GREY)
        d.arrow((4.5, row), (4.8, row))
    d.arrow((6.0, top), (6.55, top), (6.55, middle), (5.4, middle), (5.4, bottom + 0.21))
    for _, x in columns[:2]:
        d.arrow((5.4, middle), (x, middle), (x, bottom + 0.21))
    d.text(7.05, top, "enc_output", fontsize=8.5)
    d.shape(7.05, top - 0.18, "(B, S, D)")
    d.arrow((6.0, bottom), (6.7, bottom))
    d.text(6.95, bottom, "out", fontsize=8.5)
    d.shape(6.95, bottom - 0.18, "(B, T, D)")
    return d.figure


def transformer_encoder() -> Figure:
    d = Drawing(8.4, 1.95)
    row = 0.85
    d.text(0.2, row, "x", style="italic")
    d.shape(0.3, row - 0.2, "(B, S, D)")
    d.arrow((0.32, row), (0.78, row))
    d.plus(0.88, row)
    d.box(0.88, 0.2, "Positional-\nEncoding", PINK, 0.9, 0.36)
    d.arrow((0.88, 0.38), (0.88, row - 0.1))
    d.frame(4.14, row + 0.1, 5.42, 1.35, "TransformerEncoderBlock × N")
    x = 0.98
    for name, color in (("MultiHead-\nAttention", BLUE), ("FeedForward-\nNetwork", GREEN)):
        d.arrow((x, row), (x + 0.6, row))
        d.box(x + 0.85, row, "norm", ORANGE, 0.5, 0.36)
        d.arrow((x + 1.1, row), (x + 1.25, row))
        d.box(x + 1.85, row, name, color, 1.2, 0.5)
        d.arrow((x + 2.45, row), (x + 2.62, row))
        d.plus(x + 2.72, row)
        d.arrow((x + 0.48, row), (x + 0.48, row + 0.55), (x + 2.72, row + 0.55), (x + 2.72, row + 0.12))
        x += 2.82 if name.startswith("Multi") else 2.62
    d.arrow((x + 0.2, row), (x + 0.65, row))
    d.box(x + 0.9, row, "norm", ORANGE, 0.5, 0.36)
    d.arrow((x + 1.15, row), (x + 1.4, row))
    d.text(x + 1.45, row, "out", ha="left")
    return d.figure


def transformer() -> Figure:
    """Draw the whole model, bottom to top: encoder on the left, decoder on the right."""
    d = Drawing(7.6, 8.1)
    left, right, low = 1.9, 5.5, 1.46
    attention, ffn = ("MultiHeadAttention", BLUE), ("FeedForwardNetwork", GREEN)
    for x, side, name, ids in ((left, -1, "src", "(B, S) ids"), (right, 1, "tgt", "(B, T) ids")):
        d.text(x, 0.2, name, style="italic")
        d.shape(x + 0.6, 0.2, ids)
        d.arrow((x, 0.32), (x, 0.5))
        d.box(x, 0.72, "embedding × √D", GREY, 1.7)
        d.arrow((x, 0.93), (x, 1.25))
        d.plus(x, 1.36)
        d.box(x + 1.15 * side, 1.36, "Positional-\nEncoding", PINK, 0.95)
        d.arrow((x + 0.67 * side, 1.36), (x + 0.1 * side, 1.36))
    memory = _column(d, left, low, (attention, ffn), side=-1)
    top = _column(d, right, low, (("MultiHeadAttention\ncausal", BLUE), attention, ffn), side=1)
    for x, end, label in ((left, memory, "EncoderLayer × N"), (right, top, "DecoderLayer × N")):
        d.frame(x, (low + end) / 2 + 0.18, 3.2, end - low - 0.12, label)
    cross = 3.66  # the height of the cross-attention
    d.arrow((left, memory), (left, 5.05), (3.7, 5.05), (3.7, cross), (right - 0.85, cross))
    d.text(2.8, 5.17, "enc_output (B, S, D)", fontsize=8.5)
    d.text(3.78, cross + 0.1, "keys, values", fontsize=7.5, ha="left", color=BLUE)
    d.arrow((right, top), (right, 6.3))
    d.box(right, 6.52, "linear", GREY, 1.2)
    d.arrow((right, 6.73), (right, 6.95))
    d.text(right, 7.07, "logits")
    d.shape(right + 0.6, 7.07, "(B, T, V)")
    d.arrow((right, 7.19), (right, 7.36))
    d.box(right, 7.55, "softmax", PINK, 1.2, 0.36)
    d.arrow((right, 7.73), (right, 7.88))
    d.text(right, 7.99, "probabilities of each next token", fontsize=8.5)
    return d.figure


def _column(d: Drawing, x: float, y: float, names: Sequence[tuple[str, str]], side: int) -> float:
    """Draw post-norm sublayers upwards from y on; residual connections run on a side. Return the new y."""
    for n, (name, color) in enumerate(names):
        start = y + (0.12 if n else 0.45)
        d.arrow((x, y), (x, start + 0.22))
        d.box(x, start + 0.43, name, color, 1.7)
        d.arrow((x, start + 0.64), (x, start + 0.82))
        out = x + side * 1.25
        d.arrow((x, start), (out, start), (out, start + 1.02), (x + 0.85 * side, start + 1.02))
        d.box(x, start + 1.02, "add & norm", ORANGE, 1.7, 0.36)
        y = start + 1.2
    return y


PACKAGES = (  # from bottom to top; within a layer, a package may import those to its left
    ("messages", GREY, "errors messages json_text schema"),
    ("the model, its files,\ntexts and data", BLUE, "core weights tokenization data"),
    (
        "published models,\nfast inference",
        GREEN,
        "families transformer inference generation diffusion torch_modules",
    ),
    ("a loaded model", PINK, "baselines metrics plotting pretrained bundle model_index"),
    ("raw inputs to results", ORANGE, "processors tasks"),
    ("train, export,\nlook inside, check", PINK, "recipes training export interpret verify"),
    ("what users call", INK, "api batch explorer server cli"),
)


def packages() -> Figure:
    """Draw the layers of packages: each imports only from its own layer and those below."""
    d = Drawing(8.7, 4.5)
    for n, (label, color, names) in enumerate(PACKAGES):
        y = 0.4 + 0.62 * n
        d.frame(4.97, y, 6.94, 0.54, "")
        d.text(1.4, y, label, ha="right", fontsize=8.5, color=GREY, linespacing=1.15)
        for column, name in enumerate(names.split()):
            d.box(2.07 + 1.14 * column, y, name, color, 1.06, 0.36)
    d.arrow((8.54, 4.3), (8.54, 0.2), color=GREY)
    d.text(8.66, 2.25, "imports", fontsize=8, color=GREY, rotation=90)
    return d.figure
