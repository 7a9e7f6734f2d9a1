"""One run at a time in a folder: never two, and a killed run does not block the next."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.errors import FileProblemError
from glassformer.training.lock import HOLDER, RunInUseError, RunLock, holder_of


def fork(work: Callable[[], None]) -> int:
    """Run in a forked child, which starts faster than a new interpreter."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    finally:
        os._exit(1)


def start_holder(folder: Path) -> int:
    """A child that holds the folder until it is killed; returns once it does."""
    reading, writing = os.pipe()

    def hold() -> None:
        with RunLock(folder):
            os.write(writing, b"held")
            time.sleep(60)

    pid = fork(hold)
    os.close(writing)
    assert os.read(reading, 4) == b"held"
    os.close(reading)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_second_run_is_rejected_until_the_first_ends(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    assert holder_of(folder) is None
    for _ in range(3):
        pid = start_holder(folder)
        with pytest.raises(RunInUseError) as caught:
            RunLock(folder).__enter__()
        holder = caught.value.holder
        assert holder is not None and (holder.pid, holder.host) == (pid, socket.gethostname())
        assert holder_of(folder) == holder
        kill(pid)
        assert holder_of(folder) is None
    with RunLock(folder):
        assert (holder := holder_of(folder)) is not None and holder.pid == os.getpid()
    assert holder_of(folder) is None and not (folder / HOLDER).exists()


def test_unusable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("n" * 300)):
        with pytest.raises(FileProblemError):
            RunLock(folder).__enter__()
