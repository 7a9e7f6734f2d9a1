"""Cache prepared examples in the folder `data` of a run, to reuse them when the command runs again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

from glassformer.data.sources import Stamp, stamp_by_content, stamp_by_time
from glassformer.errors import FileMissingError, FileProblemError, GlassformerError
from glassformer.weights.atomic_write import write_file
from glassformer.weights.checksums import CHECKSUMS_FILE, verify_checksums, write_checksums

Log = Callable[[str], None]
NOTE = "prepared.json"
MAX_CHECKSUM_BYTES = 1 << 30  # larger files are checked by size only


def no_log(message: str) -> None:
    """Discard a message."""


@dataclass(eq=False)
class DataChangedError(GlassformerError):
    """The data of a run changed after its training started. what: e.g. "the images or annotations"."""

    folder: Path
    what: str
    hint: str = "train in another folder, or restore the files"
    template: ClassVar[str] = "{what} changed since the run in {folder} started"


class DataCache:
    """A folder of prepared data, with a note next to it that identifies its source files and settings.

    fingerprints: returns everything that the data depends on; its argument is a function that identifies a
    file. Modification times are compared first; if they differ, file contents are.
    extra: further fingerprints by name; one that is missing here or in the note counts as unchanged.
    what: names the source of the data in the error if it changed.

    The note is written when the folder is complete. It stays if the folder is deleted, so that a run is not
    resumed on other data. `load` sets `damaged` if the data matches but is incomplete.
    """

    _started: Mapping[str, str]  # the fingerprints at the start of preparation

    def __init__(
        self,
        folder: Path,
        fingerprints: Callable[[Stamp], Sequence[object]],
        *,
        extra: Mapping[str, str] | None = None,
        what: str = "the data or its settings",
    ) -> None:
        self.folder, self.note, self._fingerprints = folder, folder.with_name(NOTE), fingerprints
        self.fingerprint = _digest(*fingerprints(stamp_by_time))
        self.extra = dict(extra or {})
        self.damaged, self.what = False, what

    @cached_property
    def contents(self) -> str:
        """The fingerprint that identifies files by content."""
        return _digest(*self._fingerprints(cache(stamp_by_content)))

    @property
    def _trained(self) -> bool:
        return (self.folder.parent / "checkpoints").exists()

    def load(self, log: Log) -> dict[str, Any] | None:
        """Return the notes passed to `commit` if the cache is valid; None if the data must be prepared."""
        try:
            note: dict[str, Any] = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.damaged = self._trained
            return None
        if not self._matches(note):
            return None
        try:
            if not verify_checksums(self.folder):
                raise FileMissingError(self.folder / CHECKSUMS_FILE)
            for name, size in note.get("large", {}).items():
                if (self.folder / name).stat().st_size != size:
                    raise FileProblemError(self.folder / name, "is truncated")
        except (GlassformerError, OSError) as error:
            self.damaged = True
            log(f"preparing the data again: {error}")
            return None
        log(f"using the data prepared in {self.folder}")
        if note["fingerprint"] != self.fingerprint:
            self._write({**note, "fingerprint": self.fingerprint})
        return note

    def _matches(self, note: Mapping[str, Any]) -> bool:
        if any(note.get("extra", {}).get(name, now) != now for name, now in self.extra.items()):
            return False
        return bool(note.get("fingerprint") == self.fingerprint or note.get("contents") == self.contents)

    def start(self) -> None:
        """Empty the folder; raise an error if the run was already trained on other data."""
        if self._trained and not self.damaged:
            raise DataChangedError(self.folder.parent, self.what)
        # computed before the files are read, so that a change during preparation is noticed next time
        self._started = {"fingerprint": self.fingerprint, "contents": self.contents}
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def commit(self, **notes: Any) -> dict[str, Any]:
        """Mark the folder as complete and store the notes."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        sizes = {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in files}
        large = {name: size for name, size in sizes.items() if size > MAX_CHECKSUM_BYTES}
        write_checksums(self.folder, sizes.keys() - large.keys())
        return self._write({**self._started, "extra": self.extra, "large": large, **notes})

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Context in which data is read that is not stored; raise if a run would resume on other data."""
        known = self.load(no_log)
        if known is None:
            self.start()
        yield
        if known is None:
            self.commit()

    def _write(self, content: dict[str, Any]) -> dict[str, Any]:
        write_file(self.note, json.dumps(content, ensure_ascii=False, indent=2).encode())
        return content


def _digest(*content: object) -> str:
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()
