"""What made the lines of a file of answers: told beside it while it is written, with it once it is whole.

A whole file has nothing beside it. It keeps the same as an attribute of its own, where the file system has
such: not in its content, and lost in a copy without it. A digest shows that its lines are still those.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassformer.core.errors import GlassformerError

ATTRIBUTE = "user.glassformer.answers"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """made: by what. lines: how many texts were answered, inputs: their digest.

    again: the last text, counted from 0, with which batches began. refused: the numbers, from 1, of the texts
    among them that could not be answered.
    """

    made: Mapping[str, Any]
    lines: int
    inputs: str
    again: int
    refused: Sequence[int] = ()


def told_beside(record: Path) -> Progress | None:
    """What FILE.progress says; None: it is not there."""
    if not record.exists():
        return None
    try:
        return Progress(**json.loads(record.read_bytes()))
    except (ValueError, TypeError):
        raise GlassformerError(f"'{record}' is damaged; add --overwrite to begin anew") from None


def tell_beside(record: Path, progress: Progress) -> None:
    """Write FILE.progress, whole or not at all."""
    from glassformer.weights.replacing import replacing

    with replacing(record) as file:
        file.write(json.dumps(asdict(progress), ensure_ascii=False, indent=1).encode())


def told_with(out: Path) -> Progress | None:
    """What a whole file keeps of itself; None: nothing, or its lines are not those it was kept of."""
    if sys.platform != "linux":  # Python knows attributes of files nowhere else
        return None
    try:
        kept = json.loads(os.getxattr(out, ATTRIBUTE))
        return Progress(**kept["progress"]) if kept["answers"] == _digest(out) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def tell_with(out: Path, progress: Progress) -> None:
    """Keep it with a whole file, if the file system can."""
    if sys.platform != "linux":
        return
    kept = {"answers": _digest(out), "progress": asdict(progress)}
    with suppress(OSError):
        os.setxattr(out, ATTRIBUTE, json.dumps(kept).encode())


def _digest(out: Path) -> str:
    with out.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
