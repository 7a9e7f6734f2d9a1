"""The folder `data` of a run: examples made ready once, and found there by the same command the next time."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from glassformer.data.stamps import Stamp, by_content, by_time
from glassformer.errors import GlassformerError
from glassformer.training.text_encoding import Say
from glassformer.weights.checksums import CHECKSUMS_FILE, verify_checksums, write_checksums
from glassformer.weights.replacing import replacing

NOTE = "prepared.json"
MADE_OF = ("fingerprint", "contents", "also")
LARGEST = 1 << 30  # bytes of a file that is checked whole before it is used again; of larger ones the size is


class Prepared:
    """What is in the folder is made once, for the files and settings that its fingerprints are made of.

    prints: what it depends on, with the files as a stamp knows them. While their times are as they were,
    nothing is read to see that they are the same; where not, their contents decide.
    The note of it in the folder says that it is whole; what it was made of stands beside the folder too, so
    that a run whose data is gone takes no other.
    also: further fingerprints by name. One that was not noted, or is not known now, is taken to be the same.
    damaged: whether `about` found it made for the same files and settings, but no longer whole.
    """

    _known: Mapping[str, str]  # the fingerprints when its making began

    def __init__(
        self,
        folder: Path,
        prints: Callable[[Stamp], Sequence[object]],
        *,
        also: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self._prints = folder, prints
        self.fingerprint = _digest(*prints(by_time))
        self.also = dict(also or {})
        self.damaged = False

    def about(self, say: Say) -> dict[str, Any] | None:
        """What was noted when it was made; None where it is to be made (again)."""
        about, beside = _read(self.folder / NOTE), _read(self._beside)
        if not all(self._same(noted) for noted in (about, beside) if noted is not None):
            return None
        if about is None:
            if self._begun:
                self._mend(f"{self.folder / NOTE} is gone or damaged", say)
            return None  # where nothing has begun, it was never finished
        try:
            if not verify_checksums(self.folder):
                raise GlassformerError(f"{self.folder / CHECKSUMS_FILE} is gone")
            for name, size in about.get("large", {}).items():
                if (self.folder / name).stat().st_size != size:
                    raise GlassformerError(f"{self.folder / name} is cut short")
        except (GlassformerError, OSError) as error:
            self._mend(str(error).split(";")[0], say)
            return None
        say(f"what was prepared before is used again: {self.folder}")
        if about["fingerprint"] != self.fingerprint:
            about["fingerprint"] = self.fingerprint
            _write(self.folder / NOTE, about)
        if beside is None or beside["fingerprint"] != self.fingerprint:
            _write(self._beside, {name: about[name] for name in MADE_OF if name in about})
        return about

    def noted(self, name: str) -> str | None:
        """A further fingerprint as it was when this was made, where that is known."""
        also: Mapping[str, str] = (_read(self._beside) or {}).get("also", {})
        return also.get(name)

    def _same(self, noted: Mapping[str, Any]) -> bool:
        """Whether a note is of the same files and settings."""
        before = noted.get("also", {})
        if not all(before.get(name, now) == now for name, now in self.also.items()):
            return False
        return bool(noted["fingerprint"] == self.fingerprint or noted.get("contents") == self.contents)

    @cached_property
    def contents(self) -> str:
        """The fingerprint by the files' contents, each read once however often it is used."""
        return _digest(*self._prints(cache(by_content)))

    @property
    def _beside(self) -> Path:
        return self.folder.with_name(NOTE)

    def _mend(self, why: str, say: Say) -> None:
        self.damaged = True
        say(f"{why.rstrip('.')}, so the data is prepared anew from its files")

    @property
    def _begun(self) -> bool:
        """Whether a run has been trained on it."""
        return (self.folder.parent / "checkpoints").exists()

    def begin(self) -> None:
        """Make room; a run that has begun on other data is not to be changed under its feet."""
        if self._begun and not self.damaged:
            raise GlassformerError(
                "the data (its files' names or contents), its tokenizer or its settings have changed "
                f"since the run in '{self.folder.parent}' began; give another --out, or put the files back "
                "as they were"
            )
        # before the files are read, so that one that is changed meanwhile is found out the next time
        self._known = {"fingerprint": self.fingerprint, "contents": self.contents}
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def end(self, **about: Any) -> dict[str, Any]:
        """Note that all is there."""
        sizes = {
            path.relative_to(self.folder).as_posix(): path.stat().st_size
            for path in self.folder.rglob("*")
            if path.is_file()
        }
        write_checksums(self.folder, (name for name, size in sizes.items() if size <= LARGEST))
        large = {name: size for name, size in sizes.items() if size > LARGEST}
        made_of = {**self._known, "also": self.also}
        content = {**made_of, "large": large, **about}
        _write(self.folder / NOTE, content)
        _write(self._beside, made_of)
        return content


def _read(path: Path) -> dict[str, Any] | None:
    """A note, where it is there and as it was written."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        digest = content.pop("digest", None)
        whole = "fingerprint" in content and (digest is None or digest == _digest(json.dumps(content)))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return content if whole else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    noted = {"digest": _digest(json.dumps(content)), **content}
    with replacing(path) as file:
        file.write(json.dumps(noted, ensure_ascii=False, indent=2).encode())


def _digest(*content: object) -> str:
    """Hex of what can be told in words."""
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()
