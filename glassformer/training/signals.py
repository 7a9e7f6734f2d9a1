"""Graceful shutdown: the first signal saves and exits, the second exits immediately."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

# Ctrl-C, a service manager, and a closed terminal; some systems lack the last
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
# `timeout` and torchrun forward a signal that the whole process group has received already. A second signal
# within this many seconds is the same request.
SAME_REQUEST = 1.0


class Interrupted(BaseException):
    """Raised on a signal while there is nothing to save."""


class StopSignals:
    """Handle SIGTERM, SIGINT and SIGHUP inside a `with` block, and restore the previous handlers after it.

    A signal that the process ignores (e.g. under `nohup`) stays ignored. Python allows handlers in the main
    thread only; in other threads nothing is handled. main: whether this process prints messages.
    """

    def __init__(self, *, main: bool = True) -> None:
        self._main = main
        self._first: tuple[int, float] | None = None
        self._previous: dict[int, Any] = {}
        self._immediate: str | None = None
        self._second_message = "exiting immediately; the last checkpoint is intact"

    @property
    def received(self) -> bool:
        return self._first is not None

    @property
    def exit_code(self) -> int:
        """128 plus the signal number, as in a shell; 0 if no signal was received."""
        return 0 if self._first is None else 128 + self._first[0]

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            if handler is not None:  # None if it was not set from Python; then it cannot be restored
                signal.signal(number, handler)
        self._previous.clear()

    @contextmanager
    def immediate(self, message: str) -> Iterator[None]:
        """Context in which a signal prints the message and raises `Interrupted`."""
        self._immediate = message
        try:
            yield
            if self.received:  # the exception was swallowed, e.g. in a callback
                raise Interrupted
        finally:
            self._immediate = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (number, now)
            if self._immediate is not None:
                self._second_message = "exiting immediately"
                self._print(self._immediate)
                raise Interrupted
            self._print("saving a checkpoint; press Ctrl-C again to exit immediately")
        elif now - self._first[1] >= SAME_REQUEST:
            self._print(self._second_message)
            os._exit(128 + number)

    def _print(self, message: str) -> None:
        """Write directly to the file descriptor, since the handler may have interrupted a print."""
        if not self._main:
            return
        with suppress(OSError, ValueError, AttributeError):  # the terminal may be closed
            stderr = sys.stderr.fileno()
            # clear the progress bar's line, and show the cursor that it hides
            before, after = ("\r\x1b[2K", "\x1b[?25h") if os.isatty(stderr) else ("", "")
            os.write(stderr, f"{before}{message}\n{after}".encode())
