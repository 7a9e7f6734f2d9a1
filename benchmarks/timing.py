"""Time several functions in turns, so that noise on the machine affects all of them equally."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.recording import add_samples

Step = Callable[[], object]


def clock() -> tuple[Callable[[], float], str]:
    """Return the clock and its unit in tables: CPU time with one thread (OMP_NUM_THREADS=1), else the time.

    Other programs on the machine affect CPU time much less than the time that passes.
    """
    if torch.get_num_threads() == 1 and not torch.cuda.is_available():
        return time.process_time, "CPU ms"
    return time.perf_counter, "ms"


def time_in_turns(steps: dict[str, Step], *, rounds: int, warm: int = 1) -> dict[str, float]:
    """Run the steps in turns; return the median seconds of each. warm: number of untimed rounds."""
    samples: dict[str, list[float]] = {name: [] for name in steps}
    now, _ = clock()
    for number in range(rounds + warm):
        for name, step in steps.items():
            start = now()
            step()
            if number >= warm:
                samples[name].append(now() - start)
    add_samples(samples)
    return {name: median(times) for name, times in samples.items()}


def gpu_seconds(step: Step, *, repeats: int = 20, warm: int = 6) -> float:
    """Return the median seconds of a step on a GPU, measured with CUDA events."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    seconds = [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]
    add_samples({"gpu": seconds})
    return median(seconds)


def show(title: str, times: dict[str, float], *, ours: str, unit: str = "", work: float = 0.0) -> None:
    """Print a table of times, and ratios to the entry `ours`; above 1, `ours` is faster."""
    table = Table(title=title, title_justify="left")
    table.add_column("implementation")
    table.add_column(unit or clock()[1], justify="right")
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
    """An amount of work, and the seconds and steps it took."""

    work: float
    seconds: float
    steps: int


def rates(
    steps: dict[str, Callable[[], tuple[float, int]]], *, rounds: int, warm: int = 2
) -> dict[str, Rate]:
    """Run the steps in turns and measure their rates in sentences per second.

    A step returns its numbers of sentences and tokens. Batches differ in size, so the rate is the total
    work over the total seconds. warm: number of untimed rounds.
    """
    totals = {name: [0.0, 0.0] for name in steps}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    now, _ = clock()
    for number in range(rounds + warm):
        for name, step in steps.items():
            start = now()
            sentences, _ = step()
            if number >= warm:
                seconds[name].append(now() - start)
                totals[name][0] += sentences
                totals[name][1] += seconds[name][-1]
    add_samples(seconds)
    return {name: Rate(work, seconds, rounds) for name, (work, seconds) in totals.items()}


def show_rates(title: str, results: dict[str, Rate], *, ours: str, unit: str) -> None:
    """Print a table of rates, and ratios to the entry `ours`; above 1, `ours` is faster."""
    unit = f"{unit}/CPU s" if clock()[0] is time.process_time else f"{unit}/s"
    table = Table(title=title, title_justify="left")
    for column in ("implementation", unit, f"{clock()[1]} per step", "ours / its"):
        table.add_column(column, justify="left" if column == "implementation" else "right")
    our_speed = results[ours].work / results[ours].seconds
    for name, rate in results.items():
        speed = rate.work / rate.seconds
        ratio = "1" if name == ours else f"{our_speed / speed:.2f}"
        table.add_row(name, f"{speed:,.1f}", f"{rate.seconds / rate.steps * 1e3:.1f}", ratio)
    Console(width=110).print(table)
