"""Steps before the first layer: padding masks, position ids, embeddings and tied weights.

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


def infer_mask(embed: nn.Module, inputs: Tensor, mask: MaskLike, name: str, has_past: bool = False) -> Mask:
    """Return `mask`, or infer the padding from the pad id if it is None.

    has_past: the KV cache already holds earlier keys; their padding is unknown, so nothing is inferred.
    name: name of the mask in error messages.
    """
    if isinstance(embed, TokenInput):
        check_token_ids(inputs)
    if mask is not None or not isinstance(embed, TokenInput) or embed.pad_id is None or has_past:
        return Mask.of(mask, name)
    padding = inputs != embed.pad_id
    if inputs.is_cpu and not torch.compiler.is_compiling() and bool(padding.all()):
        return Mask()  # no padding: the kernel needs no mask (on a GPU this check would synchronize)
    return Mask(padding=padding)


def position_ids(mask: Mask, start: int | Tensor, inputs: Tensor, name: str) -> Tensor | None:
    """Return position ids (B, T) that count only real tokens of the same document.

    Returns None if nothing is padded or packed: positions are then counted from `start`.
    """
    counted = mask.segments if mask.padding is None else mask.padding
    if counted is None:
        return None
    batch, steps = inputs.shape[:2]
    keys = start + steps if isinstance(start, int) else counted.shape[-1]
    padding_only = Mask(padding=mask.padding, segments=mask.segments)
    padding_only.check(batch=batch, heads=1, queries=steps, keys=keys, name=name)
    return last_columns(count_positions(mask.padding, mask.segments), start, steps)


def last_columns(columns: Tensor, start: int | Tensor, steps: int) -> Tensor:
    """Select the columns (B, T) of the `steps` new tokens, from `start` on, of all keys so far (B, S)."""
    if isinstance(start, int):
        return columns[:, start : start + steps]
    return columns.index_select(1, start + torch.arange(steps, device=columns.device))


def cross_mask(source: Mask, target: MaskLike) -> Mask:
    """Return the default memory mask: real source tokens, and only those of the same document."""
    if source.segments is None:
        return Mask(padding=source.padding)
    query_segments = target.segments if isinstance(target, Mask) else None
    if query_segments is None:
        raise MissingValueError(
            "tgt_mask=Mask(segments=...)", "for a source of several documents", hint="or set a memory_mask"
        )
    return Mask(padding=source.padding, segments=source.segments, query_segments=query_segments)


def embed_inputs(
    embed: nn.Module,
    inputs: Tensor,
    positions: Tensor | None,
    start: int | Tensor,
    obs: Observer | None,
    **options: Any,
) -> EmbeddingOutput:
    """Embed the inputs. positions: position ids of tokens; if None, they are counted from `start`."""
    output: EmbeddingOutput
    if not isinstance(embed, TokenInput):
        output = embed(inputs, obs=obs, **options)
        return output
    steps = inputs.shape[1]
    if positions is None:
        positions = (torch.arange(steps, device=inputs.device) + start)[None]
    last = start + steps if isinstance(start, int) else None
    output = embed(inputs, positions=positions, last=last, obs=obs, **options)
    return output


def tie_weights(source: nn.Module, target: nn.Module, name: str) -> None:
    """Share the token matrix of `source` with `target`, an embedding or head called `name` in errors."""
    token = source.token if isinstance(source, TokenInput) else None
    module = target.token if isinstance(target, TokenInput) else target
    weight = getattr(module, "weight", None)
    if token is None or not isinstance(weight, Tensor):
        raise UnsupportedError(name, "a shared token matrix", hint="leave it out of `tied`")
    if weight.shape != token.weight.shape:
        raise ShapeError(
            f"the token matrix of {name}",
            weight.shape,
            f"{tuple(token.weight.shape)}, to be shared",
            hint="make the vocabularies equal or leave it out of `tied`",
        )
    module.weight = token.weight
