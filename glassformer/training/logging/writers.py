"""Append-only log files, and TensorBoard event files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any


class AppendOnlyFile:
    """Appends records to a file. Errors are counted, never raised.

    A record is written completely or not at all, and reaches the system at once, so that a process killed
    later loses none. error: that of the last write, None if it succeeded; the next write tries again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: OSError | None = None
        self.lost = 0
        self._file: int | None = None

    def write(self, record: bytes) -> None:
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
                self._file = os.open(self.path, flags, 0o644)
            self._append(self._file, record)
            self.error = None
        except OSError as error:
            self.error = error
            self.lost += 1

    def write_line(self, text: str) -> None:
        """One line of UTF-8; unpaired surrogates are escaped."""
        record = text.encode("utf-8", "backslashreplace") + b"\n"
        if self._file is None and _ends_inside_line(self.path):
            record = b"\n" + record
        self.write(record)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    @staticmethod
    def _append(file: int, record: bytes) -> None:
        end = os.fstat(file).st_size
        rest = memoryview(record)
        try:
            while rest:  # a disk that fills up takes a part first and fails at the next attempt
                rest = rest[os.write(file, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, end)
            raise


def _ends_inside_line(path: Path) -> bool:
    """Whether a file ends in the middle of a line, e.g. after a power failure."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # missing or empty
        return False


class TensorBoardWriter:
    """An event file in `folder`; steps after `from_step` in other files there are declared void.

    TensorBoard's own writer works in a thread that prints a traceback when the disk is full. Without
    TensorBoard nothing is written.
    """

    def __init__(self, folder: Path, *, from_step: int) -> None:
        self._file = AppendOnlyFile(folder / f"events.out.tfevents.{time.time_ns()}.glassformer")
        try:
            events = import_module("tensorboard.compat.proto.event_pb2")
            self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
            self._records = import_module("tensorboard.summary.writer.record_writer").RecordWriter
        except Exception:  # not installed, or broken by another package
            self._event = None
            return
        self._event = events.Event
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        if from_step:
            started = events.SessionLog(status=events.SessionLog.START)
            self._write(self._event(wall_time=time.time(), step=from_step + 1, session_log=started))

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        if self._event is not None:
            parts = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=parts)))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        record = BytesIO()
        self._records(record).write(event.SerializeToString())
        self._file.write(record.getvalue())
