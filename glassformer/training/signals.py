"""Being asked to stop: once means save and leave, twice means leave now. With nothing to save, once does too.

with Stopping() as stopping:
    with stopping.at_once("there is nothing to save"):
        prepare()
    for batch in batches:
        ...
        if stopping.asked:
            save(); break
sys.exit(stopping.exit_code)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

# a service manager and Ctrl-C both, and a terminal that was closed; some systems lack the last
WATCHED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
# A launcher that is told to stop passes it on, while its whole group is told too: `timeout` and torchrun do
# so within moments. What comes this soon (in seconds) is the same wish again.
SAME_WISH = 1.0


class Left(BaseException):
    """Raised where a stop was asked for and there is nothing to save."""


class Stopping:
    """Watches for SIGTERM, SIGINT and SIGHUP inside the block, and gives the handlers back after it.

    A signal that the process was started to ignore (as `nohup` does) stays ignored. Away from the main thread
    Python allows no handlers, and nothing is watched. `main`: whether this process is the one that speaks.
    """

    def __init__(self, *, main: bool = True) -> None:
        self._main = main
        self._first: tuple[int, float] | None = None
        self._before: dict[int, Any] = {}
        self._at_once: str | None = None
        self._again = "left at once; the last checkpoint that was saved stands"

    @property
    def asked(self) -> bool:
        """Whether a stop was asked for."""
        return self._first is not None

    @property
    def exit_code(self) -> int:
        """128 and the number of the signal, as a shell counts: 143, 130 or 129; 0 when none came."""
        return 0 if self._first is None else 128 + self._first[0]

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            for number in WATCHED:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._told)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # None: it was not set from Python, and cannot be set from here
                signal.signal(number, handler)
        self._before.clear()

    @contextmanager
    def at_once(self, sentence: str) -> Iterator[None]:
        """Inside the block a stop is not waited for: the sentence is said, and `Left` raised."""
        self._at_once = sentence
        try:
            yield
            if self.asked:  # it was raised where nothing can be, as in a callback
                raise Left
        finally:
            self._at_once = None

    def _told(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (number, now)
            if self._at_once is not None:
                self._again = "left at once"
                self._speak(self._at_once)
                raise Left
            self._speak("saving a checkpoint; press Ctrl-C again to leave at once")
        elif now - self._first[1] >= SAME_WISH:
            self._speak(self._again)
            os._exit(128 + number)

    def _speak(self, sentence: str) -> None:
        """Straight to the descriptor: what the handler interrupted may have been a print."""
        if not self._main:
            return
        with suppress(OSError, ValueError, AttributeError):  # the terminal may be what has gone
            error = sys.stderr.fileno()
            # over the bar that may stand there; and the cursor back, which a bar hides
            before, after = ("\r\x1b[2K", "\x1b[?25h") if os.isatty(error) else ("", "")
            os.write(error, f"{before}{sentence}\n{after}".encode())
