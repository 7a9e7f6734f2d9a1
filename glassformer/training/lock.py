"""Lock a run folder, so that only one process trains in it; a JSON file names the lock's holder."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from filelock import BaseFileLock, FileLock, Timeout

from glassformer.errors import FileProblemError, GlassformerError
from glassformer.pretrained import LOCK
from glassformer.weights.atomic_write import atomic_write

HOLDER = f"{LOCK}.json"
ACQUIRE_TIMEOUT = 0.5  # seconds; `holder_of` acquires the lock for a moment


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The process that holds the lock of a run folder."""

    pid: int
    host: str
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, started {self.started}"


@dataclass(eq=False)
class RunInUseError(GlassformerError):
    """Another process is training in the run folder."""

    folder: Path
    holder: LockHolder | None
    hint: str = "wait for it, stop it, or use another folder"
    template: ClassVar[str] = "{folder} is in use by another run ({holder})"


class RunLock:
    """Lock a run folder for this process; the folder is created if missing.

    The operating system releases the lock when the process ends, even if it is killed.

    with RunLock("runs/x"):
        ...
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lock: BaseFileLock = FileLock(self.folder / LOCK, timeout=ACQUIRE_TIMEOUT)

    def __enter__(self) -> RunLock:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            raise RunInUseError(self.folder, _read_holder(self.folder)) from None
        except OSError as error:
            raise FileProblemError(self.folder, f"cannot be used ({error.strerror or error})") from error
        holder = LockHolder(
            pid=os.getpid(), host=socket.gethostname(), started=time.strftime("%Y-%m-%d %H:%M:%S %z")
        )
        with suppress(FileProblemError), atomic_write(self.folder / HOLDER) as file:
            file.write(json.dumps(asdict(holder)).encode())  # on a full disk, the lock itself is held
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            (self.folder / HOLDER).unlink(missing_ok=True)
        self._lock.release()


def holder_of(folder: str | Path) -> LockHolder | None:
    """Return the process that holds a run folder, or None; a process on another machine counts as alive."""
    holder = _read_holder(Path(folder))
    if holder is None or holder.host != socket.gethostname():
        return holder
    try:
        os.kill(holder.pid, 0)
        with FileLock(Path(folder) / LOCK, timeout=0):
            return None  # the pid was reused by another process
    except ProcessLookupError:
        return None
    except (Timeout, OSError):
        return holder


def _read_holder(folder: Path) -> LockHolder | None:
    try:
        return LockHolder(**json.loads((folder / HOLDER).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
