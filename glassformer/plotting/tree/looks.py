"""How each fate of a candidate looks, and the legend that says so. Lengths are inches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from glassformer.plotting.canvas import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PAPER
from glassformer.plotting.tree.places import Candidate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINNER: Final = ORANGE
MARGIN, LEGEND_ROW = 0.2, 0.29


@dataclass(frozen=True, kw_only=True)
class Look:
    """A box, and what it means. Fates differ in their lines as well as in colour."""

    means: str
    edge: str
    fill: str = PAPER
    text: str = INK
    line: str = "-"
    width: float = 1.1


KEPT: Final = Look(means="kept: goes on", edge=BLUE, fill="#e3f0f8")
RESULT: Final = Look(means="finished: a result, with its place", edge=GREEN, fill="#d9f0e8", width=1.4)
OUTDONE: Final = Look(means="finished, but outdone by the results", edge=GREEN)
OPEN: Final = Look(means="still open when the search was over", edge=BLUE, line=":")
BELOW: Final = Look(means="pruned: below the beam", edge=FAINT, text=GREY, line="--")
ENDED_BELOW: Final = Look(means="pruned: ended below the beam", edge=GREEN, text=GREY, line="--")
LOOKS: Final = (KEPT, RESULT, OUTDONE, OPEN, BELOW, ENDED_BELOW)
UNFINISHED: Final = {
    "in the beam": KEPT,
    "below the beam": BELOW,
    "ended below the beam": ENDED_BELOW,
    "search over": OPEN,
}
ENDINGS: Final = {"end": "end token", "length": "limit", "stop": "stop text"}
WON: Final = "the way to the best result"
# where one text is written, nothing is compared with it
ALONE: Final = {KEPT: "chosen", RESULT: "chosen, and the text is finished", BELOW: "likely, but not chosen"}

Entry = tuple[Look | None, str, float]  # what is explained (None: the winning line), how, and where it begins


def look_of(node: Candidate) -> Look:
    """The look of a candidate's box."""
    if node.state == "finished":
        return OUTDONE if node.place is None else RESULT
    return UNFINISHED[node.why]


def legend_rows(shown: Collection[Look], *, beams: int, width: float) -> list[list[Entry]]:
    """What has to be explained, row by row, in a picture so wide."""
    rows: list[list[Entry]] = [[]]
    x = MARGIN
    entries: dict[Look | None, str] = {None: WON, **{one: one.means for one in LOOKS if one in shown}}
    if beams == 1:
        entries = {None: "what was written", **{one: ALONE.get(one, one.means) for one in entries if one}}
    for look, means in entries.items():
        needs = 0.72 + 0.068 * len(means)
        if x + needs > width and rows[-1]:
            rows.append([])
            x = MARGIN
        rows[-1].append((look, means, x))
        x += needs
    return rows


def draw_legend(axes: Axes, rows: Sequence[Sequence[Entry]], top: float) -> None:
    """The legend, its first row at this height."""
    from matplotlib.patches import FancyBboxPatch

    for n, row in enumerate(rows):
        y = top + n * LEGEND_ROW
        for look, means, x in row:
            axes.text(x + 0.5, y, means, va="center", fontsize=8)
            if look is None:
                axes.plot([x, x + 0.4], [y, y], color=WINNER, linewidth=3.2, solid_capstyle="round")
                continue
            box = FancyBboxPatch(
                (x, y - 0.09),
                0.4,
                0.18,
                boxstyle="round,pad=0,rounding_size=0.05",
                facecolor=look.fill,
                edgecolor=look.edge,
                linestyle=look.line,
                linewidth=look.width,
            )
            axes.add_patch(box)
