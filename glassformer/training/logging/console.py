"""Progress on the console: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import unicodedata
from collections.abc import Mapping
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter.

    >>> duration(0.25), duration(42), duration(250), duration(90061)
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


def figure(value: float) -> str:
    """A number with as many digits as say something.

    >>> figure(3.41234), figure(0.000301), figure(41234.5), figure(99.25), figure(0), figure(float("nan"))
    ('3.412', '0.000301', '41,234', '99.25', '0', 'not a number')
    """
    if math.isnan(value):
        return "not a number"
    if value == 0 or math.isinf(value):
        return f"{value:g}".replace("inf", "infinite")
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.3g}"


def one_line(text: str) -> str:
    """Text that may come from anywhere, safe to print: no line ends, no control characters.

    >>> one_line("two\\nlines, a \\x1b[31mtrick")
    'two↵lines, a �[31mtrick'
    """
    return "".join(_shown(letter) for letter in text)


def _shown(letter: str) -> str:
    if letter in "\n\t":
        return "↵" if letter == "\n" else " "
    # Cc: controls; Cs: half a surrogate pair; Zl, Zp: line ends; the rest would turn the writing round
    hidden = (
        unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")
        or letter in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )
    return "\ufffd" if hidden else letter


REDRAWN = 0.1  # seconds between two drawings of the bar
NARROWEST = 11  # columns of the bar itself and the spaces beside it
# first to last, where it is narrow
DROPPED = ("gradient", "memory", "perplexity", "mfu", "lr", "speed", "left")


class Screen(Protocol):
    """`moved` at every step, `line` now and then, `say` when there is something to say."""

    def moved(self, step: int, shown: Mapping[str, str]) -> None: ...
    def line(self, text: str) -> None: ...
    def say(self, sentence: str) -> None: ...
    def close(self) -> None: ...


def screen(console: Console | None, *, total_steps: int, from_step: int = 0) -> Screen:
    """What suits this console (None: standard error): a bar, or lines."""
    if console is None:
        if sys.stderr is None:  # closed before the program began
            return Nowhere()
        # colours may be forced from outside for a log file, but a bar that redraws itself has no place there
        console = _StandardError(
            stderr=True, highlight=False, force_terminal=None if sys.stderr.isatty() else False
        )
    if console.is_terminal and not console.is_dumb_terminal:
        return Bar(console, total_steps=total_steps, from_step=from_step)
    return Lines(console)


class _StandardError(Console):
    """A console whose reader may leave: the library would end the program, and the training with it."""

    def on_broken_pipe(self) -> None:
        hush()
        raise BrokenPipeError


def hush() -> None:
    """Let what is still to be told on standard error, which nobody reads, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class Lines:
    """One line after another, without control characters."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def moved(self, step: int, shown: Mapping[str, str]) -> None:
        pass

    def line(self, text: str) -> None:
        self.say(text)

    def say(self, sentence: str) -> None:
        _print(self._console, sentence)

    def close(self) -> None:
        pass


class Bar:
    """A bar at the foot of the terminal; sentences scroll past above it.

    It is drawn only from inside a call, never by a thread, so that forks and signals find nothing half done.
    """

    def __init__(self, console: Console, *, total_steps: int, from_step: int) -> None:
        keep = Column(no_wrap=True)
        self._progress = Progress(
            TextColumn("step {task.completed:,.0f} of {task.total:,.0f}", table_column=keep),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=NARROWEST - 1)),
            TextColumn(
                "{task.fields[words]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
            ),
            console=console,
            auto_refresh=False,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=total_steps, completed=from_step, words="")
        self._total = total_steps
        self._drawn = float("-inf")
        self._progress.start()

    def moved(self, step: int, shown: Mapping[str, str]) -> None:
        if shown:
            room = self._progress.console.width - len(f"step {step:,} of {self._total:,} ") - NARROWEST
            self._progress.update(self._task, completed=step, words=fitting(shown, room))
        else:
            self._progress.update(self._task, completed=step)
        now = self._progress.get_time()
        if now - self._drawn >= REDRAWN:
            self._drawn = now
            self._progress.refresh()

    def line(self, text: str) -> None:
        pass  # the bar says it

    def say(self, sentence: str) -> None:
        _print(self._progress.console, sentence)

    def close(self) -> None:
        self._progress.refresh()
        self._progress.stop()


class Nowhere:
    """For the ranks that do not speak, and when the terminal has gone."""

    def moved(self, step: int, shown: Mapping[str, str]) -> None:
        pass

    def line(self, text: str) -> None:
        pass

    def say(self, sentence: str) -> None:
        pass

    def close(self) -> None:
        pass


def fitting(shown: Mapping[str, str], room: int) -> str:
    """As much as there is room for, what matters least left out first.

    >>> fitting({"loss": "loss 2.5", "lr": "lr 1e-3", "left": "9 s left"}, 18)
    'loss 2.5  9 s left'
    """
    kept = dict(shown)
    for name in DROPPED:
        if len("  ".join(kept.values())) <= room:
            break
        kept.pop(name, None)
    return "  ".join(kept.values())


def _print(console: Console, sentence: str) -> None:
    console.print(Text(one_line(sentence)), soft_wrap=True)
