"""Plot why attention won, from the recorded figures: python -m experiments.why_attention.

Above: exact answers at each length, for copying and recall, and the training speed of each model. Below:
exact answers over training steps, and the speedup of the Transformer. Recall shows the better of its two
variants, with all keys at once and after few. Bands reach from the worst seed to the best.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from experiments.paths import FIGURES, ROOT
from experiments.recall import ROW
from experiments.records import RunRecord, runs_of
from glassformer.plotting.canvas import BLUE, FAINT, GREEN, ORANGE, figure_style, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = ROOT / "docs" / "pictures" / "why-attention.png"
NAMES = {"transformer": "Transformer", "lstm": "LSTM with attention", "lstm-alone": "LSTM alone"}
WIDTHS = {"transformer": 4.0, "lstm": 1.8, "lstm-alone": 1.8}  # the first drawn can be seen below the others
COLORS = {"transformer": BLUE, "lstm": ORANGE, "lstm-alone": GREEN}
Points = list[tuple[float, list[float]]]  # a place along the axis, and the figure of each seed there


def runs_named(records: Sequence[RunRecord], task: str, model: str) -> list[RunRecord]:
    """The seeds of one model on one task."""
    return [one for one in records if one.name.rpartition("/")[0] == f"{task}-{model}"]


def accuracy_by_size(runs: Sequence[RunRecord]) -> Points:
    """Test sizes, each with the exact answers of every seed in percent."""
    sizes = sorted({int(result[1]) for one in runs for key in one.figures if (result := _at(key, "exact"))})
    return [(size, [100 * one.figures[f"exact at {size}"] for one in runs]) for size in sizes]


def better_runs(records: Sequence[RunRecord], model: str) -> tuple[list[RunRecord], list[RunRecord]]:
    """The runs of the better recall variant, and those of its earlier stage."""
    ways: tuple[tuple[list[RunRecord], list[RunRecord]], ...] = (
        (runs_named(records, "recall", model), []),
        (runs_named(records, "many", model), runs_named(records, "few", model)),
    )
    return max(ways, key=lambda way: sum(fmean(seeds) for _, seeds in accuracy_by_size(way[0])))


def accuracy_by_step(runs: Sequence[RunRecord], before: Sequence[RunRecord] = ()) -> Points:
    """Steps at each validation, including an earlier stage, with the exact answers of every seed."""
    spent = before[0].curve[-1][0] if before else 0
    return [
        (spent + steps, [100 * dict(one.curve)[steps] for one in runs if steps in dict(one.curve)])
        for steps in sorted({steps for one in runs for steps, _ in one.curve})
    ]


def speeds(speed: RunRecord, model: str) -> Points:
    """Lengths, each with the training speed in thousand symbols per second."""
    result = {int(hit[1]): value for key, value in speed.figures.items() if (hit := _at(key, model))}
    return [(length, [result[length] / 1000]) for length in sorted(result)]


def _at(key: str, what: str) -> re.Match[str] | None:
    return re.fullmatch(rf"{re.escape(what)} at (\d+)", key)


def draw_figure(records: Sequence[RunRecord]) -> Figure:
    """The figure of a row's runs."""
    tasks = {
        "copy": ("Copying a string", "symbols"),
        "recall": ("Recalling the values of keys", "keys, by the better of two ways to learn it"),
    }
    with figure_style():
        timed = any(one.name.startswith("speed/") for one in records)
        figure = new_figure(10.5, 7)
        axes = figure.subplots(2, len(tasks) + timed)
        for column, (task, (title, unit)) in enumerate(tasks.items()):
            above, below = axes[0][column], axes[1][column]
            for model in NAMES:
                recalled = task == "recall"
                runs, before = (
                    better_runs(records, model) if recalled else (runs_named(records, task, model), [])
                )
                if runs:
                    _line(above, accuracy_by_size(runs), model, marks="o")
                    _line(below, accuracy_by_step(runs, before), model)
            _frame(above, title, unit, "whole answers, %" if not column else "")
            _frame(
                below,
                "The same, as it is learned",
                "steps of training",
                "whole answers, %" if not column else "",
            )
            for one in (above, below):
                one.set_ylim(-4, 104)
        _speeds(axes, records)
        figure.legend(
            *axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False
        )
        return figure


def _speeds(axes: Sequence[Sequence[Axes]], records: Sequence[RunRecord]) -> None:
    """The last column: training speeds, and the speedup of the Transformer."""
    for one in records:
        if not one.name.startswith("speed/"):
            continue
        above, below = axes[0][-1], axes[1][-1]
        ours = dict(speeds(one, "transformer"))
        for model in NAMES:
            points = speeds(one, model)
            _line(above, points, model, marks="o")
            _line(
                below, [(length, [ours[length][0] / value[0]]) for length, value in points], model, marks="o"
            )
        _frame(above, "Learning in parallel", "symbols of a string", "thousand symbols a second")
        _frame(below, "The same, as a ratio", "symbols of a string", "times the Transformer is faster")
        for part in (above, below):
            part.set_xscale("log", base=2)
            part.xaxis.set_major_formatter("{x:.0f}")
            part.set_ylim(bottom=0)


def _line(axes: Axes, points: Points, model: str, *, marks: str = "") -> None:
    """The mean over seeds, with a band from the minimum to the maximum."""
    positions, color = [x for x, _ in points], COLORS[model]
    means = [fmean(seeds) for _, seeds in points]
    width = WIDTHS[model]
    axes.plot(positions, means, marks + "-", color=color, label=NAMES[model], lw=width, ms=3 + width)
    lowest, highest = [min(seeds) for _, seeds in points], [max(seeds) for _, seeds in points]
    axes.fill_between(positions, lowest, highest, color=color, alpha=0.18, lw=0)


def _frame(axes: Axes, title: str, along: str, up: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(along)
    axes.set_ylabel(up)
    axes.grid(axis="y", color=FAINT, lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main(figures: Path = FIGURES, picture: Path = PICTURE) -> None:
    print(f"drawn: {save(draw_figure(runs_of(ROW, figures)), picture)}")


if __name__ == "__main__":
    main()
