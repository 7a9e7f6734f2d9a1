"""Progress on the console: a bar on a terminal, plain lines elsewhere; and numbers as people read them."""

from __future__ import annotations

import math
import os
import sys
import unicodedata
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

REDRAW_INTERVAL = 0.1  # seconds
MIN_BAR_WIDTH = 11  # columns, with the spaces around it
DROPPED_FIRST = ("gradient", "memory", "perplexity", "mfu", "lr", "speed", "left")  # on a narrow terminal


def format_duration(seconds: float) -> str:
    """Seconds in the two largest units.

    >>> format_duration(0.25), format_duration(42), format_duration(250), format_duration(90061)
    ('0.2 s', '42 s', '4 min 10 s', '1 d 1 h')
    """
    if not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, part, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            large, rest = divmod(whole, size)
            return f"{large} {name} {rest // part} {below}"
    return f"{whole} s"


def format_number(value: float) -> str:
    """A number with about four digits.

    >>> [format_number(x) for x in (3.41234, 0.000301, 41234.5, 99.25, 0, float("nan"))]
    ['3.412', '0.000301', '41,234', '99.25', '0', 'nan']
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.3g}"


def single_line(text: str) -> str:
    """Any text, safe to print: no line breaks, control or bidi characters.

    >>> single_line("two\\nlines, a \\x1b[31mtrick")
    'two↵lines, a �[31mtrick'
    """
    return "".join(_printable(character) for character in text)


def _printable(character: str) -> str:
    if character in "\n\t":
        return "↵" if character == "\n" else " "
    # Cc: controls; Cs: unpaired surrogates; Zl, Zp: line breaks; the rest are bidi overrides
    unsafe = (
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        or character in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )
    return "\ufffd" if unsafe else character


def silence_stderr() -> None:
    """Discard further output to standard error, which nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class ProgressDisplay:
    """Shows nothing: for ranks without output, and after the terminal was closed."""

    def update(self, step: int, values: Mapping[str, str]) -> None:
        """After every step."""

    def line(self, text: str) -> None:
        """A periodic line of metrics."""

    def message(self, text: str) -> None:
        """Anything else."""

    def close(self) -> None:
        pass


def create_display(console: Console | None, *, total_steps: int, from_step: int = 0) -> ProgressDisplay:
    """A bar or lines, as suits the console (None is standard error)."""
    if console is None:
        if sys.stderr is None:  # closed before the program started
            return ProgressDisplay()
        # colours may be forced for a log file, but a bar that redraws itself does not belong there
        terminal = None if sys.stderr.isatty() else False
        console = _StderrConsole(stderr=True, highlight=False, force_terminal=terminal)
    if console.is_terminal and not console.is_dumb_terminal:
        return BarDisplay(console, total_steps=total_steps, from_step=from_step)
    return LineDisplay(console)


class _StderrConsole(Console):
    """A console whose pipe may close: rich would exit the program, and the training with it."""

    def on_broken_pipe(self) -> None:
        silence_stderr()
        raise BrokenPipeError


class LineDisplay(ProgressDisplay):
    """One line after another, without control characters."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def line(self, text: str) -> None:
        self.message(text)

    def message(self, text: str) -> None:
        self._console.print(Text(single_line(text)), soft_wrap=True)


class BarDisplay(ProgressDisplay):
    """A bar at the bottom of the terminal; messages scroll above it.

    It is drawn only inside a call, never by a thread, so that forks and signals find nothing half done.
    """

    def __init__(self, console: Console, *, total_steps: int, from_step: int) -> None:
        self._progress = Progress(
            TextColumn("step {task.completed:,.0f} of {task.total:,.0f}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=MIN_BAR_WIDTH - 1)),
            TextColumn(
                "{task.fields[values]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
            ),
            console=console,
            auto_refresh=False,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=total_steps, completed=from_step, values="")
        self._total = total_steps
        self._drawn = float("-inf")
        self._progress.start()

    def update(self, step: int, values: Mapping[str, str]) -> None:
        self._progress.update(self._task, completed=step)
        if values:
            width = self._progress.console.width - len(f"step {step:,} of {self._total:,} ") - MIN_BAR_WIDTH
            self._progress.update(self._task, values=fit_values(values, width))
        now = self._progress.get_time()
        if now - self._drawn >= REDRAW_INTERVAL:
            self._drawn = now
            self._progress.refresh()

    def message(self, text: str) -> None:
        self._progress.console.print(Text(single_line(text)), soft_wrap=True)

    def close(self) -> None:
        self._progress.refresh()
        self._progress.stop()


def fit_values(values: Mapping[str, str], width: int) -> str:
    """As many values as fit, the least important dropped first.

    >>> fit_values({"loss": "loss 2.5", "lr": "lr 1e-3", "left": "9 s left"}, 18)
    'loss 2.5  9 s left'
    """
    shown = dict(values)
    for name in DROPPED_FIRST:
        if len("  ".join(shown.values())) <= width:
            break
        shown.pop(name, None)
    return "  ".join(shown.values())
