"""Stopping criteria: finish reasons, stop strings, and when finished rows are dropped from the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import torch

FinishReason = Literal["end", "length", "stop"]
FINISH_REASONS: Final[tuple[FinishReason, ...]] = ("end", "length", "stop")
END, LENGTH, STOP = range(3)  # indices of FINISH_REASONS

CHECK_EVERY: Final = 8  # steps between two checks for finished rows on a GPU, each of which synchronizes
COMPACT_BELOW: Final = 0.75  # finished rows are dropped if at most this fraction is unfinished
COMPACT_BELOW_ON_GPU: Final = 0.5  # lower, because the new shape needs a new CUDA graph


def should_compact(left: int, rows: int, device: torch.device) -> bool:
    """Whether to drop finished rows from the batch."""
    return left <= (COMPACT_BELOW if device.type == "cpu" else COMPACT_BELOW_ON_GPU) * rows


def check_interval(device: torch.device) -> int:
    """Return the number of steps between two checks for finished rows."""
    return 1 if device.type == "cpu" else CHECK_EVERY


def completes_stop(ids: Sequence[int], stops: Sequence[str], decode: Callable[[list[int]], str]) -> bool:
    """Whether the last token completes a stop string, given that none was complete before it.

    The last token is part of the stop string, so only a tail of the tokens is decoded, whose text without the
    last token is longer than any stop string.

    >>> completes_stop([1, 2, 3], ["cd"], lambda ids: "".join("abcd"[n] for n in ids))
    True
    >>> completes_stop([2, 1, 3], ["cd"], lambda ids: "".join("abcd"[n] for n in ids))
    False
    """
    enough = max(map(len, stops)) + len(decode(list(ids[-1:])))
    tail = min(len(ids), enough)  # most tokens have a character; the loop extends the tail if some have none
    # the first token of the tail may be decoded without its space, hence one character more
    while len(text := decode(list(ids[-tail:]))) <= enough + 1 and tail < len(ids):
        tail = min(len(ids), 2 * tail)
    return any(stop in text for stop in stops)


def truncate_at_stop(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first stop string.

    >>> truncate_at_stop("yes. Q: why", ["Q:", "A:"])
    'yes. '
    """
    starts = [text.find(stop) for stop in stops]
    return text[: min((at for at in starts if at >= 0), default=len(text))]
