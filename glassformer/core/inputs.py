"""What a model makes of its inputs before the first layer: padding, places, vectors, shared matrices.

B batch, T positions of the input, S keys, D d_model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core.embeddings import EmbeddingOutput, TokenInput, check_token_ids
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer
from glassformer.core.positions import count_positions
from glassformer.errors import MissingValueError, ShapeError, UnsupportedError

MaskLike = Mask | Tensor | None


def infer_mask(embed: nn.Module, inputs: Tensor, mask: MaskLike, what: str, past: int = 0) -> Mask:
    """The mask given; where none is, the padding read off the pad id (no sequence starts with padding).

    With a cache the keys before `inputs` are unknown here, so nothing is inferred.
    """
    if isinstance(embed, TokenInput):
        check_token_ids(inputs)
    if mask is not None or not isinstance(embed, TokenInput) or embed.pad_id is None or past:
        return Mask.of(mask, what)
    padding = inputs != embed.pad_id
    if inputs.is_cpu and not torch.compiler.is_compiling() and bool(padding.all()):
        return Mask()  # nothing is padded: the kernel need not look (on a GPU, asking would wait for it)
    return Mask(padding=padding)


def position_ids(mask: Mask, start: int | Tensor, inputs: Tensor, what: str) -> Tensor | None:
    """Where each token stands, counting real tokens of its own document only (B, T).

    None for the plain count from `start`: nothing is padded or packed.
    """
    told = mask.segments if mask.padding is None else mask.padding
    if told is None:
        return None
    batch, steps = inputs.shape[:2]
    keys = start + steps if isinstance(start, int) else told.shape[-1]
    counting = Mask(padding=mask.padding, segments=mask.segments)
    counting.check(batch=batch, heads=1, queries=steps, keys=keys, what=what)
    return last_columns(count_positions(mask.padding, mask.segments), start, steps)


def last_columns(columns: Tensor, start: int | Tensor, steps: int) -> Tensor:
    """Of columns for all keys so far (B, S), those of the new positions (B, T)."""
    if isinstance(start, int):
        return columns[:, start : start + steps]
    return columns.index_select(1, start + torch.arange(steps, device=columns.device))


def cross_mask(source: Mask, target: MaskLike) -> Mask:
    """What the target may see of the memory where nobody says: real tokens, of the same document."""
    if source.segments is None:
        return Mask(padding=source.padding)
    own = target.segments if isinstance(target, Mask) else None
    if own is None:
        raise MissingValueError(
            "tgt_mask=Mask(segments=...)", "for a source of several documents", hint="or set a memory_mask"
        )
    return Mask(padding=source.padding, segments=source.segments, query_segments=own)


def embed_inputs(
    embed: nn.Module,
    inputs: Tensor,
    positions: Tensor | None,
    start: int | Tensor,
    obs: Observer | None,
    **more: Any,
) -> EmbeddingOutput:
    embedded: EmbeddingOutput
    if not isinstance(embed, TokenInput):
        embedded = embed(inputs, obs=obs, **more)
        return embedded
    steps = inputs.shape[1]
    if positions is None:
        positions = (torch.arange(steps, device=inputs.device) + start)[None]
    last = start + steps if isinstance(start, int) else None
    embedded = embed(inputs, positions=positions, last=last, obs=obs, **more)
    return embedded


def tie_weights(source: nn.Module, owner: nn.Module, what: str) -> None:
    """Let `owner` (a token embedding or a head) use the token matrix of the input `source`."""
    token = source.token if isinstance(source, TokenInput) else None
    taker = owner.token if isinstance(owner, TokenInput) else owner
    own = getattr(taker, "weight", None)
    if token is None or not isinstance(own, Tensor):
        raise UnsupportedError(what, "a shared token matrix", hint="leave it out of `tied`")
    if own.shape != token.weight.shape:
        raise ShapeError(
            f"the token matrix of {what}",
            own.shape,
            f"{tuple(token.weight.shape)}, to be shared",
            hint="make the vocabularies equal or leave it out of `tied`",
        )
    taker.weight = token.weight
