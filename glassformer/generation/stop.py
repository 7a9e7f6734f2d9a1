"""Texts that end what is written, looked for in the decoded text: a stop may lie across tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glassformer.errors import GlassformerError

Decode = Callable[[list[int]], str]


def stopped(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> bool:
    """Whether the last of these tokens completed one of the stops, none being complete before it.

    The last token is part of what completes a stop, so only a tail of the tokens need be decoded: one
    whose text without the last token is longer than any stop.

    >>> stopped([1, 2, 3], ["cd"], lambda ids: "".join("abcd"[n] for n in ids))
    True
    >>> stopped([2, 1, 3], ["cd"], lambda ids: "".join("abcd"[n] for n in ids))
    False
    """
    enough = max(map(len, stops)) + len(decode(list(ids[-1:])))
    tail = min(len(ids), enough)  # most tokens have a letter; what has none makes the tail grow
    # a first token in mid-text may be decoded without its space, hence one letter more
    while len(text := decode(list(ids[-tail:]))) <= enough + 1 and tail < len(ids):
        tail = min(len(ids), 2 * tail)
    return any(stop in text for stop in stops)


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text up to the first stop in it.

    >>> before_stop("yes. Q: why", ["Q:", "A:"])
    'yes. '
    """
    found = [text.find(stop) for stop in stops]
    return text[: min((at for at in found if at >= 0), default=len(text))]


def check_stops(stops: Sequence[str], decode: Decode | None) -> None:
    if stops and decode is None:
        raise GlassformerError("stop texts are looked for in decoded text; give decode, from ids to text")
