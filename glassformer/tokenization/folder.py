"""Reading the files of a tokenizer folder, where every fault becomes one sentence."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glassformer.errors import GlassformerError

_FILES = re.compile(r"token.*\.json$|vocab.*\.(json|txt)$|^merges\.txt$|\.(model|spm)$")


def vocabulary_files(folder: str | Path) -> list[Path]:
    """The files of a folder's vocabulary, and what goes with it, in the order of their names."""
    return sorted(path for path in Path(folder).glob("*") if _FILES.search(path.name) and path.is_file())


def fingerprint(folder: str | Path) -> str | None:
    """Hex that changes when a folder's vocabulary, or what goes with it, does; None where it has none."""
    digest = hashlib.blake2b(digest_size=16)
    names = vocabulary_files(folder)
    for path in names:
        content = read_bytes(path)
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest() if names else None


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn whatever a backend raises inside the block into "<what>: <its first line>"."""
    try:
        yield
    except (GlassformerError, MemoryError):
        raise
    except BaseException as fault:
        # a panic in compiled code is no Exception; what else is none ends the program, and is nobody's fault
        if not isinstance(fault, Exception) and type(fault).__name__ != "PanicException":
            raise
        reason = next(iter(str(fault).splitlines()), type(fault).__name__)
        raise GlassformerError(f"{what}: {reason.rstrip('.')}.") from fault


def read_bytes(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as fault:
        raise GlassformerError(f"{path} cannot be read: {fault.strerror}.") from fault


def read_text(path: Path) -> str:
    """The UTF-8 text of a file; every kind of line end comes back as a newline."""
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as fault:
        raise GlassformerError(f"{path} is not UTF-8 text (byte {fault.start}).") from fault
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as fault:
        raise GlassformerError(f"{path} is not valid JSON: {fault}.") from fault
    if not isinstance(value, dict):
        raise GlassformerError(f"{path} must hold a JSON object, and holds a {type(value).__name__} instead.")
    return value


def read_object_if_there(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or an empty one where there is no such file."""
    return read_object(path) if path.is_file() else {}


def read_vocabulary(path: Path) -> dict[str, int]:
    """A JSON object from token to id, each id a whole number used once."""
    vocabulary = read_object(path)
    owner: dict[int, str] = {}
    for token, index in vocabulary.items():
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise GlassformerError(
                f"{path} gives {token!r} the id {index!r}, where a whole number from 0 is due."
            )
        if index in owner:
            raise GlassformerError(f"{path} gives id {index} to both {owner[index]!r} and {token!r}.")
        owner[index] = token
    return vocabulary


def refuse_gaps(ids: set[int], path: Path) -> None:
    """Raise unless the ids are 0, 1, 2, ... without a hole."""
    if not ids:
        raise GlassformerError(f"{path} holds no tokens.")
    missing = next((index for index in range(max(ids)) if index not in ids), None)
    if missing is not None:
        raise GlassformerError(
            f"{path} has a gap: no token has id {missing}, though ids go up to {max(ids)}."
        )
