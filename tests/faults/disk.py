"""A stand-in between Python code and the file system: it writes down each call, and can refuse one.

Only what happens below one folder is seen. Files opened to be written go through `_File`, so that a call is
what the kernel would get, after Python's buffering.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Call:
    """One call: its name, what it is about (relative to the folder), and the rest a replay needs."""

    name: str
    path: str
    data: bytes = b""  # what is written
    to: str = ""  # the new name


Verdict = OSError | int | None  # refuse, write only so many bytes, or let it be


@dataclass
class Disk:
    """The calls asked for below `root` so far; `judge` is asked about each before it is made.

    `done` holds those that came to pass and changed something, for a replay.
    """

    root: Path
    judge: Callable[[int, Call], Verdict] = lambda number, call: None
    calls: list[Call] = field(default_factory=list)
    done: list[Call] = field(default_factory=list)
    _open: dict[int, str] = field(default_factory=dict)

    def ask(self, call: Call) -> int | None:
        number = len(self.calls)
        self.calls.append(call)
        verdict = self.judge(number, call)
        if isinstance(verdict, OSError):
            raise verdict
        return verdict

    def below(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The path relative to the root, or None for what lies elsewhere."""
        if isinstance(path, int):
            return self._open.get(path)
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            start = self._open.get(dir_fd)
            return None if start is None else os.path.normpath(os.path.join(start, text))
        relative = os.path.relpath(os.path.abspath(text), self.root)
        return None if relative.startswith("..") else relative


class _File(io.FileIO):
    """A file whose writes, reads and closing are seen."""

    def __init__(self, disk: Disk, path: str, name: Any, mode: str) -> None:
        self.disk, self.place, self.writes = disk, path, mode != "rb"
        call = Call("create" if self.writes else "open", path)
        disk.ask(call)
        super().__init__(name, mode)
        if self.writes:
            disk.done.append(call)
        disk._open[self.fileno()] = path

    def write(self, data: Any) -> int:
        content = bytes(data)
        allowed = self.disk.ask(Call("write", self.place, content))
        written = super().write(content if allowed is None else content[:allowed])
        self.disk.done.append(Call("write", self.place, content[:written]))
        return written

    def readinto(self, buffer: Any) -> int:
        self.disk.ask(Call("read", self.place))
        return super().readinto(buffer) or 0

    def close(self) -> None:
        if self.closed:
            return
        self.disk._open.pop(self.fileno(), None)
        super().close()  # a refused close has closed all the same
        if self.writes:
            self.disk.ask(Call("close", self.place))


@contextmanager
def watched(disk: Disk) -> Iterator[Disk]:
    """Every call of the standard library's Python code goes by `disk` until the block ends."""
    real = {name: getattr(os, name) for name in ("open", "close", "fsync", "rename", "replace", "write")}
    plain_open = io.open

    def open_file(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        **more: Any,
    ) -> Any:
        path = disk.below(file)
        if path is None or "+" in mode or isinstance(file, int):
            return plain_open(file, mode, buffering, encoding, errors, newline, **more)
        raw = _File(disk, path, file, mode.replace("t", "").replace("b", "") + "b")
        if buffering == 0:
            return raw
        buffered = io.BufferedWriter(raw) if raw.writes else io.BufferedReader(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def os_open(path: Any, *rest: Any, dir_fd: int | None = None, **more: Any) -> int:
        place = disk.below(path, dir_fd)
        if place is not None:
            disk.ask(Call("create" if (rest and rest[0] & os.O_CREAT) else "open", place))
        descriptor: int = real["open"](path, *rest, dir_fd=dir_fd, **more)
        if place is not None:
            disk._open[descriptor] = place
        return descriptor

    def os_close(descriptor: int) -> None:
        disk._open.pop(descriptor, None)
        real["close"](descriptor)

    def os_write(descriptor: int, data: Any) -> int:
        place = disk.below(descriptor)
        if place is None:
            return real["write"](descriptor, data)
        content = bytes(data)
        allowed = disk.ask(Call("write", place, content))
        return real["write"](descriptor, content if allowed is None else content[:allowed])

    def os_fsync(descriptor: int) -> None:
        place = disk.below(descriptor)
        if place is None:
            return real["fsync"](descriptor)
        disk.ask(Call("fsync", place))
        real["fsync"](descriptor)
        disk.done.append(Call("fsync", place))

    def renaming(name: str) -> Callable[..., None]:
        def rename(source: Any, target: Any, **more: Any) -> None:
            old, new = disk.below(source), disk.below(target)
            if old is None or new is None:
                return real[name](source, target, **more)
            disk.ask(Call("rename", old, to=new))
            real[name](source, target, **more)
            disk.done.append(Call("rename", old, to=new))

        return rename

    def on_path(name: str) -> Callable[..., Any]:
        plain = getattr(os, name)

        def call(path: Any = ".", *rest: Any, dir_fd: int | None = None, **more: Any) -> Any:
            place = disk.below(path, dir_fd)
            if place is not None:
                disk.ask(Call(name, place))
            if dir_fd is not None:
                more["dir_fd"] = dir_fd
            result = plain(path, *rest, **more)
            if place is not None and name in ("mkdir", "unlink", "rmdir"):
                disk.done.append(Call(name, place))
            return result

        return call

    with (
        mock.patch.multiple(
            os,
            open=os_open,
            close=os_close,
            write=os_write,
            fsync=os_fsync,
            rename=renaming("rename"),
            replace=renaming("replace"),
            **{
                name: on_path(name)
                for name in ("mkdir", "unlink", "rmdir", "scandir", "listdir", "stat", "lstat")
            },
        ),
        mock.patch.object(io, "open", open_file),
        mock.patch.object(builtins, "open", open_file),
    ):
        yield disk
