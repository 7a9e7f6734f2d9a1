"""Plot a beam search as a tree: every candidate token, step by step, with its scores and outcome.

Steps run from left to right, and the candidates of a step from top to bottom by rank. A long search is split
into bands; each band repeats the last step of the previous band. Lengths are in inches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from rich.text import Text

from glassformer.errors import EmptyInputError, InvalidValueError
from glassformer.generation.search_tree import SearchNode, SearchTree
from glassformer.plotting.canvas import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PAPER, figure_style, new_figure
from glassformer.plotting.fonts import drawable, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pieces = Callable[[list[int]], Sequence[str]]
Point = tuple[float, float]

COLUMN, ROW = 1.5, 0.66  # from one box to the next
WIDTH, HEIGHT, LINE = 1.1, 0.4, 0.135  # of a box, and of each further line in it
LEFT, RIGHT, HEAD, BETWEEN, MARGIN = 0.72, 0.14, 0.5, 0.25, 0.2
LEGEND_ROW, LEGEND_COLUMN, TEXT_ROW = 0.24, 3.2, 0.2
MIN_WIDTH: Final = 7.2  # for the legend and the texts
MAX_ROWS: Final = 16  # maximum rank of candidates to draw; kept and finished ones are always drawn
MAX_RESULTS: Final = 5  # texts listed below
TOKEN_CELLS: Final = 12  # of a token at full size
DECODED_BEFORE: Final = 8  # tokens decoded with a node: a character may be spread over several
CENTERED: Final[dict[str, Any]] = {"ha": "center", "va": "center"}


@dataclass(frozen=True)
class BoxStyle:
    """The box style of an outcome, and its description. Outcomes differ in line style as well as color."""

    meaning: str
    edge: str
    fill: str = PAPER
    text: str = INK
    line: str = "-"
    width: float = 1.1


BOX_STYLES: Final = {
    "in the beam": BoxStyle("kept", BLUE, fill="#e3f0f8"),
    "result": BoxStyle("finished: a result, with its rank", GREEN, fill="#d9f0e8", width=1.4),
    "dropped": BoxStyle("finished, but worse than the results", GREEN),
    "search over": BoxStyle("unfinished when the search ended", BLUE, line=":"),
    "below the beam": BoxStyle("pruned: below the beam", FAINT, text=GREY, line="--"),
    "ended below the beam": BoxStyle("pruned: ended below the beam", GREEN, text=GREY, line="--"),
}
GREEDY: Final = {"in the beam": "chosen", "result": "chosen: the end", "below the beam": "likely, not chosen"}
ENDINGS: Final = {"end": "end token", "length": "limit", "stop": "stop text"}


@dataclass(frozen=True)
class Band:
    """Consecutive steps drawn side by side. columns: node index -> column."""

    steps: range
    columns: dict[int, int]

    def repeats(self, node: SearchNode) -> bool:
        """Whether the previous band also has this node."""
        return node.step == self.steps[0] > 0


def layout(tree: SearchTree, *, columns: int, max_steps: int) -> tuple[list[Band], list[str]]:
    """Split a tree into bands of at most `columns` steps; also return notes on what is left out."""
    nodes = tree.nodes
    length = 1 + nodes[-1].step
    steps = min(length, max_steps)
    shown = [
        n
        for n, node in enumerate(nodes)
        if node.step < steps
        and (node.rank < MAX_ROWS or node.state != "pruned" or node.reason == "search over")
    ]
    parents = {nodes[n].parent for n in shown}
    count = max(1, math.ceil((steps - 1) / (columns - 1)))
    width = max(1, math.ceil((steps - 1) / count))  # new steps in a band; the first has one more
    bands = []
    for first in range(0, max(1, steps - 1), width):
        band_steps = range(first, min(first + width + 1, steps))
        band = Band(band_steps, {n: nodes[n].step - first for n in shown if nodes[n].step in band_steps})
        unused = [n for n in band.columns if band.repeats(nodes[n]) and n not in parents]
        for n in unused:
            del band.columns[n]
        bands.append(band)
    notes = [f"steps {steps + 1} to {length} are not drawn"] if steps < length else []
    if hidden := sum(node.step < steps for node in nodes) - len(shown):
        notes.append(f"{hidden} candidates below rank {MAX_ROWS} are not drawn")
    return bands, notes


def search_tree(
    tree: SearchTree, pieces: Pieces, *, title: str = "", columns: int = 7, max_steps: int = 48
) -> Figure:
    """Plot the tree of a search, e.g. `GenerationOutput.tree`.

    pieces: function from token ids to their texts, e.g. a tokenizer's `pieces`. columns: steps per band.
    max_steps: maximum number of steps to draw.
    """
    if columns < 2:
        raise InvalidValueError("columns", columns, "at least 2")
    if not tree.nodes:
        raise EmptyInputError("search tree")
    bands, notes = layout(tree, columns=columns, max_steps=max_steps)
    normalized = any(node.length_term != 1 for node in tree.nodes)
    width = max(MIN_WIDTH, LEFT + COLUMN * max(len(band.steps) for band in bands) + RIGHT)
    explanations = ["in each box: the token, its log-probability, and Σ, the sum since the first token"]
    if normalized:
        explanations.append("for a finished text: Σ ÷ length term = score")
    lines = [*_results(tree, pieces, int(width * 12)), *(f"({note})" for note in notes)]
    outcomes = {_outcome(tree.nodes[n]) for band in bands for n in band.columns}
    across = int(width // LEGEND_COLUMN)
    legend_height = LEGEND_ROW * math.ceil((1 + len(outcomes)) / across) + 0.1
    above = 0.55 if title else 0.15
    heights = [HEAD + _rows(tree, band) * ROW + BETWEEN for band in bands]
    height = above + sum(heights) + legend_height + TEXT_ROW * (len(explanations) + len(lines)) + 0.25
    with figure_style():
        figure = new_figure(width, height)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        if title:
            text = drawable(_truncate(title, int(width * 8)))
            axes.text(MARGIN, 0.3, text, va="center", fontsize=12, fontweight="bold")
        top = above
        drawing = _Drawing(axes, tree, pieces, normalized)
        for band, band_height in zip(bands, heights, strict=True):
            drawing.band(band, top)
            top += band_height
        _draw_legend(
            axes, [outcome for outcome in BOX_STYLES if outcome in outcomes], tree.num_beams, across, top
        )
        top += legend_height + 0.05
        for line in (*explanations, *lines):
            axes.text(MARGIN, top, line, va="center", fontsize=8, color=GREY if line in explanations else INK)
            top += TEXT_ROW
    return figure


def _outcome(node: SearchNode) -> str:
    if node.state == "finished":
        return "dropped" if node.result_rank is None else "result"
    return node.reason


def _rows(tree: SearchTree, band: Band) -> int:
    return 1 + max(tree.nodes[n].rank for n in band.columns)


def _draw_legend(axes: Axes, outcomes: Sequence[str], beams: int, columns: int, top: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    path_label = "the generated text" if beams == 1 else "the path to the best result"
    handles: list[Any] = [Line2D([], [], color=ORANGE, linewidth=3.2, label=path_label)]
    for outcome in outcomes:
        style = BOX_STYLES[outcome]
        meaning = GREEDY.get(outcome, style.meaning) if beams == 1 else style.meaning
        options: dict[str, Any] = {"facecolor": style.fill, "edgecolor": style.edge, "linestyle": style.line}
        handles.append(Patch(**options, linewidth=style.width, label=meaning))
    axes.legend(
        handles=handles,
        ncols=columns,
        fontsize=8,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        handlelength=3.6,
        handleheight=1.4,
        labelspacing=0.75,
        loc="upper left",
        bbox_to_anchor=(MARGIN, top - 0.1),
        bbox_transform=axes.transData,
    )


class _Drawing:
    def __init__(self, axes: Axes, tree: SearchTree, pieces: Pieces, normalized: bool) -> None:
        self.axes, self.tree, self.pieces, self.normalized = axes, tree, pieces, normalized
        best = next((node for node in tree.nodes if node.result_rank == 0), None)
        self.best_path = set() if best is None else {id(node) for node in tree.path(best)}

    def band(self, band: Band, top: float) -> None:
        nodes, first = self.tree.nodes, top + HEAD + ROW / 2
        rows = _rows(self.tree, band)
        center = {n: (_center(c), first + nodes[n].rank * ROW) for n, c in band.columns.items()}
        self.headings(band, top)
        self.axes.text(0.24, top + 0.14, "rank", fontsize=8, color=GREY, **CENTERED)
        for row in range(rows):
            self.axes.text(0.24, first + row * ROW, f"{row + 1}", fontsize=8, color=GREY, **CENTERED)
        start = (LEFT - 0.24, first + ROW * (rows - 1) / 2)
        if band.steps[0] == 0:
            self.axes.scatter(*start, s=22, color=INK, zorder=3)
        for n, (x, y) in center.items():
            node, repeated = nodes[n], band.repeats(nodes[n])
            if not repeated:
                start_point = start if node.parent is None else center[node.parent]
                start_point = (
                    start_point if node.parent is None else (start_point[0] + WIDTH / 2, start_point[1])
                )
                self.line(start_point, (x - WIDTH / 2, y), node)
            self.box(node, (x, y), with_scores=not repeated)

    def headings(self, band: Band, top: float) -> None:
        for column, step in enumerate(band.steps):
            x = _center(column)
            if column == 0 and step > 0:
                self.axes.text(x, top + 0.14, f"step {step + 1} again", fontsize=9, color=GREY, **CENTERED)
                continue
            self.axes.text(x, top + 0.14, f"step {step + 1}", fontsize=9, fontweight="bold", **CENTERED)
            if self.normalized:
                term = next(node.length_term for node in self.tree.nodes if node.step == step)
                text = f"length term {term:.4g}"
                self.axes.text(x, top + 0.33, text, fontsize=7.5, color=GREY, **CENTERED)

    def line(self, start_point: Point, end: Point, node: SearchNode) -> None:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        bend = (end[0] - start_point[0]) * 0.55
        points = [start_point, (start_point[0] + bend, start_point[1]), (end[0] - bend, end[1]), end]
        is_best, faint = id(node) in self.best_path, "below" in _outcome(node)
        line = PathPatch(
            Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]),
            fill=False,
            capstyle="round",
            zorder=2 if is_best else 1 if faint else 1.5,
            color=ORANGE if is_best else FAINT if faint else BOX_STYLES[_outcome(node)].edge,
            linewidth=3.2 if is_best else 0.8 if faint else 1.2,
        )
        self.axes.add_patch(line)

    def box(self, node: SearchNode, center: Point, *, with_scores: bool) -> None:
        from matplotlib.patches import FancyBboxPatch

        style, is_best, (x, y) = BOX_STYLES[_outcome(node)], id(node) in self.best_path, center
        lines = [f"{_signed(node.logprob, 2)}   Σ {_signed(node.score, 2)}"] if with_scores else []
        if with_scores and self.normalized and node.state == "finished":
            lines.append(f"÷ {node.length_term:.4g} = {_signed(node.score / node.length_term, 3)}")
        height = HEIGHT + LINE * (len(lines) - 1) if lines else 0.26
        top = y - height / 2
        box = FancyBboxPatch(
            (x - WIDTH / 2, top),
            WIDTH,
            height,
            boxstyle="round,pad=0,rounding_size=0.07",
            facecolor=style.fill,
            edgecolor=ORANGE if is_best else style.edge,
            linestyle="-" if is_best else style.line,
            linewidth=2.2 if is_best else style.width,
            zorder=3,
        )
        self.axes.add_patch(box)
        ids = [step.token for step in self.tree.path(node)[-DECODED_BEFORE:]]
        token = _truncate(label(self.pieces(ids)[-1], 2 * TOKEN_CELLS), TOKEN_CELLS + 4) or "(empty)"
        text_options: dict[str, Any] = {"color": style.text, "zorder": 4, **CENTERED}
        size = 9.5 * min(1.0, TOKEN_CELLS / cell_len(token))
        weight = "normal" if node.state == "pruned" else "bold"
        first = top + (0.135 if lines else height / 2)
        self.axes.text(x, first, token, fontsize=size, fontweight=weight, **text_options)
        for n, line in enumerate(lines):
            self.axes.text(x, first + 0.15 + n * LINE, line, fontsize=7, **text_options)
        if node.state == "finished":
            self.ending(node, (x + WIDTH / 2 + 0.06, top - 0.02))

    def ending(self, node: SearchNode, corner: Point) -> None:
        rank = "" if node.result_rank is None else f"{node.result_rank + 1}: "
        frame = {"boxstyle": "round,pad=0.22", "facecolor": GREEN if rank else PAPER, "edgecolor": GREEN}
        self.axes.text(
            *corner,
            rank + ENDINGS[node.reason],
            ha="right",
            va="center",
            fontsize=6.5,
            fontweight="bold",
            color=PAPER if rank else GREEN,
            bbox={**frame, "linewidth": 0.8},
            zorder=5,
        )


def _center(column: int) -> float:
    return LEFT + column * COLUMN + WIDTH / 2


def _results(tree: SearchTree, pieces: Pieces, cells: int) -> list[str]:
    ends = sorted((node.result_rank, n) for n, node in enumerate(tree.nodes) if node.result_rank is not None)
    lines = []
    for rank, n in ends[:MAX_RESULTS]:
        node = tree.nodes[n]
        ids = [step.token for step in tree.path(node)]
        text = "".join(pieces(ids[:-1] if node.reason == "end" else ids)).strip()
        line = f"{rank + 1}:   {_signed(node.score / node.length_term, 3)}   {text or '(empty)'}"
        lines.append(drawable(_truncate(line, cells)))
    return lines


def _signed(number: float, digits: int) -> str:
    return f"{number + 0.0:.{digits}f}".replace("-", "−")


def _truncate(text: str, cells: int) -> str:
    rich_text = Text(text)
    rich_text.truncate(cells, overflow="ellipsis")
    return rich_text.plain
