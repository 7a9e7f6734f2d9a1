"""Curves of a row: lines are distinguishable, on any background."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from PIL import Image

from experiments.curves import draw, figure_of
from experiments.labels import TASKS
from experiments.paths import FIGURES, Workspace
from experiments.records import RunRecord, keep, runs_of
from experiments.rows import ROWS
from experiments.why_attention import NAMES


def look(line: Line2D) -> tuple[str, str]:
    return to_hex(line.get_color()), str(line.get_linestyle())


@pytest.mark.parametrize("row", ROWS)
def test_every_kind_of_run_has_its_own_color_and_label(row: str) -> None:
    runs = [one for one in runs_of(row, FIGURES) if len(one.curve) > 1]
    if not runs:
        pytest.skip("no curve was noted")
    line_count = 0
    meant: dict[str, tuple[str, str]] = {}
    for axis in figure_of(row, runs).axes:
        if not axis.lines:
            continue
        legend = axis.get_legend()
        assert legend is not None
        names = [text.get_text() for text in legend.get_texts()]
        assert len(names) == len(set(names)) == len({look(line) for line in axis.lines})
        for line, name in zip(legend.get_lines(), names, strict=True):
            assert meant.setdefault(name, look(line)) == look(line)
        line_count += len(axis.lines)
    assert line_count == len(runs)


def test_copying_and_recall_have_separate_panels() -> None:
    axes = figure_of("recall", [one for one in runs_of("recall", FIGURES) if len(one.curve) > 1]).axes
    assert sorted(axis.get_title() for axis in axes) == sorted(TASKS.values())
    legends = [legend for axis in axes if (legend := axis.get_legend()) is not None]
    assert {text.get_text() for one in legends for text in one.get_texts()} == set(NAMES.values())


def test_background_is_transparent(tmp_path: Path) -> None:
    workspace = Workspace(data=tmp_path, work=tmp_path, figures=tmp_path / "figures")
    curve = ((1, 2.0), (2, 1.0))
    for name in ("etth1/96/1", "etth1/96/2", "etth2/96/1"):
        keep(
            workspace,
            RunRecord(
                row="ett", name=name, seed=1, parameters=1, seconds=1.0, figures={}, of="mse", curve=curve
            ),
        )
    path = draw("ett", workspace.figures, tmp_path)
    assert path is not None
    alpha = Image.open(path).convert("RGBA").getchannel("A")
    assert alpha.getpixel((0, 0)) == 0 and alpha.histogram()[0] > 0.8 * alpha.width * alpha.height
