"""Make file-system calls below a folder fail, as a full, read-only or broken disk would."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ON_PATH = ("mkdir", "unlink", "rmdir", "rename", "replace")


class Disk:
    """Counts the calls below `root` that change something, and the bytes written.

    capacity: bytes that can be written before the disk is full.
    fails: whether call number n fails, with the error `code`.
    """

    def __init__(
        self,
        root: Path,
        *,
        capacity: float = float("inf"),
        fails: Callable[[int], bool] = lambda number: False,
        code: int = errno.EIO,
    ) -> None:
        self.root, self.capacity, self.fails, self.code = root, capacity, fails, code
        self.calls: list[str] = []
        self.written = 0
        self.files: set[int] = set()  # open descriptors below the root

    def install(self) -> None:
        """Fail calls until the process ends."""
        self._patches = on_disk(self)  # kept, since its end would undo them
        self._patches.__enter__()

    def holds(self, path: Any) -> bool:
        if isinstance(path, int):
            return path in self.files
        return Path(os.path.abspath(os.fsdecode(path))).is_relative_to(self.root)

    def call(self, name: str) -> None:
        self.calls.append(name)
        if self.fails(len(self.calls) - 1):
            raise OSError(self.code, os.strerror(self.code))

    def write(self, data: Any, write: Callable[[bytes], int]) -> int:
        self.call("write")
        allowed = min(len(data), self.capacity - self.written)
        if allowed <= 0 < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(bytes(data)[: int(allowed)])
        self.written += count
        return count


@contextmanager
def on_disk(disk: Disk) -> Iterator[Disk]:
    """Every call of Python code below the disk's root goes through it until the block ends."""
    real = {name: getattr(os, name) for name in (*ON_PATH, "open", "close", "write", "fsync")}
    real_open = io.open

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            return disk.write(data, super().write)

        def close(self) -> None:
            if not self.closed:
                disk.files.discard(self.fileno())
            super().close()

    def open_file(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
        if isinstance(file, int) or mode[0] == "r" or not disk.holds(file):
            return real_open(file, mode, buffering, *rest, **options)
        disk.call("open")
        raw = File(file, mode.replace("t", "").replace("b", "") + "b")
        disk.files.add(raw.fileno())
        buffered = raw if buffering == 0 else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **options)  # type: ignore[type-var]

    def os_open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        held = options.get("dir_fd") is None and disk.holds(path)
        if held and flags & os.O_CREAT:
            disk.call("open")
        descriptor: int = real["open"](path, flags, *rest, **options)
        if held:
            disk.files.add(descriptor)
        return descriptor

    def os_close(descriptor: int) -> None:
        disk.files.discard(descriptor)
        real["close"](descriptor)

    def os_write(descriptor: int, data: Any) -> int:
        if descriptor not in disk.files:
            return int(real["write"](descriptor, data))
        return disk.write(data, lambda part: real["write"](descriptor, part))

    def on_path(name: str) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **options: Any) -> Any:
            if options.get("dir_fd") is None and disk.holds(path):
                disk.call(name)
            return real[name](path, *rest, **options)

        return call

    patched = {name: on_path(name) for name in (*ON_PATH, "fsync")}
    with (
        mock.patch.multiple(os, open=os_open, close=os_close, write=os_write, **patched),
        mock.patch.object(io, "open", open_file),
        mock.patch.object(builtins, "open", open_file),
    ):
        yield disk
