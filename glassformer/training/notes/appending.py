"""A file that only ever grows by whole records, and that outlives a full disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class Appending:
    """Appends records to a file. What cannot be written is counted and never raised.

    A record goes in whole or not at all, and goes to the system at once, so that a process killed later
    loses none. `trouble` is the error of the last write, None when it went well; the next write tries again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: OSError | None = None
        self.lost = 0
        self._file: int | None = None

    def write(self, record: bytes) -> None:
        try:
            self._append(self._opened(), record)
            self.trouble = None
        except OSError as error:
            self.trouble = error
            self.lost += 1

    def line(self, text: str) -> None:
        """One line of UTF-8; half a surrogate pair, which has no UTF-8, is spelt out as JSON would."""
        record = text.encode("utf-8", "backslashreplace") + b"\n"
        if self._file is None and _broken_off(self.path):
            record = b"\n" + record
        self.write(record)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    def _opened(self) -> int:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._file = os.open(self.path, flags, 0o644)
        return self._file

    @staticmethod
    def _append(file: int, record: bytes) -> None:
        end = os.fstat(file).st_size
        left = memoryview(record)
        try:
            while left:  # a disk that fills up takes a part first, and refuses at the next attempt
                left = left[os.write(file, left) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, end)
            raise


def _broken_off(path: Path) -> bool:
    """Whether a file ends in the middle of a line, as a machine that lost power leaves it."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # absent or empty
        return False
