"""Where a verb's answers go, one a line: to standard output, or to a file that a later run can go on with."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from glassformer.core.errors import GlassformerError

TOLD_EVERY = 5.0  # seconds
BLOCK = 1 << 20


class Taker:
    """Takes one line after another; each is on its way whole before the next."""

    def __init__(self, file: BinaryIO | None, done: int, total: int | None, telling: bool) -> None:
        self._file, self._total, self._telling = file, total, telling
        self.done = self.before = done
        self._began = self._told = time.monotonic()

    def take(self, line: str) -> None:
        """Write a line, and say now and then how far it has come."""
        if self._file is None:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        else:
            self._file.write(f"{line}\n".encode())
        self.done += 1
        now = time.monotonic()
        if self._telling and now - self._told >= TOLD_EVERY:
            self._told = now
            self.tell()

    def tell(self) -> None:
        """How many lines are done, and how fast."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = (self.done - self.before) / seconds
        told = f"{self.done:,}" + (f" of {self._total:,}" if self._total is not None else "")
        left = (self._total - self.done) / rate if self._total is not None and rate else 0
        rest = f", {left:,.0f} s left" if left >= 1 else ""
        _say(f"{told} lines in {seconds:,.1f} s, {rate:,.1f} a second{rest}")


@contextmanager
def taking(
    out: Path | None, *, resume: bool, overwrite: bool, total: int | None, telling: bool
) -> Iterator[Taker]:
    """Open where lines go. With `resume`, whole lines that a file holds count as done.

    Ctrl-C leaves the lines taken so far, and a sentence that says how to go on.
    """
    if out is None:
        if resume or overwrite:
            raise GlassformerError("--resume and --overwrite are about a file of answers; name it with --out")
        yield Taker(None, 0, total, telling)
        return
    done = _prepare(out, resume=resume, overwrite=overwrite)
    if total is not None and done > total:
        raise GlassformerError(
            f"'{out}' has {done:,} lines and there are only {total:,} texts; is it another's?"
        )
    with out.open("ab", buffering=0) as file:
        taker = Taker(file, done, total, telling)
        if done:
            _say(f"{done:,} lines are done in '{out}'; going on")
        try:
            yield taker
        except BaseException:
            if taker.done:
                _say(f"stopped; {taker.done:,} lines are in '{out}', and --resume goes on from there")
            raise
    if telling:
        taker.tell()


def _prepare(out: Path, *, resume: bool, overwrite: bool) -> int:
    """Make the file ready to be added to; how many whole lines it holds."""
    if out.is_dir():
        raise GlassformerError(f"'{out}' is a folder; give a file to write to with --out")
    if not out.parent.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise GlassformerError(f"'{out}' cannot be written to; give another file with --out")
    if not out.exists() or not out.stat().st_size:
        return 0
    if not resume and not overwrite:
        raise GlassformerError(f"'{out}' is there already; add --resume to go on with it, or --overwrite")
    with out.open("r+b") as file:
        if not resume:
            file.truncate(0)
            return 0
        done = whole = at = 0
        while block := file.read(BLOCK):
            done += block.count(b"\n")
            if (last := block.rfind(b"\n")) >= 0:
                whole = at + last + 1
            at += len(block)
        file.truncate(whole)  # a line that was being written when it stopped
    return done


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
