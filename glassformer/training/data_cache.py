"""The folder `data` of a run: examples prepared once and reused when the same command runs again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

from glassformer.data.sources import Stamp, stamp_by_content, stamp_by_time
from glassformer.errors import FileMissingError, FileProblemError, GlassformerError
from glassformer.weights.atomic_write import atomic_write
from glassformer.weights.checksums import CHECKSUMS_FILE, verify_checksums, write_checksums

Log = Callable[[str], None]
NOTE = "prepared.json"
MAX_CHECKSUM_BYTES = 1 << 30  # larger files are checked by size only


def no_log(message: str) -> None:
    """Discard a message."""


@dataclass(eq=False)
class DataChangedError(GlassformerError):
    """The data, tokenizer or data settings of a run changed after its training started."""

    folder: Path
    hint: str = "train in another folder, or restore the files"
    template: ClassVar[str] = (
        "the data, its tokenizer or its settings have changed since the run in {folder} started"
    )


class DataCache:
    """Prepared data, tied to the files and settings it was made from.

    fingerprints: what the data depends on, given a stamp that identifies a file. Modification times are
        compared first; if they differ, the contents decide.
    extra: further fingerprints by name; one that was not recorded, or is not known now, counts as unchanged.

    The note inside the folder marks it as complete. A copy next to the folder records what a run was trained
    on, so that a run whose cache was deleted does not continue on other data. `damaged` is set when `load`
    finds the right data incomplete.
    """

    _started: Mapping[str, str]  # the fingerprints when preparation began

    def __init__(
        self,
        folder: Path,
        fingerprints: Callable[[Stamp], Sequence[object]],
        *,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self._fingerprints = folder, fingerprints
        self.fingerprint = _digest(*fingerprints(stamp_by_time))
        self.extra = dict(extra or {})
        self.damaged = False

    @cached_property
    def contents(self) -> str:
        """The fingerprint by file contents."""
        return _digest(*self._fingerprints(cache(stamp_by_content)))

    @property
    def _copy(self) -> Path:
        return self.folder.with_name(NOTE)

    @property
    def _trained(self) -> bool:
        return (self.folder.parent / "checkpoints").exists()

    def load(self, log: Log) -> dict[str, Any] | None:
        """The notes of `commit` if the cache is valid; None if it must be prepared (again)."""
        note, copy = _read(self.folder / NOTE), _read(self._copy)
        records = [one for one in (note, copy) if one is not None]
        if records and not any(map(self._matches, records)):
            return None
        if not records and not self._trained:
            return None  # preparation never finished
        try:
            if note is None or not self._matches(note):
                raise FileProblemError(self.folder / NOTE, "missing or damaged")
            if not verify_checksums(self.folder):
                raise FileMissingError(self.folder / CHECKSUMS_FILE)
            for name, size in note.get("large", {}).items():
                if (self.folder / name).stat().st_size != size:
                    raise FileProblemError(self.folder / name, "truncated")
        except (GlassformerError, OSError) as error:
            self.damaged = True
            log(f"preparing the data again: {error}")
            return None
        log(f"using the data prepared in {self.folder}")
        for path, content in ((self.folder / NOTE, note), (self._copy, copy or _origin(note))):
            if copy is None or content["fingerprint"] != self.fingerprint:
                _write(path, {**content, "fingerprint": self.fingerprint})
        return note

    def recorded(self, name: str) -> str | None:
        """An extra fingerprint as it was when the data was prepared, if known."""
        extra: Mapping[str, str] = (_read(self._copy) or {}).get("extra", {})
        return extra.get(name)

    def _matches(self, note: Mapping[str, Any]) -> bool:
        before = note.get("extra", {})
        if not all(before.get(name, now) == now for name, now in self.extra.items()):
            return False
        return bool(note["fingerprint"] == self.fingerprint or note.get("contents") == self.contents)

    def begin(self) -> None:
        """Empty the folder; a run that was already trained on other data is an error."""
        if self._trained and not self.damaged:
            raise DataChangedError(self.folder.parent)
        # before the files are read, so that a change in the meantime is noticed next time
        self._started = {"fingerprint": self.fingerprint, "contents": self.contents}
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def commit(self, **notes: Any) -> dict[str, Any]:
        """Mark the folder as complete."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        sizes = {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in files}
        write_checksums(self.folder, (name for name, size in sizes.items() if size <= MAX_CHECKSUM_BYTES))
        large = {name: size for name, size in sizes.items() if size > MAX_CHECKSUM_BYTES}
        content = {**self._started, "extra": self.extra, "large": large, **notes}
        _write(self.folder / NOTE, content)
        _write(self._copy, _origin(content))
        return content


def _origin(note: Mapping[str, Any]) -> dict[str, Any]:
    return {name: note[name] for name in ("fingerprint", "contents", "extra")}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "fingerprint" in content else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(content, ensure_ascii=False, indent=2).encode())


def _digest(*content: object) -> str:
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()
