"""Checksums of a saved folder: a single flipped bit anywhere is found out when it is loaded.

`checksums.json` holds the size and SHA-256 of each listed file, and the SHA-256 of that list
itself. It has one exact spelling, so a flip in its blanks is found out too.
"""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from glassformer.errors import GlassformerError
from glassformer.weights.replacing import replacing

CHECKSUMS_FILE = "checksums.json"
BUFFER_BYTES = 1 << 22
THREADS = 2  # hashing lets other threads run


def write_checksums(folder: str | Path, names: Iterable[str]) -> Path:
    """Write `checksums.json` over the named files of `folder`. Do it last."""
    folder = Path(folder)
    listed = sorted(set(names))
    with ThreadPoolExecutor(THREADS) as pool:
        sums = pool.map(lambda name: _sum(folder / name), listed)
        manifest = _render(dict(zip(listed, sums, strict=True)))
    path = folder / CHECKSUMS_FILE
    with replacing(path) as file:
        file.write(manifest)
    return path


def verify_checksums(folder: str | Path) -> bool:
    """Check every listed file; False where the folder has no `checksums.json`."""
    path = Path(folder) / CHECKSUMS_FILE
    if not path.exists():
        return False
    files = _read(path)
    # Biggest first, so that two threads end at about the same time.
    names = sorted(files, key=lambda name: -int(files[name]["bytes"]))
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lambda name: _verify(path.parent / name, files[name]), names):
            pass
    return True


def _verify(path: Path, expected: dict[str, int | str]) -> None:
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        raise GlassformerError(f"{path} is missing though {CHECKSUMS_FILE} lists it; copy the folder again.")
    if size != expected["bytes"]:
        raise GlassformerError(
            f"{path} has {size} bytes where {CHECKSUMS_FILE} says {expected['bytes']}; copy the folder again."
        )
    if _sum(path) != expected:
        raise GlassformerError(
            f"{path} is damaged: its checksum is not the one in {CHECKSUMS_FILE}; "
            f"copy the folder again, or delete {CHECKSUMS_FILE} if you changed the file yourself."
        )


def _sum(path: Path) -> dict[str, int | str]:
    digest = hashlib.sha256()
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    size = 0
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(view[:count])
                size += count
    except OSError as error:
        raise GlassformerError(f"Could not read {path}: {error.strerror}.") from error
    return {"bytes": size, "sha256": digest.hexdigest()}


def _render(files: dict[str, dict[str, int | str]]) -> bytes:
    listing = json.dumps(files, sort_keys=True).encode()
    manifest = {"files": files, "sha256": hashlib.sha256(listing).hexdigest()}
    return json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n"


def _read(path: Path) -> dict[str, dict[str, int | str]]:
    """The list of files, believed only where rendering it again gives the very same bytes."""
    try:
        text = path.read_bytes()
        files = json.loads(text)["files"]
        sound = _render(files) == text and all(
            set(entry) == {"bytes", "sha256"} and type(entry["bytes"]) is int and _inside(name)
            for name, entry in files.items()
        )
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise GlassformerError(
            f"{path} is damaged, so the files beside it cannot be checked; copy the folder again."
        )
    return files


def _inside(name: str) -> bool:
    parts = PurePosixPath(name)
    return not parts.is_absolute() and ".." not in parts.parts
