"""A search as a picture: every token that was weighed, step by step, and what became of it.

Steps run from left to right, and the rows of a step are its candidates by rank. Lengths are inches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len

from glassformer.errors import GlassformerError
from glassformer.plotting.canvas import FAINT, GREEN, GREY, INK, PAPER, blank, look
from glassformer.plotting.fonts import drawable, label
from glassformer.plotting.tree.looks import (
    BELOW,
    ENDED_BELOW,
    ENDINGS,
    LEGEND_ROW,
    MARGIN,
    WINNER,
    draw_legend,
    legend_rows,
    look_of,
)
from glassformer.plotting.tree.places import Band, Candidate, Places, Search, Spot, places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pieces = Callable[[list[int]], Sequence[str]]  # ids in a row to what each shows, as a tokenizer's `pieces`
Point = tuple[float, float]

COLUMN, ROW = 1.5, 0.66  # from one box to the next
WIDTH, HEIGHT, LINE = 1.1, 0.4, 0.135  # of a box, and of each further line in it
LEFT, RIGHT, HEAD, BETWEEN = 0.72, 0.14, 0.5, 0.25
NARROWEST: Final = 7.2  # so that what stands below has room
CELLS: Final = 12  # letters of a token at full size
RESULTS: Final = 5  # texts listed below
ACROSS: Final = 8  # tokens that one letter may lie across
CENTRED: Final[dict[str, Any]] = {"ha": "center", "va": "center"}


def search_tree(
    tree: Search, pieces: Pieces, *, title: str = "", columns: int = 7, most_steps: int = 48
) -> Figure:
    """The tree of a search, as `GenerationOutput.tree` holds it.

    pieces: ids to what each of them shows, as a tokenizer's `pieces`. columns: steps side by side; more of
    them go below, and those after `most_steps` are left out with a note.
    """
    if columns < 2 or most_steps < 1:
        raise GlassformerError(f"a tree needs 2 columns and a step; got {columns} and {most_steps}")
    if not tree.nodes:
        raise GlassformerError("the tree is empty: nothing was written, so there is nothing to draw")
    laid = places(tree, columns=columns, most_steps=most_steps)
    width = max(NARROWEST, LEFT + COLUMN * max(len(band.steps) for band in laid.bands) + RIGHT)
    shown = {look_of(tree.nodes[spot.node]) for band in laid.bands for spot in band.spots}
    legend = legend_rows(shown, beams=tree.num_beams, width=width)
    lines = [*_results(tree, pieces, int(width * 12)), *(f"({note})" for note in laid.notes)]
    reading = _reading(tree)
    above = 0.55 if title else 0.15
    tall = [HEAD + band.rows * ROW + BETWEEN for band in laid.bands]
    height = above + sum(tall) + LEGEND_ROW * len(legend) + 0.2 * len([*reading, *lines]) + 0.2
    with look():
        figure = blank(width, height)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        if title:
            told = drawable(_cut(title, int(width * 8)))
            axes.text(MARGIN, 0.3, told, va="center", fontsize=12, fontweight="bold")
        for band, top in zip(laid.bands, _tops(above, tall), strict=True):
            _draw_band(axes, tree, band, laid, pieces, top)
        top = above + sum(tall)
        draw_legend(axes, legend, top)
        top += LEGEND_ROW * len(legend)
        for n, line in enumerate(reading):
            axes.text(MARGIN, top + 0.2 * n, line, va="center", fontsize=8, color=GREY)
        top += 0.2 * len(reading) + 0.05
        for n, line in enumerate(lines):
            axes.text(MARGIN, top + 0.2 * n, line, va="center", fontsize=8.5)
    return figure


def _tops(first: float, tall: Sequence[float]) -> Iterator[float]:
    for height in tall:
        yield first
        first += height


def _draw_band(axes: Axes, tree: Search, band: Band, laid: Places, pieces: Pieces, top: float) -> None:
    first = top + HEAD + ROW / 2
    middle = {s.node: (LEFT + s.column * COLUMN + WIDTH / 2, first + s.row * ROW) for s in band.spots}
    _headings(axes, tree, band, top, first)
    start = (LEFT - 0.24, first + ROW * (band.rows - 1) / 2)
    if band.steps[0] == 0:
        axes.scatter(*start, s=22, color=INK, zorder=3)
    for parent, child in band.lines:
        begin = start if parent is None else (middle[parent][0] + WIDTH / 2, middle[parent][1])
        end = (middle[child][0] - WIDTH / 2, middle[child][1])
        _draw_line(axes, begin, end, tree.nodes[child], child in laid.won)
    for spot in band.spots:
        _draw_box(axes, tree, spot, middle[spot.node], pieces, spot.node in laid.won)


def _headings(axes: Axes, tree: Search, band: Band, top: float, first: float) -> None:
    for column, step in enumerate(band.steps):
        x = LEFT + column * COLUMN + WIDTH / 2
        if column == 0 and step > 0:
            axes.text(x, top + 0.14, f"step {step + 1} again", fontsize=9, color=GREY, **CENTRED)
            continue
        axes.text(x, top + 0.14, f"step {step + 1}", fontsize=9, fontweight="bold", **CENTRED)
        if _divided(tree):
            term = next(tree.nodes[s.node].length_term for s in band.spots if s.column == column)
            axes.text(x, top + 0.33, f"length term {term:.4g}", fontsize=7.5, color=GREY, **CENTRED)
    axes.text(0.24, top + 0.14, "rank", fontsize=8, color=GREY, **CENTRED)
    for row in range(band.rows):
        axes.text(0.24, first + row * ROW, f"{row + 1}", fontsize=8, color=GREY, **CENTRED)


def _draw_line(axes: Axes, begin: Point, end: Point, node: Candidate, won: bool) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    bend = (end[0] - begin[0]) * 0.55
    points = [begin, (begin[0] + bend, begin[1]), (end[0] - bend, end[1]), end]
    own = look_of(node)
    faint = own in (BELOW, ENDED_BELOW)
    line = PathPatch(
        Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]),
        fill=False,
        capstyle="round",
        zorder=2 if won else 1 if faint else 1.5,
        color=WINNER if won else FAINT if faint else own.edge,
        linewidth=3.2 if won else 0.8 if faint else 1.2,
    )
    axes.add_patch(line)


def _draw_box(axes: Axes, tree: Search, spot: Spot, at: Point, pieces: Pieces, won: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    node, own, (x, y) = tree.nodes[spot.node], look_of(tree.nodes[spot.node]), at
    lines = [] if spot.again else _numbers(node, _divided(tree))
    height = HEIGHT + LINE * (len(lines) - 1) if lines else 0.26
    box = FancyBboxPatch(
        (x - WIDTH / 2, y - height / 2),
        WIDTH,
        height,
        boxstyle="round,pad=0,rounding_size=0.07",
        facecolor=own.fill,
        edgecolor=WINNER if won else own.edge,
        linestyle="-" if won else own.line,
        linewidth=2.2 if won else own.width,
        zorder=3,
    )
    axes.add_patch(box)
    word = _word(tree, spot.node, pieces)
    size = 9.5 * min(1.0, CELLS / cell_len(word))
    bold = "normal" if node.state == "pruned" else "bold"
    inside = y - height / 2 + (0.135 if lines else height / 2)
    axes.text(x, inside, word, fontsize=size, color=own.text, fontweight=bold, zorder=4, **CENTRED)
    for n, line in enumerate(lines):
        axes.text(x, inside + 0.15 + n * LINE, line, fontsize=7, color=own.text, zorder=4, **CENTRED)
    if node.state == "finished":
        _draw_ending(axes, node, (x + WIDTH / 2 + 0.06, y - height / 2 - 0.02))


def _draw_ending(axes: Axes, node: Candidate, at: Point) -> None:
    """Why a text ended and which place it took, on the corner of its box."""
    place = "" if node.place is None else f"{node.place + 1}: "
    axes.text(
        *at,
        place + ENDINGS[node.why],
        ha="right",
        va="center",
        fontsize=6.5,
        fontweight="bold",
        color=PAPER if place else GREEN,
        bbox={
            "boxstyle": "round,pad=0.22",
            "facecolor": GREEN if place else PAPER,
            "edgecolor": GREEN,
            "linewidth": 0.8,
        },
        zorder=5,
    )


def _numbers(node: Candidate, divided: bool) -> list[str]:
    """The log-prob and the sum so far; of a finished one what the sum comes to over its length term."""
    lines = [f"{_signed(node.logprob, 2)}   Σ {_signed(node.score, 2)}"]
    if node.state == "finished" and divided:
        lines.append(f"÷ {node.length_term:.4g} = {_signed(node.score / node.length_term, 3)}")
    return lines


def _signed(number: float, digits: int) -> str:
    return f"{number + 0.0:.{digits}f}".replace("-", "−")


def _reading(tree: Search) -> list[str]:
    """How a box is read."""
    told = ["in a box: the token; its log-probability; Σ, their sum from the first token on"]
    return [*told, "of a finished text: Σ ÷ the length term = its score"] if _divided(tree) else told


def _divided(tree: Search) -> bool:
    """Whether length has a say."""
    return any(node.length_term != 1 for node in tree.nodes)


def _before(tree: Search, index: int | None) -> list[int]:
    """The tokens up to this node."""
    ids = []
    while index is not None:
        ids.append(tree.nodes[index].token)
        index = tree.nodes[index].parent
    return ids[::-1]


def _word(tree: Search, index: int, pieces: Pieces) -> str:
    """What a node's token shows behind those before it: a letter may lie across several."""
    shown = pieces(_before(tree, index)[-ACROSS:])[-1]
    return _cut(label(shown, 2 * CELLS), CELLS + 4) or "(empty)"


def _results(tree: Search, pieces: Pieces, cells: int) -> list[str]:
    """The texts that the search found, best first, each with its score."""
    ends = [(node.place, n) for n, node in enumerate(tree.nodes) if node.place is not None]
    lines = []
    for place, n in sorted(ends)[:RESULTS]:
        node = tree.nodes[n]
        ids = _before(tree, node.parent if node.why == "end" else n)
        text = "".join(pieces(ids)).strip()
        told = f"{place + 1}:   {_signed(node.score / node.length_term, 3)}   {text or '(nothing)'}"
        lines.append(drawable(_cut(told, cells)))
    return lines


def _cut(text: str, cells: int) -> str:
    """The beginning of a text that is no wider than so many cells."""
    if cell_len(text) <= cells:
        return text
    while cell_len(text) > cells - 1:
        text = text[:-1]
    return text + "…"
