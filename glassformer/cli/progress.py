"""What made the lines of a file of answers: told beside it while it is written, with it once it is whole.

A whole file has nothing beside it. It keeps the same as an attribute of its own, where the file system has
such: not in its content, and lost in a copy without it. A digest tells whether its lines are still those.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from glassformer.errors import GlassformerError

ATTRIBUTE = "user.glassformer.answers"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """made: by what. lines: how many texts were answered, inputs: their digest.

    answers: the digest of the lines that answer them. size: how many bytes these are.

    again: the last text, counted from 0, with which batches began. refused: the numbers, from 1, of the texts
    among them that could not be answered.
    """

    made: Mapping[str, Any]
    lines: int
    inputs: str
    answers: str
    size: int
    again: int
    refused: Sequence[int] = ()

    def __post_init__(self) -> None:
        """Look at every value: it may come from a file that anything wrote."""
        numbers, digests = (self.lines, self.size, self.again, *self.refused), (self.inputs, self.answers)
        if not isinstance(self.made, Mapping) or not all(isinstance(digest, str) for digest in digests):
            raise TypeError("what made the lines is no mapping, or a digest no text")
        if not all(isinstance(number, int) for number in numbers):
            raise TypeError("a number of lines is no whole number")
        if not 0 <= self.again <= self.lines <= self.size <= sys.maxsize:
            raise ValueError("batches began with a text that was not answered, or lines have no end")


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
        file.write(json.dumps(asdict(progress), indent=1).encode())  # in ASCII: a setting may be no Unicode


def told_with(out: Path) -> Progress | None:
    """What a whole file keeps of itself; None: nothing. Its lines may have been changed since."""
    if sys.platform != "linux":  # Python knows attributes of files nowhere else
        return None
    try:
        return Progress(**json.loads(os.getxattr(out, ATTRIBUTE)))
    except (OSError, ValueError, TypeError):
        return None


def tell_with(out: BinaryIO, progress: Progress) -> None:
    """Keep it with a whole file, if the file system can. out: it was written through this.

    By now another file may bear its name, or none; so it is told to what is open.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError):
        os.setxattr(out.fileno(), ATTRIBUTE, json.dumps(asdict(progress)).encode())
