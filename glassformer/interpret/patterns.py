"""The patterns that a head is held against: for each query the keys that a pattern marks.

A pattern is a matrix (T, S) of truths. How much of a head's attention falls on it is a number from 0 to 1,
and so is what attention spread evenly over the allowed keys would give: its chance level. T queries, S keys.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

NEAR: Final = 2  # tokens to either side that count as local; on a picture, the squares that touch
BAND: Final = 8  # the diagonal of an alignment is an eighth of the source to either side, at least one token


@dataclass(frozen=True, kw_only=True)
class Line:
    """What patterns need to know of a sequence.

    spelled: each token as it reads; None for what is no word: marks, squares, pieces of series. special:
    which tokens are marks. grid: rows and columns of a picture's squares, which follow `prefix` tokens.
    """

    spelled: Sequence[str | None]
    special: Sequence[bool]
    grid: tuple[int, int] | None = None
    prefix: int = 0

    def __len__(self) -> int:
        return len(self.special)


def punctuation(spelled: str | None) -> bool:
    """Whether a token is made of punctuation alone.

    >>> [punctuation(word) for word in (".", " ,", "«", "##!", "a.", "$", " ", None)]
    [True, True, True, True, False, False, False, False]
    """
    bare = (spelled or "").removeprefix("##").strip()
    return bool(bare) and all(unicodedata.category(letter).startswith("P") for letter in bare)


def own_patterns(line: Line) -> dict[str, Tensor]:
    """The patterns of a sequence that attends to itself, each (T, T).

    previous, next, self: the token before, after, itself. first, last: the sequence's ends. same: the same
    word elsewhere. separator: marks other than the first token. punctuation: tokens of nothing else. local:
    at most two tokens away. On a picture also row and column: the other squares of one's own, and local is
    the squares that touch.
    """
    count = len(line)
    at = torch.arange(count)
    ahead = at[None] - at[:, None]  # (T, S), how far ahead a key lies
    found = {"previous": ahead == -1, "next": ahead == 1, "self": ahead == 0}
    found |= _by_key(line, count)
    found["same"] = _same(line, line) & (ahead != 0)
    if line.grid is None:
        found["local"] = ahead.abs() <= NEAR
        return found
    down, along, square = _places(line)
    both = square[:, None] & square[None]
    found["row"] = both & (down[:, None] == down[None]) & (ahead != 0)
    found["column"] = both & (along[:, None] == along[None]) & (ahead != 0)
    touching = torch.maximum((down[:, None] - down[None]).abs(), (along[:, None] - along[None]).abs()) <= 1
    found["local"] = both & touching
    return found


def cross_patterns(queries: Line, keys: Line) -> dict[str, Tensor]:
    """The patterns of a target that attends to a source, each (T, S).

    alignment: near the line from the first token of both to the last of both, along which a translation that
    keeps the order goes. first, last, separator, punctuation and same: as within one sequence.
    """
    found = _by_key(keys, len(queries)) | {"same": _same(queries, keys)}
    if min(len(queries), len(keys)) > BAND // 2:
        found["alignment"] = _off_diagonal(queries, keys) <= max(1.0, len(keys) / BAND)
    return found


def distances(queries: Line, keys: Line, kind: Literal["self", "cross"]) -> Tensor:
    """How far each key lies from each query (T, S): in tokens, in squares, or off the diagonal."""
    if kind == "cross":
        return _off_diagonal(queries, keys)
    at = torch.arange(len(keys)).float()
    if keys.grid is None:
        return (at[None] - at[:, None]).abs()
    down, along, square = _places(keys)
    far = torch.hypot((down[:, None] - down[None]).float(), (along[:, None] - along[None]).float())
    return far * (square[:, None] & square[None])


def _off_diagonal(queries: Line, keys: Line) -> Tensor:
    slope = (len(keys) - 1) / max(len(queries) - 1, 1)
    return (torch.arange(len(keys))[None] - torch.arange(len(queries))[:, None] * slope).abs()


def _by_key(keys: Line, queries: int) -> dict[str, Tensor]:
    """Patterns that mark the same keys for every query."""
    at = torch.arange(len(keys))
    marked = {
        "first": at == 0,
        "last": at == len(keys) - 1,
        "separator": torch.tensor(keys.special, dtype=torch.bool) & (at != 0),
        "punctuation": torch.tensor([punctuation(word) for word in keys.spelled], dtype=torch.bool),
    }
    return {name: truths.expand(queries, -1) for name, truths in marked.items()}


def _same(queries: Line, keys: Line) -> Tensor:
    numbers: dict[str, int] = {}

    def numbered(line: Line, other: int) -> Tensor:
        found = [other if word is None else numbers.setdefault(word, len(numbers)) for word in line.spelled]
        return torch.tensor(found)

    return numbered(queries, -1)[:, None] == numbered(keys, -2)[None]


def _places(line: Line) -> tuple[Tensor, Tensor, Tensor]:
    """The row and column of each square (T,), and which tokens are squares."""
    assert line.grid is not None
    index = torch.arange(len(line)) - line.prefix
    return index // line.grid[1], index % line.grid[1], index >= 0
