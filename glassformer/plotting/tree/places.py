"""Where the candidates of a search stand in its picture: a column a step, a row a rank.

A search of many steps is spread over several bands, as music is over staves. Each band after the first
begins with the last step of the one before, so that every candidate's line has somewhere to come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

MOST_ROWS: Final = 16  # candidates of a step that are drawn, beside those that went on or ended


class Candidate(Protocol):
    """One node of a search, as `glassformer.generation.SearchNode` is."""

    step: int
    token: int
    logprob: float
    score: float
    length_term: float
    parent: int | None
    rank: int
    place: int | None
    state: Literal["kept", "pruned", "finished"]

    @property
    def why(self) -> str:
        """What became of it, and why."""


class Search(Protocol):
    """A tree of candidates, parents before their children, as `glassformer.generation.SearchTree` is."""

    num_beams: int

    @property
    def nodes(self) -> Sequence[Candidate]:
        """All that was weighed."""


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A candidate in the picture; `again` where a band repeats it from the one before."""

    node: int
    column: int
    row: int
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Band:
    """Some steps side by side. lines: from a spot to a spot, by their nodes; None is where texts begin."""

    steps: tuple[int, ...]
    spots: tuple[Spot, ...]
    lines: tuple[tuple[int | None, int], ...]

    @property
    def rows(self) -> int:
        """How many rows it needs."""
        return 1 + max(spot.row for spot in self.spots)


@dataclass(frozen=True, kw_only=True)
class Places:
    """The whole picture. won: the nodes of the best result; notes: what was left out."""

    bands: tuple[Band, ...]
    won: frozenset[int]
    notes: tuple[str, ...]


def places(tree: Search, *, columns: int, most_steps: int) -> Places:
    """Lay out a search with so many columns a band, cut after so many steps."""
    nodes = tree.nodes
    written = 1 + max((node.step for node in nodes), default=-1)
    drawn = min(written, most_steps)
    shown = {
        n
        for n, node in enumerate(nodes)
        if node.step < drawn
        and (node.rank < MOST_ROWS or node.state != "pruned" or node.why == "search over")
    }
    notes = []
    if drawn < written:
        notes.append(f"steps {drawn + 1} to {written} are not drawn")
    hidden = sum(node.step < drawn for node in nodes) - len(shown)
    if hidden:
        notes.append(f"{hidden} candidates below rank {MOST_ROWS} are not drawn")
    bands = tuple(_band(nodes, shown, steps) for steps in staves(drawn, columns))
    best = next((n for n, node in enumerate(nodes) if node.place == 0), None)
    return Places(bands=bands, won=frozenset(_path(nodes, best)), notes=tuple(notes))


def staves(steps: int, columns: int) -> list[tuple[int, ...]]:
    """The steps of each band, about as many in each; all but the first repeat a step.

    >>> staves(9, 6)
    [(0, 1, 2, 3, 4), (4, 5, 6, 7, 8)]
    """
    if steps <= columns:
        return [tuple(range(steps))]
    count = math.ceil((steps - 1) / (columns - 1))
    width = math.ceil((steps - 1) / count)  # new steps a band; the first has one more
    return [tuple(range(n, min(n + width + 1, steps))) for n in range(0, steps - 1, width)]


def _band(nodes: Sequence[Candidate], shown: set[int], steps: tuple[int, ...]) -> Band:
    spots, lines = [], []
    parents = {nodes[n].parent for n in shown}
    for column, step in enumerate(steps):
        again = column == 0 and step > 0
        for n in sorted(shown):
            node = nodes[n]
            if node.step != step or (again and n not in parents):
                continue
            spots.append(Spot(node=n, column=column, row=node.rank, again=again))
            if not again:
                lines.append((node.parent, n))
    return Band(steps=steps, spots=tuple(spots), lines=tuple(lines))


def _path(nodes: Sequence[Candidate], last: int | None) -> list[int]:
    found = []
    while last is not None:
        found.append(last)
        last = nodes[last].parent
    return found
