"""A disk that is full, read-only or broken: the earlier checkpoint stays, and the save says what happened."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassformer.errors import GlassformerError
from glassformer.training.checkpoint import CheckpointWriteError
from glassformer.weights import checksums
from tests.faults.disk import Call, Disk, Verdict, watched
from tests.faults.saving import Saved, loaded, save
from tests.faults.scale import Report, trials

pytestmark = pytest.mark.slow

# What was saved before, and the save that meets the fault. Of step 1 nothing older is there to fall back on.
SAVES: dict[str, tuple[list[Saved], Saved]] = {
    "first": ([], (1, 0)),
    "next": ([(1, 0), (2, 0)], (3, 0)),
    "again": ([(1, 0)], (1, 1)),
}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the calls come in the same order each time."""
    monkeypatch.setattr(checksums, "THREADS", 1)


def started(folder: Path, earlier: list[Saved], source: Path) -> Path:
    """A folder of checkpoints as the earlier saves leave it, copied rather than saved each time."""
    if not source.exists():
        source.mkdir()
        for saved in earlier:
            save(source, saved)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    return folder


def harm(folder: Path, before: Saved | None, meant: Saved, disk: Disk) -> tuple[str | None, str]:
    """Save through `disk`; what is wrong afterwards, if anything, and the sentence that was said."""
    said = ""
    try:
        with watched(disk):
            save(folder, meant)
    except CheckpointWriteError as error:
        said = error.reason
        if (error.step, error.folder) != (meant[0], folder):
            return f"the error is about another save: {error}", said
    except OSError as error:
        return f"a bare {error!r}", said
    try:
        found = loaded(folder)
        if found not in ([before, meant] if said else [meant]):
            return f"{found} was found after {before} and {meant} ({said or 'no error'})", said
        if said and (left := [p.name for p in folder.iterdir() if p.name.endswith((".part", ".tmp"))]):
            return f"{left} was left behind", said
        save(folder, meant)  # once the disk is mended
        if loaded(folder) != meant or [p.name for p in folder.iterdir() if p.name.startswith(".")]:
            return "a later save did not put all in order", said
    except (GlassformerError, AssertionError) as error:
        return f"afterwards: {error}", said
    return None, said


@pytest.mark.parametrize("history", SAVES)
def test_a_full_disk_leaves_the_earlier_checkpoint(history: str, tmp_path: Path, report: Report) -> None:
    """The disk takes k bytes of the save and not one more."""
    earlier, meant = SAVES[history]
    before = earlier[-1] if earlier else None
    work, source = tmp_path / "work", tmp_path / "source"
    with watched(Disk(started(work, earlier, source))) as whole:
        save(work, meant)
    total = sum(len(call.data) for call in whole.done)
    places = {0, total - 1, *random.Random(history).sample(range(1, total - 1), trials(200))}
    failures = []
    for place in sorted(places):
        room = place

        def judge(number: int, call: Call) -> Verdict:
            nonlocal room
            if call.name != "write":
                return None
            if room == 0:
                return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            taken = min(room, len(call.data))
            room -= taken
            return taken

        wrong, said = harm(started(work, earlier, source), before, meant, Disk(work, judge))
        if wrong is None and "No space left on device" not in said:
            wrong = f"nothing was said of the full disk: {said or 'no error'}"
        if wrong is not None:
            failures.append(f"at byte {place}: {wrong}")
    report(f"disk full at byte k of a save ({history})", len(places), failures)


def is_tidying(call: Call, meant: Saved) -> bool:
    """Whether a refusal may pass in silence: the new checkpoint is whole and in place whatever comes of it.

    Where what was refused is only a look around before the save, the test sees the save come out right.
    """
    top = call.path.split("/")[0]
    older = top.startswith("step-") and top != f"step-{meant[0]:08}"
    listing = call.name == "listdir" and call.path == "."
    removing = call.name in ("unlink", "rmdir", "scandir", "stat", "lstat")
    return listing or removing or older or top.endswith(".old")


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("history", SAVES)
def test_each_call_of_a_save_refused_once(history: str, code: int, tmp_path: Path, report: Report) -> None:
    """Call number k fails, for every k, and the error is told."""
    earlier, meant = SAVES[history]
    before = earlier[-1] if earlier else None
    work, source = tmp_path / "work", tmp_path / "source"
    with watched(Disk(started(work, earlier, source))) as whole:
        save(work, meant)
    numbers = sorted(random.Random(code).sample(range(len(whole.calls)), trials(len(whole.calls))))
    failures = []
    for number in numbers:

        def judge(count: int, call: Call, number: int = number) -> Verdict:
            return OSError(code, os.strerror(code)) if count == number else None

        disk = Disk(started(work, earlier, source), judge)
        wrong, said = harm(work, before, meant, disk)
        call = disk.calls[number]
        if wrong is None and not said and not is_tidying(call, meant):
            wrong = "the save went on as if nothing had happened"
        if wrong is not None:
            failures.append(f"{call.name} {call.path} (call {number}): {wrong}")
    report(f"each call of a save fails: {errno.errorcode[code]} ({history})", len(numbers), failures)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 96 KiB, where mounting one is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(folder)]
    try:
        made = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        made = False
    if not made:
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_real_full_disk_leaves_the_earlier_checkpoint(small_disk: Path) -> None:
    save(small_disk / "checkpoints", (1, 0), width=1000)
    for _ in range(3):
        with pytest.raises(CheckpointWriteError) as caught:
            save(small_disk / "checkpoints", (2, 0), width=3000)
        assert caught.value.reason == "No space left on device"
        assert loaded(small_disk / "checkpoints") == (1, 0)
    save(small_disk / "checkpoints", (2, 0), width=1000)
    assert loaded(small_disk / "checkpoints") == (2, 0)
