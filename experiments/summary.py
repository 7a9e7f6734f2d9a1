"""Format figures over seeds: mean and standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

from experiments.records import RunRecord


def format_mean(values: Sequence[float], digits: int = 2) -> str:
    """The mean, with the standard deviation if there are several values.

    >>> format_mean([41.0, 41.5, 42.0]), format_mean([0.37], 3), format_mean([])
    ('41.50 ± 0.50', '0.370', '')
    """
    if not values:
        return ""
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def by_kind(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """The runs of each kind: "en-de/1" and "en-de/2" are two of the kind "en-de"."""
    kinds: dict[str, list[RunRecord]] = {}
    for one in runs:
        kinds.setdefault(one.name.rpartition("/")[0], []).append(one)
    return kinds


def of(runs: Sequence[RunRecord], figure: str) -> list[float]:
    """A figure of every run that has it."""
    return [one.figures[figure] for one in runs if figure in one.figures]


def size(runs: Sequence[RunRecord]) -> str:
    """The number of parameters, e.g. "2.60M"."""
    count = runs[0].parameters
    return f"{count / 1e6:.2f}M" if count >= 1e5 else f"{count:,}"


def seconds(runs: Sequence[RunRecord]) -> str:
    """The training time of the runs that shared the device with the fewest others, and their number."""
    fewest = min(one.concurrent_runs for one in runs)
    average = mean(one.seconds for one in runs if one.concurrent_runs == fewest)
    return f"{average:.0f} s" + (f" (shared with {fewest})" if fewest else "")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right.

    >>> print(table(("task", "loss"), [("letters", "1.47")]))
    | task | loss |
    |---|---:|
    | letters | 1.47 |
    """
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(
        ("|" + "|".join(line) + "|") if n == 1 else f"| {' | '.join(line)} |" for n, line in enumerate(lines)
    )


def bold_if(text: str, reached: bool) -> str:
    """Bold if a target was reached."""
    return f"**{text}**" if reached and text else text
