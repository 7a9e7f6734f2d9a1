"""The interface between a model and the search for tokens: prefill, then one decode step per token.

Greedy decoding, sampling and beam search use only `PrefillResult` and `StepDecoder`, so each is written
once for all models. A model of another architecture takes part by implementing `prefill`.

B rows, S source positions, P prompt positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

GRAPH_WARMUP_STEPS: Final = 2  # run before a CUDA graph is captured and then undone; they need capacity too


class StepDecoder(Protocol):
    """The state of a batch that is being generated; every decode step makes each row one token longer."""

    def step(self, ids: Tensor) -> Tensor:
        """The token just chosen for each row (B,) -> logits (B, V) of the one after it."""
        ...

    def select(self, rows: Tensor) -> None:
        """Continue with these rows, in this order: beams are reordered, finished rows dropped."""
        ...


@runtime_checkable
class BeamDecoder(Protocol):
    """A decoder whose rows are beams of a batch of inputs and share the keys and values of the input."""

    def expand_beams(self, count: int) -> None:
        """Turn each row into `count` adjacent rows."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Like `select`, if each row is replaced by a row of the same input."""
        ...


@dataclass(frozen=True, eq=False)
class TokenSelector:
    """Chooses the next tokens from logits on the device, as part of a captured step.

    choose: logits (B, V) -> the chosen tokens (B,), and the rows (B,) that they continue if rows moved.
    form: what determines its computation besides the shapes of its state.
    state: all tensors that it reads and writes. adopt: continue in such tensors, which hold the same values.
    """

    choose: Callable[[Tensor], tuple[Tensor, ...]]
    form: Hashable
    state: Callable[[], dict[str, Tensor]]
    adopt: Callable[[dict[str, Tensor]], None]


@runtime_checkable
class SelectingDecoder(Protocol):
    """A decoder that runs a token selector in the same call as the step."""

    def step_and_select(self, ids: Tensor, selector: TokenSelector) -> tuple[Tensor, ...]:
        """`selector.choose(step(ids))`."""
        ...


def expand_beams(decoder: StepDecoder, rows: int, count: int, device: torch.device) -> None:
    """Turn each row into `count` adjacent rows."""
    if isinstance(decoder, BeamDecoder):
        decoder.expand_beams(count)
    elif count > 1:
        decoder.select(torch.arange(rows, device=device).repeat_interleave(count))


def reorder(decoder: StepDecoder, rows: Tensor) -> None:
    """Replace each row by a row of the same input."""
    if rows.is_cpu and torch.equal(rows, torch.arange(len(rows))):
        return  # beams often stay in order, and then nothing need be copied
    if isinstance(decoder, BeamDecoder):
        decoder.reorder(rows)
    else:
        decoder.select(rows)


class PrefillResult(NamedTuple):
    """The state after the source or the prompt was processed."""

    decoder: StepDecoder
    logits: Tensor  # (B, V) of the first token to choose
    max_new_tokens: Tensor | int | None = None  # how many tokens each row (B,) can still take; None: no bound


@runtime_checkable
class SupportsPrefill(Protocol):
    """A model that has its own way of generating step by step."""

    def prefill(
        self, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        """inputs (B, S), mask (B, S) True where real; at most `capacity` tokens will be generated."""
        ...


def decoder_start_ids(model: nn.Module, start_ids: Sequence[int] | int | None) -> list[int]:
    """The first tokens of an encoder-decoder's target: the ones given, else the spec's start token."""
    starts = [start_ids] if isinstance(start_ids, int) else list(start_ids or ())
    own_start = getattr(getattr(model, "spec", None), "start_id", None)
    return [own_start] if not starts and own_start is not None else starts
