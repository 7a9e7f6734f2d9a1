"""One run in one folder: never two, and never none because of one that is dead."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.errors import GlassformerError
from glassformer.training import lock
from glassformer.training.lock import RunLock
from tests.faults.scale import trials


def fork(work: Callable[[], None]) -> int:
    """Run in a child process, forked because hundreds of new interpreters would take minutes."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    finally:
        os._exit(1)


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.fixture(params=["system", "name"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of holding a folder: the system's lock, and a file where the system has none."""
    if request.param == "name":
        without_locks(monkeypatch)
    return str(request.param)


def holder(folder: Path) -> int:
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


def test_the_second_is_refused_by_name_and_let_in_when_the_first_has_gone(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "runs" / "x"
    with RunLock(folder):
        with pytest.raises(GlassformerError) as refused:
            RunLock(folder).__enter__()
        said = str(refused.value)
        assert f"process {os.getpid()} on {socket.gethostname()}" in said
        assert re.search(r"started \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", said) and str(folder) in said
    for _ in range(3):  # killed, again and again
        pid = holder(folder)
        with pytest.raises(GlassformerError, match=f"process {pid} on"):
            RunLock(folder).__enter__()
        kill(pid)
    with RunLock(folder):
        pass


@pytest.mark.slow
def test_races_have_one_winner_each(tmp_path: Path, kind: str) -> None:
    """Four processes at once for a folder whose last holder was killed: one gets it, three are refused."""
    kill(holder(tmp_path))
    for _ in range(trials(400 if kind == "system" else 100)):
        start_read, start_write = os.pipe()
        told_read, told_write = os.pipe()
        end_read, end_write = os.pipe()

        def race(
            start: int = start_read,
            start_end: int = start_write,
            told: int = told_write,
            end: int = end_read,
            out: int = end_write,
        ) -> None:
            os.close(start_end)
            os.close(out)
            os.read(start, 1)  # ends when the parent closes its side
            try:
                with RunLock(tmp_path):
                    os.write(told, b"w")
                    os.read(end, 1)
                    os.kill(os.getpid(), signal.SIGKILL)  # and dies holding it
            except GlassformerError:
                os.write(told, b"r")

        racers = [fork(race) for _ in range(4)]
        os.close(start_write)
        told = b""
        while len(told) < 4:
            told += os.read(told_read, 4)
        os.close(end_write)
        for pid in racers:
            os.waitpid(pid, 0)
        for file in (start_read, told_read, told_write, end_read):
            os.close(file)
        assert sorted(told) == sorted(b"wrrr")


def test_a_child_of_a_dead_run_does_not_hold_its_folder(tmp_path: Path) -> None:
    """As the workers of a data loader may live on for a while."""
    reading, writing = os.pipe()

    def hold() -> None:
        with RunLock(tmp_path):
            grandchild = fork(lambda: time.sleep(60))
            os.write(writing, f"{grandchild:10}".encode())
            time.sleep(60)

    pid = fork(hold)
    grandchild = int(os.read(reading, 10))
    kill(pid)
    try:
        with RunLock(tmp_path):
            pass
        os.kill(grandchild, 0)  # it was alive all the while
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_where_there_are_no_locks_a_late_taker_removes_no_living_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw a dead holder, was slow, and comes to remove what is by now another's; and one died removing."""
    without_locks(monkeypatch)
    with RunLock(tmp_path):
        lock._remove_dead(tmp_path / "lock.holder")
        assert (tmp_path / "lock.holder").exists()
    kill(holder(tmp_path))
    (tmp_path / "lock.holder.removing").mkdir()
    with pytest.raises(GlassformerError, match="in use"):  # someone may be at it
        RunLock(tmp_path).__enter__()
    long_ago = time.time() - lock.ABANDONED - 1
    os.utime(tmp_path / "lock.holder.removing", (long_ago, long_ago))
    with RunLock(tmp_path):
        pass


def test_where_there_are_no_locks_another_machine_s_run_is_believed_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "far-away")
        kill(holder(tmp_path))
    with pytest.raises(GlassformerError, match=r"on far-away.*remove .*lock\.holder"):
        RunLock(tmp_path).__enter__()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("n" * 300)):
        with pytest.raises(GlassformerError, match="cannot be used"):
            RunLock(folder).__enter__()
