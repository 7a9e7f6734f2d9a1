"""Print to the console, messages to stderr, and JSON to stdout."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from glassformer.json_text import convert_json, is_not_finite

if TYPE_CHECKING:
    from rich.console import Console

PROGRESS_DELAY = 0.3  # seconds before `progress` prints a line


def console() -> Console:
    """Create a rich console as wide as the terminal or COLUMNS; 100 columns for a file or a pipe."""
    from rich.console import Console

    terminal = Console(highlight=False)
    fixed = not terminal.is_terminal and "COLUMNS" not in os.environ
    return Console(highlight=False, width=100) if fixed else terminal


def message(text: str) -> None:
    """Print a message for users on stderr."""
    print(escape_controls(text), file=sys.stderr, flush=True)


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show on stderr what is running: a spinner on a terminal, else a line unless it is done at once."""
    from rich.console import Console
    from rich.markup import escape

    screen = Console(stderr=True, highlight=False)
    if screen.is_terminal:
        with screen.status(f"{escape(escape_controls(text))} …"):
            yield
        return
    timer = threading.Timer(PROGRESS_DELAY, message, (f"{text} …",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def escape_controls(text: str) -> str:
    """Escape control and bidi characters, e.g. of a file or tensor name, so that no terminal executes them.

    >>> escape_controls("a \\x1b[31mtrick, 바다")
    'a \\\\x1b[31mtrick, 바다'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def print_json(content: Any) -> None:
    """Print one JSON document on stdout; infinity and NaN, which JSON lacks, become strings."""
    content = convert_json(content, lambda value: str(value) if is_not_finite(value) else value)
    print(json.dumps(content, indent=2, ensure_ascii=False))


def format_bytes(count: float) -> str:
    """Format a number of bytes with its unit.

    >>> format_bytes(1500), format_bytes(2_500_000)
    ('1.5 kB', '2.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
