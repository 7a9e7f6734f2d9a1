"""python -m results.curves: draw the curves of every row that was run, from the figures noted."""

from __future__ import annotations

from pathlib import Path

from results.noted import runs_of
from results.place import FIGURES, ROOT
from results.rows import ROWS
from results.summary import by_kind

PICTURES = ROOT / "docs" / "pictures" / "results"


def draw(row: str, figures: Path = FIGURES, folder: Path = PICTURES) -> Path | None:
    """One picture of a row: a colour for each kind of run, a line for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = [one for one in runs_of(row, figures) if len(one.curve) > 1]
    if not runs:
        return None
    measured = sorted({one.of for one in runs})
    figure, axes = pyplot.subplots(1, len(measured), figsize=(6.4 * len(measured), 3.6), squeeze=False)
    for axis, of in zip(axes[0], measured, strict=True):
        kinds = by_kind([one for one in runs if one.of == of])
        for n, (kind, several) in enumerate(kinds.items()):
            for one in several:
                label = (kind or row) if one is several[0] else None
                axis.plot(*zip(*one.curve, strict=True), color=f"C{n % 10}", alpha=0.8, lw=1.2, label=label)
        axis.set_xlabel("steps")
        axis.set_ylabel(of)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if len(kinds) <= 12:
            axis.legend(fontsize=7, frameon=False)
    figure.suptitle(ROWS[row].title, fontsize=10)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{row}.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


if __name__ == "__main__":
    for name in ROWS:
        if (made := draw(name)) is not None:
            print(made.relative_to(ROOT))
