"""python -m experiments.curves: plot the validation curves of every recorded row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.labels import run_label
from experiments.paths import FIGURES, ROOT
from experiments.records import RunRecord, runs_of
from experiments.rows import ROWS
from experiments.summary import by_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ROOT / "docs" / "pictures" / "results"
# The background is transparent; this gray is readable on white and on black.
INK = "#7c7c88"
WORDY = 30  # letters of a name in a legend beside which two panels leave no room for curves


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One metric in one panel. kinds: the runs of each name in the legend."""

    title: str
    of: str
    kinds: Mapping[str, Sequence[RunRecord]]


def panels_of(row: str, runs: Sequence[RunRecord]) -> list[Panel]:
    """A panel for each metric; groups such as "etth1/96" get their own panel."""
    result: dict[tuple[str, str], dict[str, list[RunRecord]]] = {}
    for of in sorted({one.of for one in runs}):
        for kind, several in by_kind([one for one in runs if one.of == of]).items():
            group, name = run_label(row, kind)
            result.setdefault((group, of), {})[name or row] = several
    return [Panel(title=group, of=of, kinds=kinds) for (group, of), kinds in result.items()]


def _in_order(name: str) -> tuple[float, str]:
    return (float(name) if name.isdecimal() else 0.0, name)


def figure_of(row: str, runs: Sequence[RunRecord]) -> Figure:
    """The panels of a row: a color for each kind of run, the same in all panels; a line for each seed."""
    from matplotlib.figure import Figure

    panels = panels_of(row, runs)
    names = sorted({name for panel in panels for name in panel.kinds}, key=_in_order)
    wordy = max(map(len, names)) > WORDY
    wide = 1 if wordy else min(2, len(panels))
    high = -(-len(panels) // wide)
    figure = Figure(figsize=(9.6 if wordy or wide > 1 else 7.2, 0.3 + 3.3 * high), layout="constrained")
    for axis, panel in zip(figure.subplots(high, wide, squeeze=False).flat, panels, strict=False):
        for name in sorted(panel.kinds, key=_in_order):
            several, n = panel.kinds[name], names.index(name)
            look = {"color": f"C{n % 10}", "ls": ("-", "--", ":")[n // 10 % 3]}
            for one in several:
                label = name if one is several[0] else None
                axis.plot(*zip(*one.curve, strict=True), lw=1.4, label=label, **look)
        axis.set_title(panel.title, fontsize=10, color=INK)
        axis.set_xlabel("steps", color=INK)
        axis.set_ylabel(panel.of, color=INK)
        axis.tick_params(colors=INK)
        axis.grid(color=INK, alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["bottom", "left"]].set_color(INK)
        legend_position = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}  # no curve runs there
        axis.legend(fontsize=8, frameon=False, labelcolor=INK, **legend_position)
    for spare in figure.axes[len(panels) :]:
        spare.set_axis_off()
    figure.suptitle(ROWS[row].title, fontsize=11, color=INK)
    return figure


def draw(row: str, figures: Path = FIGURES, folder: Path = PICTURES) -> Path | None:
    """One figure per row, if it has curves."""
    runs = [one for one in runs_of(row, figures) if len(one.curve) > 1]
    if not runs:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{row}.png"
    figure_of(row, runs).savefig(path, dpi=120, transparent=True)
    return path


if __name__ == "__main__":
    for name in ROWS:
        if (path := draw(name)) is not None:
            print(path.relative_to(ROOT))
