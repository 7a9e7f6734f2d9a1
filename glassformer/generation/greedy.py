"""The likeliest token at every step: the engine without beams or chance, tokens only.

B rows, S source or prompt positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from glassformer.generation.engine import stream, write
from glassformer.generation.settings import Decoding

GREEDY = Decoding()


def greedy(
    model: nn.Module,
    inputs: Tensor,
    *,
    start_ids: Sequence[int] | int | None = None,
    eos_id: int | Sequence[int],
    pad_id: int,
    max_new_tokens: int | Tensor,
    mask: Tensor | None = None,
) -> list[list[int]]:
    """Sources or prompts (B, S) -> the tokens written for each, without the end token; see `write`."""
    found = write(
        model,
        inputs,
        settings=GREEDY,
        eos_id=eos_id,
        pad_id=pad_id,
        start_ids=start_ids,
        mask=mask,
        max_new_tokens=max_new_tokens,
    )
    return [text.ids for (text,) in found]


def decode_all(
    model: nn.Module,
    examples: Sequence[Sequence[int]],
    *,
    start_ids: Sequence[int] | int | None = None,
    eos_id: int | Sequence[int],
    pad_id: int,
    max_new_tokens: int | Callable[[int], int],
    tokens: int = 16_384,
) -> list[list[int]]:
    """Sources or prompts of any lengths -> what `greedy` writes for each, in the order given.

    `max_new_tokens` may depend on an example's length; see `write_all`.
    """
    found = stream(
        model,
        examples,
        settings=GREEDY,
        eos_id=eos_id,
        pad_id=pad_id,
        start_ids=start_ids,
        max_new_tokens=max_new_tokens,
        tokens=tokens,
    )
    return [text.ids for (text,) in found]
