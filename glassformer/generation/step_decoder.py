"""The interface between models and decoding algorithms: prefill, then one decode step per token.

Greedy decoding, sampling and beam search use only `PrefillResult` and `StepDecoder`, so each is written
once for all models. A model of another architecture can generate if it implements `prefill`.

B rows, S source positions, P prompt positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

GRAPH_WARMUP_STEPS: Final = 2  # run before a CUDA graph is captured, then undone; they need capacity too


class StepDecoder(Protocol):
    """State of a batch during generation; every decode step extends each row by one token."""

    def step(self, ids: Tensor) -> Tensor:
        """Process the last chosen token of each row (B,); return the logits (B, V) of the next token."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order; used to reorder beams and to drop finished rows."""
        ...


@runtime_checkable
class BeamDecoder(Protocol):
    """A decoder whose rows are beams of a batch of inputs and share the keys and values of the input."""

    def expand_beams(self, count: int) -> None:
        """Turn each row into `count` adjacent rows."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by `rows[i]`, a row of the same input; cheaper than `select`."""
        ...


@dataclass(frozen=True, eq=False)
class TokenSelector:
    """Choose the next tokens from logits on the device, as part of a captured step.

    choose: logits (B, V) -> the chosen tokens (B,), and the parent rows (B,) if rows moved.
    form: key of the computation; selectors with equal form and state shapes compute the same.
    state: returns all tensors that it reads and writes. adopt: sets these tensors to others with the same
    values.
    """

    choose: Callable[[Tensor], tuple[Tensor, ...]]
    form: Hashable
    state: Callable[[], dict[str, Tensor]]
    adopt: Callable[[dict[str, Tensor]], None]


@runtime_checkable
class SelectingDecoder(Protocol):
    """A decoder that runs a token selector in the same call as the step."""

    def step_and_select(self, ids: Tensor, selector: TokenSelector) -> tuple[Tensor, ...]:
        """Return `selector.choose(step(ids))`."""
        ...


def expand_beams(decoder: StepDecoder, rows: int, count: int, device: torch.device) -> None:
    """Turn each row into `count` adjacent rows."""
    if isinstance(decoder, BeamDecoder):
        decoder.expand_beams(count)
    elif count > 1:
        decoder.select(torch.arange(rows, device=device).repeat_interleave(count))


def reorder(decoder: StepDecoder, rows: Tensor) -> None:
    """Replace row i by `rows[i]`, a row of the same input."""
    if rows.is_cpu and torch.equal(rows, torch.arange(len(rows))):
        return  # beams often stay in order, and then nothing need be copied
    if isinstance(decoder, BeamDecoder):
        decoder.reorder(rows)
    else:
        decoder.select(rows)


class PrefillResult(NamedTuple):
    """Result of prefilling a source or a prompt."""

    decoder: StepDecoder
    logits: Tensor  # (B, V) of the first token to choose
    max_new_tokens: Tensor | int | None = None  # maximum of each row (B,); None: no bound


@runtime_checkable
class SupportsPrefill(Protocol):
    """Protocol of models that implement their own prefill and step decoder."""

    def prefill(
        self, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        """Prefill inputs (B, S). mask (B, S): True for real tokens. capacity: maximum of new tokens."""
        ...


def decoder_start_ids(model: nn.Module, start_ids: Sequence[int] | int | None) -> list[int]:
    """Return the decoder's start tokens: `start_ids`, else the start token of the spec."""
    starts = [start_ids] if isinstance(start_ids, int) else list(start_ids or ())
    own_start = getattr(getattr(model, "spec", None), "start_id", None)
    return [own_start] if not starts and own_start is not None else starts
