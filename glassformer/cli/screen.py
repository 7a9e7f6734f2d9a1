"""What verbs print with: one console, numbers for people, and JSON for programs."""

from __future__ import annotations

import json
import math
from typing import Any

from rich.console import Console


def console() -> Console:
    """The terminal, or a plain 100 columns where there is none (a file, a pipe)."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=100)


def print_json(content: Any) -> None:
    """One JSON document on stdout; an infinite number, which JSON lacks, becomes a string."""
    print(json.dumps(_plain(content), indent=2, ensure_ascii=False))


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    return content


def bytes_text(count: float) -> str:
    """Bytes as a person says them.

    >>> bytes_text(1500), bytes_text(2_500_000)
    ('1.5 kB', '2.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def shape_text(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else f"({', '.join(map(str, shape))})"
