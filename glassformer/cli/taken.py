"""Where a verb's answers go, one a line: to standard output here, to a file in `kept`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TOLD_EVERY = 5.0  # seconds


class Taker:
    """Takes one line after another, and says now and then how far it has come.

    put: writes a line, whole. done: how many lines were there before. first: the number of the line that is
    answered first, below `done` where some are answered again.
    """

    def __init__(
        self,
        put: Callable[[str], None],
        *,
        total: int | None,
        telling: bool,
        done: int = 0,
        first: int = 0,
    ) -> None:
        self._put, self._total, self._telling = put, total, telling
        self.first = self._answered = first  # lines that are taken, or wait for those before them
        self.done = self.before = done
        self._began = self._told = time.monotonic()

    def take(self, line: str) -> None:
        """Write a line."""
        self._put(line)
        self.done += 1
        self._tell_if_due()

    def hear(self, count: int) -> None:
        """So many more lines are answered, which will be taken in their turn."""
        self._answered += count
        self._tell_if_due()

    def _tell_if_due(self) -> None:
        now = time.monotonic()
        if self._telling and now - self._told >= TOLD_EVERY:
            self._told = now
            self.tell()

    def tell(self) -> None:
        """How many lines are done, and how fast those that were not there before."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        done = max(self.done, self._answered)
        now = done - self.before
        rate = now / seconds
        told = f"{done:,}" + (f" of {self._total:,}" if self._total is not None else "") + " lines"
        told += f", {now:,} of them now," if self.before else ""
        left = (self._total - done) / rate if self._total is not None and rate else 0
        rest = f", {left:,.0f} s left" if left >= 1 else ""
        say(f"{told} in {seconds:,.1f} s, {rate:,.1f} a second{rest}")


@contextmanager
def taking(*, total: int | None, telling: bool) -> Iterator[Taker]:
    """Lines to standard output; `telling`: how far it has come, on standard error."""
    yield Taker(shown, total=total, telling=telling)


def shown(line: str) -> None:
    """Write a line to standard output, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say(sentence: str) -> None:
    """Tell a person something, on standard error."""
    print(sentence, file=sys.stderr, flush=True)
