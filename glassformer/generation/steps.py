"""Writing one token at a time, the same for every model: begin once, then step, and select rows.

Whatever chooses the next token (the likeliest, a sample, a beam) sees only `Begun` and `Steps`, so it is
written once. A model of another shape joins in by having a method `begin` of its own.

B rows, S source positions, P prompt positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


class Steps(Protocol):
    """Rows being written, all of them one token further with every step."""

    def step(self, ids: Tensor) -> Tensor:
        """The token just chosen for each row (B,) -> logits (B, V) of the one after it."""
        ...

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order: beams are reordered, finished rows dropped."""
        ...


@runtime_checkable
class SharedSource(Protocol):
    """Steps whose rows are beams of sentences and share what was read of the source."""

    def widen(self, count: int) -> None:
        """Each row becomes `count` rows that stand together."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Like `select`, where each row is replaced by a row of the same sentence."""
        ...


class Follow(Protocol):
    """What follows the model's part of a step, done on the device: scores in, tokens out."""

    def __call__(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Logits (B, V) -> the tokens chosen (B,), and whatever else the next step needs."""
        ...

    def form(self) -> Hashable:
        """What besides the shapes of its state decides what it does."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All that it reads and writes besides."""
        ...

    def adopt(self, state: dict[str, Tensor]) -> None:
        """Go on in these tensors, which hold the same."""
        ...


@runtime_checkable
class Follows(Protocol):
    """Steps that take what follows along: one call does both."""

    def step_then(self, ids: Tensor, follow: Follow) -> tuple[Tensor, ...]:
        """`follow` of what `step` gives."""
        ...


def widen(steps: Steps, rows: int, count: int, device: torch.device) -> None:
    """Each of so many rows becomes `count` rows that stand together."""
    if isinstance(steps, SharedSource):
        steps.widen(count)
    elif count > 1:
        steps.select(torch.arange(rows, device=device).repeat_interleave(count))


def reorder(steps: Steps, rows: Tensor) -> None:
    """Replace each row by a row of the same sentence."""
    if rows.is_cpu and torch.equal(rows, torch.arange(len(rows))):
        return  # often the beams stay in order, and then nothing need be copied
    if isinstance(steps, SharedSource):
        steps.reorder(rows)
    else:
        steps.select(rows)


class Begun(NamedTuple):
    """What stands when all that was given is read."""

    steps: Steps
    logits: Tensor  # (B, V) of the first token to choose
    most: Tensor | int | None = None  # how many tokens each row (B,) can still be given; None: no bound


@runtime_checkable
class Begins(Protocol):
    """A model that knows by itself how to write step by step."""

    def begin(self, inputs: Tensor, real: Tensor, *, start_ids: Sequence[int], room: int) -> Begun:
        """inputs (B, S), of which `real` (B, S) are no padding; at most `room` tokens will be written."""
        ...


def starts_of(model: nn.Module, start_ids: Sequence[int] | int | None) -> list[int]:
    """How the target of a model with a source begins: as given, else as its spec says."""
    starts = [start_ids] if isinstance(start_ids, int) else list(start_ids or ())
    own_start = getattr(getattr(model, "spec", None), "start_id", None)
    return [own_start] if not starts and own_start is not None else starts
