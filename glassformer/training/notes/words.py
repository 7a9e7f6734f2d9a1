"""Numbers and text of a run as a person reads them."""

from __future__ import annotations

import math
import unicodedata


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter.

    >>> duration(0.25), duration(42), duration(250), duration(90061)
    ('0.2 s', '42 s', '4 min 10 s', '1 d 1 h')
    """
    if not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, part, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            large, rest = divmod(whole, size)
            return f"{large} {name} {rest // part} {below}"
    return f"{whole} s"


def figure(value: float) -> str:
    """A number with as many digits as say something.

    >>> figure(3.41234), figure(0.000301), figure(41234.5), figure(99.25), figure(0), figure(float("nan"))
    ('3.412', '0.000301', '41,234', '99.25', '0', 'not a number')
    """
    if math.isnan(value):
        return "not a number"
    if value == 0 or math.isinf(value):
        return f"{value:g}".replace("inf", "infinite")
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.3g}"


def one_line(text: str) -> str:
    """Text that may come from anywhere, safe to print: no line ends, no control characters.

    >>> one_line("two\\nlines, a \\x1b[31mtrick")
    'two↵lines, a �[31mtrick'
    """
    return "".join(_shown(letter) for letter in text)


def _shown(letter: str) -> str:
    if letter in "\n\t":
        return "↵" if letter == "\n" else " "
    # Cc: controls; Cs: half a surrogate pair; Zl, Zp: line ends; the rest would turn the writing round
    hidden = (
        unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")
        or letter in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )
    return "\ufffd" if hidden else letter
