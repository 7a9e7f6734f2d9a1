"""Time several things in one run, turn by turn, so that a noisy machine disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

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


class Rate(NamedTuple):
    """How much was done in how many seconds and steps."""

    work: float
    seconds: float
    steps: int


def rates(
    steps: dict[str, Callable[[], tuple[float, int]]], *, rounds: int, warm: int = 2
) -> dict[str, Rate]:
    """Steps taken in turn; each says how many sentences and tokens it learned, and the sentences count.

    Batches differ in size, so all work is added up and divided by all seconds.
    """
    done = {name: [0.0, 0.0] for name in steps}
    for number in range(rounds + warm):
        for name, step in steps.items():
            begin = time.perf_counter()
            sentences, _ = step()
            if number >= warm:
                done[name][0] += sentences
                done[name][1] += time.perf_counter() - begin
    return {name: Rate(work, seconds, rounds) for name, (work, seconds) in done.items()}


def show_rates(title: str, found: dict[str, Rate], *, ours: str, what: str) -> None:
    """A table of rates, with ours over each peer's: above 1 we are the faster."""
    table = Table(title=title, title_justify="left")
    for column in ("what", f"{what}/s", "ms a step", "ours / its"):
        table.add_column(column, justify="left" if column == "what" else "right")
    mine = found[ours].work / found[ours].seconds
    for name, rate in found.items():
        speed = rate.work / rate.seconds
        ratio = "1" if name == ours else f"{mine / speed:.2f}"
        table.add_row(name, f"{speed:,.1f}", f"{rate.seconds / rate.steps * 1e3:.1f}", ratio)
    Console(width=110).print(table)
