"""Stop strings: looked for in the decoded text, because one may span several tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]


def completes_stop(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> bool:
    """Whether the last of these tokens completes a stop string, none being complete before it.

    The last token is part of the stop string, so it is enough to decode a tail of the tokens whose text
    without the last token is longer than any stop string.

    >>> completes_stop([1, 2, 3], ["cd"], lambda ids: "".join("abcd"[n] for n in ids))
    True
    >>> completes_stop([2, 1, 3], ["cd"], lambda ids: "".join("abcd"[n] for n in ids))
    False
    """
    enough = max(map(len, stops)) + len(decode(list(ids[-1:])))
    tail = min(len(ids), enough)  # most tokens have a letter; what has none makes the tail grow
    # a first token in mid-text may be decoded without its space, hence one letter more
    while len(text := decode(list(ids[-tail:]))) <= enough + 1 and tail < len(ids):
        tail = min(len(ids), 2 * tail)
    return any(stop in text for stop in stops)


def truncate_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string in it.

    >>> truncate_at_stop("yes. Q: why", ["Q:", "A:"])
    'yes. '
    """
    found = [text.find(stop) for stop in stops]
    return text[: min((at for at in found if at >= 0), default=len(text))]
