"""The same numbers for TensorBoard, where it is installed.

The records are written here and not by its own writer: that one works in a thread of its own, which prints
a traceback when the disk is full.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

from glassformer.training.notes.appending import Appending


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
