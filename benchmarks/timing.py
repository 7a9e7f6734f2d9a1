"""Time several things in one run, turn by turn, so that a noisy machine disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

Step = Callable[[], object]


def turns(steps: dict[str, Step], *, rounds: int, warm: int = 1) -> dict[str, float]:
    """The median seconds of each step, the steps taken in turn."""
    seen: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + warm):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            if number >= warm:
                seen[name].append(time.perf_counter() - begin)
    return {name: median(times) for name, times in seen.items()}


def gpu_seconds(step: Step, *, repeats: int = 20, warm: int = 6) -> float:
    """The median seconds of a step on a GPU, by its own events."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return median(a.elapsed_time(b) for a, b in pairwise(marks)) / 1e3


def show(title: str, times: dict[str, float], *, ours: str, unit: str = "ms", work: float = 0.0) -> None:
    """A table of times, with each peer's time over ours: above 1 we are the faster."""
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column(unit, justify="right")
    if work:
        table.add_column("k/s", justify="right")
    table.add_column("its time / ours", justify="right")
    for name, seconds in times.items():
        cells = [name, f"{seconds * 1e3:.1f}"]
        if work:
            cells.append(f"{work / seconds / 1e3:.1f}")
        cells.append("1" if name == ours else f"{seconds / times[ours]:.2f}")
        table.add_row(*cells)
    Console(width=100).print(table)
