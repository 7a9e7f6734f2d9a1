"""Programs of a test's own in forked children, which need not import anything anew."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from glassformer.cli.main import main

LIMIT = 120.0  # seconds after which a child is taken to hang


class Forked:
    """A child that runs `act`; what it prints goes to files.

    It ends with 0 when `act` is through, or as `sys.exit` says; what else is raised is printed.
    """

    def __init__(self, act: Callable[[], object], folder: Path) -> None:
        self._out, self._err = folder / "out", folder / "err"
        self._code: int | None = None
        folder.mkdir(parents=True)
        for path in (self._out, self._err):
            path.touch()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid = os.fork()
        if self.pid == 0:
            be_the_child(act, self._out, self._err)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def code(self) -> int | None:
        """Its exit code, minus the signal that killed it; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        if self.code() is None:
            os.kill(self.pid, number)

    def until(self, happened: Callable[[], object]) -> None:
        """Wait until something has happened, or the child has ended."""
        begun = time.monotonic()
        while self.code() is None and not happened():
            if time.monotonic() - begun > LIMIT:
                self.send_signal(signal.SIGKILL)
                raise AssertionError(f"it hung: {self.out[-1000:]}{self.err[-1000:]}")
            time.sleep(0.002)

    def wait(self) -> int:
        self.until(lambda: False)
        assert self._code is not None
        return self._code


def command(*words: object) -> Callable[[], None]:
    """`glassformer` with these words, as an act."""
    return lambda: main([str(word) for word in words])


def be_the_child(act: Callable[[], object], out: Path, err: Path) -> None:
    """Run `act` in a child that was forked, to its end; what it prints goes to these files."""
    code = 70
    try:
        for stream, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
        sys.stdin = io.TextIOWrapper(io.FileIO(os.devnull))
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "w", closefd=False), write_through=True) for number in (1, 2)
        )
        # Python ignores what a signal handler raises within one, and Hypothesis installs one
        gc.callbacks.clear()
        # not so where the tests run in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
        act()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
