"""Show progress on the console (a bar on a terminal, else plain lines), and format numbers."""

from __future__ import annotations

import math
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

REDRAW_INTERVAL = 0.1  # seconds
BIDI_OVERRIDES = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> format_duration(0.25), format_duration(42), format_duration(250), format_duration(90061)
    ('0.2 s', '42 s', '4 min 10 s', '1 d 1 h')
    """
    if not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    total = round(seconds)
    for size, name, part, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if total >= size:
            return f"{total // size} {name} {total % size // part} {below}"
    return f"{total} s"


def format_number(value: float) -> str:
    """Format a number with about four digits.

    >>> [format_number(x) for x in (3.41234, 0.000301, 41234.5, 99.25, 0, float("nan"))]
    ['3.412', '0.000301', '41,234', '99.25', '0', 'nan']
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.4g}"


def single_line(text: str) -> str:
    """Make any text safe to print on one line: replace line breaks, control and bidi characters.

    >>> single_line("two\\nlines, a \\x1b[31mtrick")
    'two↵lines, a �[31mtrick'
    """
    text = text.replace("\n", "↵").replace("\t", " ")
    # Cc: controls; Cs: unpaired surrogates; Zl, Zp: line breaks
    unsafe = {c for c in set(text) if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    return text.translate(dict.fromkeys(map(ord, unsafe | set(BIDI_OVERRIDES)), "\ufffd"))


def silence_stderr() -> None:
    """Discard all further output to standard error, after its reader closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class _StderrConsole(Console):
    """A console that survives a closed pipe; rich would exit the program and stop the training."""

    def on_broken_pipe(self) -> None:
        silence_stderr()
        raise BrokenPipeError


class Display:
    """Show a progress bar at the bottom of a terminal with messages above it, or plain lines.

    console: None means standard error. The bar is drawn only inside a call, never by a thread, so that forks
    and signal handlers cannot interrupt a redraw. Once the console is closed, nothing is shown.
    """

    def __init__(self, console: Console | None, *, total_steps: int, from_step: int = 0) -> None:
        self._progress: Progress | None = None
        self._last_redraw = -math.inf
        if console is None and sys.stderr is not None:  # None if it was closed before the program started
            # colors may be forced for a log file, but a progress bar must not be written to it
            terminal = None if sys.stderr.isatty() else False
            console = _StderrConsole(stderr=True, highlight=False, force_terminal=terminal)
        self._console = console
        if console is None or not console.is_terminal or console.is_dumb_terminal:
            return
        fixed, cut = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis")
        self._progress = Progress(
            TextColumn("step {task.completed:,.0f} of {task.total:,.0f}", table_column=fixed),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=10)),
            TextColumn("{task.fields[values]}", markup=False, table_column=cut),
            console=console,
            auto_refresh=False,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=total_steps, completed=from_step, values="")
        with self._guarded():
            self._progress.start()

    def update(self, step: int, values: str | None = None) -> None:
        """Advance the bar; call it after every step. values: the metrics to show next to the bar."""
        if self._progress is None:
            return
        with self._guarded():
            self._progress.update(self._task, completed=step)
            if values is not None:
                self._progress.update(self._task, values=values)
            if self._progress.get_time() - self._last_redraw >= REDRAW_INTERVAL:
                self._last_redraw = self._progress.get_time()
                self._progress.refresh()

    def line(self, text: str) -> None:
        """Print a line of metrics, unless a bar shows them already."""
        if self._progress is None:
            self.message(text)

    def message(self, text: str) -> None:
        if self._console is not None:
            with self._guarded():
                self._console.print(Text(single_line(text)), soft_wrap=True)

    def close(self) -> None:
        if self._progress is not None:
            with self._guarded():
                self._progress.refresh()
                self._progress.stop()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # the terminal was closed
            self._console = self._progress = None
