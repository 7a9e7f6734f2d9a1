"""A panel of curves as SVG inside a page: its colours are the page's, so it turns dark with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from glassformer.training.notes.curves import Panel
from glassformer.training.notes.words import figure

WIDTH, HEIGHT = 520, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 34, 34


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`.

    >>> ticks(0.3, 4.1), ticks(2.0, 2.0)
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 1.5, 2.0, 2.5, 3.0])
    """
    if high - low <= abs(high) * 1e-9:
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (-1.0, 1.0)
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12 - math.floor(math.log10(step))) for n in range(first, last + 1)]


def chart(panel: Panel) -> str:
    """The SVG of a panel, with a description for those who do not see it."""
    ys = [y for curve in panel.curves for _, y in curve.points]
    rows = ticks(min(0.0, *ys) if panel.values == "from nought" else min(ys), max(ys))
    end = max(panel.until, 1)
    columns = [tick for tick in ticks(0, end) if tick <= end and tick == round(tick)]

    def across(x: float) -> float:
        return LEFT + x / end * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return TOP + (rows[-1] - y) / (rows[-1] - rows[0]) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_described(panel))}">',
        f'<text class="title" x="0" y="15">{escape(panel.title)}</text>',
    ]
    for tick in rows:
        y = down(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{_tick(tick)}</text>'
        )
    for tick in columns:
        x = across(tick)
        y = HEIGHT - BOTTOM + 17
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="middle">{_tick(tick)}</text>')
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">step</text>')
    for n, curve in enumerate(panel.curves):
        places = [(across(x), down(y)) for x, y in curve.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="curve c{n}" points="{line}"/>')
        if (curve.style == "marked" and len(places) <= 60) or len(places) == 1:
            parts += [f'<circle class="dot c{n}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in places]
    if len(panel.curves) > 1:
        parts += _legend([curve.label for curve in panel.curves])
    return "\n".join([*parts, "</svg>"])


def _legend(labels: Sequence[str]) -> list[str]:
    parts, right = [], float(WIDTH - RIGHT)
    for n, label in reversed(list(enumerate(labels))):
        parts.append(f'<text class="tick" x="{right:.0f}" y="15" text-anchor="end">{escape(label)}</text>')
        right -= 6.0 * len(label) + 8
        parts.append(f'<line class="curve c{n}" x1="{right - 14:.0f}" x2="{right:.0f}" y1="11" y2="11"/>')
        right -= 30
    return parts


def _tick(value: float) -> str:
    """Short: 12k and 3M rather than all their noughts."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            size = 1e3 if letter == "k" else size
            return f"{value / size:g}{letter}"
    return f"{value:,g}"


def _described(panel: Panel) -> str:
    said = [
        f"{curve.label} from {figure(curve.points[0][1])} to {figure(curve.points[-1][1])}"
        for curve in panel.curves
    ]
    return f"{panel.title} over the steps: {'; '.join(said)}"
