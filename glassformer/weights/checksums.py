"""Checksums of a saved folder, so that loading detects even a single flipped bit.

`checksums.json` has the size and SHA-256 of each listed file, and the SHA-256 of that list itself. Its
formatting is fixed, so that even changed whitespace is detected.
"""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from glassformer.errors import FileMissingError, FileProblemError, GlassformerError
from glassformer.json_text import parse_json
from glassformer.weights.atomic_write import write_file

CHECKSUMS_FILE = "checksums.json"
BUFFER_BYTES = 1 << 22
THREADS = 2  # hashing releases the GIL


@dataclass(eq=False)
class ChecksumError(GlassformerError):
    """A file does not match its checksum."""

    path: str | Path
    hint: str = f"copy the folder again, or delete {CHECKSUMS_FILE} if you changed the file yourself"
    template: ClassVar[str] = "{path} does not match its checksum"


def write_checksums(folder: str | Path, names: Iterable[str]) -> Path:
    """Write `checksums.json` for the named files of `folder`; call it after all other files are written."""
    folder = Path(folder)
    listed = sorted(set(names))
    with ThreadPoolExecutor(THREADS) as pool:
        sums = pool.map(lambda name: _sum(folder / name), listed)
        manifest = _render(dict(zip(listed, sums, strict=True)))
    path = folder / CHECKSUMS_FILE
    write_file(path, manifest)
    return path


def listed_files(folder: str | Path) -> set[str]:
    """Return the names of the files that an earlier save wrote: those in `checksums.json`, and that file."""
    path = Path(folder) / CHECKSUMS_FILE
    return {*_read(path), CHECKSUMS_FILE} if path.exists() else set()


def verify_checksums(folder: str | Path) -> bool:
    """Verify every listed file and return True; False if the folder has no `checksums.json`."""
    path = Path(folder) / CHECKSUMS_FILE
    if not path.exists():
        return False
    files = _read(path)
    # Largest first, so that two threads finish at about the same time.
    names = sorted(files, key=lambda name: -int(files[name]["bytes"]))
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lambda name: _verify(path.parent / name, files[name]), names):
            pass
    return True


def _verify(path: Path, expected: dict[str, int | str]) -> None:
    if not path.is_file():
        raise FileMissingError(path, hint=f"{CHECKSUMS_FILE} lists it; copy the folder again")
    if path.stat().st_size != expected["bytes"] or _sum(path) != expected:
        raise ChecksumError(path)


def _sum(path: Path) -> dict[str, int | str]:
    digest = hashlib.sha256()
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    size = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            size += count
    return {"bytes": size, "sha256": digest.hexdigest()}


def _render(files: dict[str, dict[str, int | str]]) -> bytes:
    listing = json.dumps(files, sort_keys=True).encode()
    manifest = {"files": files, "sha256": hashlib.sha256(listing).hexdigest()}
    return json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n"


def _read(path: Path) -> dict[str, dict[str, int | str]]:
    """Read the list of files; raise unless formatting it again gives the same bytes."""
    try:
        text = path.read_bytes()
        files = parse_json(text)["files"]
        valid = _render(files) == text and all(
            set(entry) == {"bytes", "sha256"} and type(entry["bytes"]) is int and _inside(name)
            for name, entry in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise FileProblemError(
            path, "is not a valid list of checksums", hint="copy or download the folder again"
        )
    return files


def _inside(name: str) -> bool:
    parts = PurePosixPath(name)
    return not parts.is_absolute() and ".." not in parts.parts
