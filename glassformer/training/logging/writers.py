"""Append-only log files, and TensorBoard event files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol


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


class Board(Protocol):
    """Takes named numbers at a step."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class NoBoard:
    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


class TensorBoard:
    """An events file in `folder`; what other files there hold after `from_step` is declared void."""

    def __init__(self, folder: Path, *, from_step: int) -> None:
        events = import_module("tensorboard.compat.proto.event_pb2")
        self._event = events.Event
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._records = import_module("tensorboard.summary.writer.record_writer").RecordWriter
        self._file = Appending(folder / f"events.out.tfevents.{time.time_ns()}.glassformer")
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        if from_step:
            begun = events.SessionLog(status=events.SessionLog.START)
            self._write(self._event(wall_time=time.time(), step=from_step + 1, session_log=begun))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        parts = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=parts)))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        record = BytesIO()
        self._records(record).write(event.SerializeToString())
        self._file.write(record.getvalue())


def board(folder: Path, *, from_step: int) -> Board:
    """TensorBoard's file where it can be imported, else nothing."""
    try:
        return TensorBoard(folder, from_step=from_step)
    except Exception:  # absent, or broken by another package: either way there is no board and no harm
        return NoBoard()
