"""Stopping criteria: why a sequence is finished, when finished rows leave the batch, and stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import torch

FinishReason = Literal["end", "length", "stop"]
FINISH_REASONS: Final[tuple[FinishReason, ...]] = ("end", "length", "stop")
END, LENGTH, STOP = range(3)  # indices of FINISH_REASONS

CHECK_EVERY: Final = 8  # steps between two checks for finished rows on a GPU, each of which synchronizes
COMPACT_BELOW: Final = 0.75  # rows are compacted once at most this share of them is unfinished
COMPACT_BELOW_ON_GPU: Final = 0.5  # compacting there also means capturing a step of another shape


def should_compact(left: int, rows: int, device: torch.device) -> bool:
    """Whether to drop finished rows from the batch."""
    return left <= (COMPACT_BELOW if device.type == "cpu" else COMPACT_BELOW_ON_GPU) * rows


def check_interval(device: torch.device) -> int:
    """How many steps lie between two checks for finished rows."""
    return 1 if device.type == "cpu" else CHECK_EVERY


def completes_stop(ids: Sequence[int], stops: Sequence[str], decode: Callable[[list[int]], str]) -> bool:
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
    starts = [text.find(stop) for stop in stops]
    return text[: min((at for at in starts if at >= 0), default=len(text))]
