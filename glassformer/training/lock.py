"""One run at a time in one folder.

The system's own lock on the file `lock` is held open for as long as the run lives, and ends with it however
it ends: nothing is left to clean up after a kill. The file itself stays, and says who holds it.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from glassformer.errors import GlassformerError
from glassformer.pretrained.run_folder import LOCK

# what file systems without such locks answer
UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
PATIENCE = 1.0  # seconds to wait for a new holder to say who it is
ABANDONED = 10.0  # seconds after which whoever set out to remove a dead holder's file is dead too


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lock. `born` tells a process from a later one that was given the same number."""

    pid: int
    host: str
    started: str
    born: str

    def alive(self) -> bool:
        """Whether it runs still; of another machine this cannot be told, and it is taken to be."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # someone else's process
            pass
        return self.born == _born(self.pid)


class RunLock:
    """Holds a run folder for one process; the folder is made where it is missing.

    with RunLock("runs/x"):
        ...
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._path = self.folder / LOCK
        self._file: int | None = None
        self._alone: Path | None = None

    def __enter__(self) -> RunLock:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._take(self._file)
            except BaseException:
                self._drop()
                raise
        except OSError as error:
            raise GlassformerError(
                f"The run folder {self.folder} cannot be used ({error.strerror or error}); "
                "give a folder that can be written to."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._alone is not None:
            self._alone.unlink(missing_ok=True)
            self._alone = None
        if self._file is not None:
            with suppress(OSError):  # the lock matters, not what stands in the file
                os.ftruncate(self._file, 0)
        self._drop()

    def _take(self, file: int) -> None:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(self._who()) from None
        except (ImportError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in UNSUPPORTED:
                raise
            self._alone = self._take_by_name()
            return
        _held.add(self)
        with suppress(OSError):  # a full disk; the lock holds all the same
            os.ftruncate(file, 0)
            os.pwrite(file, _me(), 0)

    def _drop(self) -> None:
        _held.discard(self)
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _who(self) -> Holder | None:
        """The holder. It may have the lock but not yet have written its name over that of a dead one."""
        until = time.monotonic() + PATIENCE
        while True:
            holder = _read(self._path)
            if holder is not None and holder.alive():
                return holder
            if time.monotonic() > until:
                return None
            time.sleep(0.02)

    def _take_by_name(self) -> Path:
        """Where the file system has no locks: a file that only one can make, and that names its maker."""
        name = self._path.with_name(f"{LOCK}.holder")
        mine = name.with_name(f".{name.name}.{secrets.token_hex(4)}")
        remedy = f", or remove {name} if it is dead"
        try:
            with mine.open("xb") as file:
                file.write(_me())
                file.flush()
                os.fsync(file.fileno())
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                try:
                    os.link(mine, name)
                    return name
                except FileExistsError:
                    holder = _read(name)
                if holder is not None and holder.alive():
                    raise self._refusal(holder, remedy)
                _remove_dead(name)
            raise self._refusal(None, remedy)
        finally:
            mine.unlink(missing_ok=True)

    def _refusal(self, holder: Holder | None, remedy: str = "") -> GlassformerError:
        who = "another run"
        if holder is not None:
            who = f"another run (process {holder.pid} on {holder.host}, started {holder.started})"
        advice = f"wait for it, stop it, or use another folder{remedy}"
        return GlassformerError(f"The folder {self.folder} is in use by {who}; {advice}.")


def holder_of(folder: str | Path) -> Holder | None:
    """Who holds a run folder now, None where nobody does; read off the files, so that nobody is kept out."""
    path = Path(folder) / LOCK
    for file in (path, path.with_name(f"{LOCK}.holder")):
        holder = _read(file)
        if holder is not None and holder.alive():
            return holder
    return None


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A forked child shares the open file; it must not hold the folder after its parent has died."""
    for lock in list(_held):
        lock._drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


def _remove_dead(name: Path) -> None:
    """Take a dead holder's file away: one at a time, or a slow one would take away its successor's."""
    turn = name.with_name(f"{name.name}.removing")
    try:
        turn.mkdir()
    except FileExistsError:
        with suppress(OSError):
            if time.time() - turn.stat().st_mtime > ABANDONED:
                turn.rmdir()
        time.sleep(0.02)
        return
    try:
        holder = _read(name)
        if holder is not None and not holder.alive():
            name.unlink()
    finally:
        turn.rmdir()


def _me() -> bytes:
    pid = os.getpid()
    started = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return json.dumps(
        asdict(Holder(pid=pid, host=socket.gethostname(), started=started, born=_born(pid)))
    ).encode()


def _read(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _born(pid: int) -> str:
    """When a process began, in the kernel's ticks since it booted; empty where that is not told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return f"{boot}:{stat.rpartition(b')')[2].split()[19].decode()}"  # the name, in brackets, may hold spaces
