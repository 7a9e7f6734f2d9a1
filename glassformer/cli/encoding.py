"""Letters that the encoding of standard output lacks are written as \\uXXXX, not with a traceback."""

from __future__ import annotations

import codecs
import io
import sys
from typing import TextIO

ESCAPED = "glassformer.escaped"


def escape_unknown(stream: TextIO) -> None:
    """Let a stream that is not in UTF-8 take every letter; that some are escaped is said once.

    What the person or the system chose stays chosen: a terminal in Latin-1 would show UTF-8 as gibberish.
    """
    if not isinstance(stream, io.TextIOWrapper) or codecs.lookup(stream.encoding).name == "utf-8":
        return
    name, said = stream.encoding, False

    def escaped(error: UnicodeError) -> tuple[str, int]:
        nonlocal said
        if not isinstance(error, UnicodeEncodeError):
            raise error
        if not said:
            said = True
            print(
                f"note: the output is in {name}, which lacks some of the letters; they are written as "
                "\\uXXXX, and PYTHONIOENCODING=utf-8 writes them as they are",
                file=sys.stderr,
            )
        return escapes(error.object[error.start : error.end]), error.end

    codecs.register_error(ESCAPED, escaped)
    stream.reconfigure(errors=ESCAPED)


def escapes(text: str) -> str:
    """Letters as JSON writes them, so that a document of JSON stays one.

    >>> print(escapes("é안😀"))
    \\u00e9\\uc548\\ud83d\\ude00
    """
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))
