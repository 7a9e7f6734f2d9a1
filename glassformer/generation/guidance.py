"""Classifier-free guidance: amplify what the prompt changes in the scores of the next token.

The decoder runs 2B rows: every prompt and, as row B later, a negative prompt that leaves out the condition.
Both continue with the same tokens, and their scores are combined into those of B rows, so that greedy
decoding, sampling and beam search need not know of guidance.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import UnsupportedError
from glassformer.generation.inference_model import prefill
from glassformer.generation.prompt import Prompt, pad_prompts
from glassformer.generation.step_decoder import (
    PrefillResult,
    StepDecoder,
    decoder_start_ids,
    expand_beams,
    reorder,
)


def guide(logits: Tensor, scale: float) -> Tensor:
    """Return the guided scores (B, V) of logits (2B, V): log p(negative) + scale log(p / p(negative)).

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> [round(x, 2) for x in guide(logits, 3.0).softmax(-1)[0].tolist()]
    [1.0, 0.0]
    """
    conditional, negative = logits.float().log_softmax(-1).chunk(2)
    return scale * (conditional - negative) + negative


class GuidedDecoder:
    """A decoder of 2B rows that appears as one of B rows; implements `StepDecoder` and `BeamDecoder`."""

    def __init__(self, decoder: StepDecoder, scale: float, rows: int, device: torch.device) -> None:
        self.decoder, self.scale, self.rows, self.device = decoder, scale, rows, device

    @property
    def cache(self) -> Any:
        """The KV cache of all 2B rows, of a decoder that has one."""
        return self.decoder.cache  # type: ignore[attr-defined]

    def step(self, ids: Tensor) -> Tensor:
        return guide(self.decoder.step(ids.repeat(2)), self.scale)

    def select(self, rows: Tensor) -> None:
        self.decoder.select(self._both(rows))
        self.rows = len(rows)

    def expand_beams(self, count: int) -> None:
        expand_beams(self.decoder, 2 * self.rows, count, self.device)
        self.rows *= count

    def reorder(self, rows: Tensor) -> None:
        reorder(self.decoder, self._both(rows))

    def _both(self, rows: Tensor) -> Tensor:
        """Return the rows of the prompts and of their negative prompts."""
        return torch.cat((rows, rows + self.rows))


def guided_prefill(
    model: nn.Module,
    inputs: Tensor,
    mask: Tensor | None,
    scale: float,
    *,
    capacity: int,
    prompts: Sequence[Prompt] = (),
) -> PrefillResult:
    """Prefill prompts (B, S) and their negative prompts as one batch.

    prompts: the prompt of each row, if any has more than ids. Without a negative prompt, the last token of
    the prompt stands alone for it.
    """
    if inputs.is_floating_point() or mask is None or decoder_start_ids(model, None):
        raise UnsupportedError("guidance", "models with an encoder", hint="set guidance_scale to 1")
    prompts = prompts or [Prompt(ids[real]) for ids, real in zip(inputs, mask, strict=True)]
    negatives = [
        Prompt.of(prompt.ids[-1:] if prompt.negative_ids is None else prompt.negative_ids)
        for prompt in prompts
    ]
    ids, both_masks, both = pad_prompts([*prompts, *negatives], inputs.device)
    decoder, logits, most = prefill(model, ids, both_masks, start_ids=None, capacity=capacity, prompts=both)
    if isinstance(most, Tensor):
        most = torch.minimum(*most.chunk(2))
    return PrefillResult(
        GuidedDecoder(decoder, scale, len(prompts), inputs.device), guide(logits, scale), most
    )
