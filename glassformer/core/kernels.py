"""softmax(Q K^T * scale + bias) V under a mask: one definition, and faster ways to the same numbers.

`explicit` is the definition: every step is written out and every other kernel is tested against it.
Letters: B batch, H query heads, G key/value heads, R = H / G, T queries, S keys, K head width.
A query that may attend to nothing gives zeros, and zero gradients, in every kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.dropout import dropout as drop
from glassformer.core.errors import GlassformerError
from glassformer.core.masks import Mask, Settled

Kernel = Literal["auto", "explicit", "sdpa", "flex"]
KERNELS: tuple[Kernel, ...] = ("auto", "explicit", "sdpa", "flex")
Edit = Callable[[str, Tensor], Tensor]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Settled | Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    kernel: Kernel = "auto",
    edit: Edit | None = None,
) -> Tensor:
    """Scaled dot-product attention: q (B, H, T, K), k (B, G, S, K), v (B, G, S, V) -> (B, H, T, V).

    `bias` (1|B, H, T, S) is added to the scaled scores. `dropout` falls on the weights. `edit` sees
    (and may replace) "scores" and "weights", which exist in the explicit kernel alone.

    >>> q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)
    >>> attend(q, k, v, mask=Mask(causal=True)).shape
    torch.Size([2, 4, 3, 6])
    """
    if not isinstance(mask, Settled):
        given = Mask.of(mask)
        given.check(batch=q.shape[0], heads=q.shape[1], queries=q.shape[2], keys=k.shape[2])
        mask = given.settle(q.shape[2], k.shape[2], q.device)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if edit is not None:
        return explicit(q, k, v, mask, bias, scale, dropout, edit)
    match choose(q, kernel):
        case "explicit":
            return explicit(q, k, v, mask, bias, scale, dropout)
        case "flex":
            return flex(q, k, v, mask, bias, scale, dropout)
    return sdpa(q, k, v, mask, bias, scale, dropout)


def choose(q: Tensor, kernel: Kernel = "auto") -> Kernel:
    """The kernel that `auto` stands for."""
    if kernel not in KERNELS:
        raise GlassformerError(f"kernel '{kernel}' is not known; use one of {', '.join(KERNELS)}")
    return "sdpa" if kernel == "auto" else kernel


def scores_of(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Q K^T * scale + bias, in float32: (B, H, T, S)."""
    batch, heads, queries, width = q.shape
    groups = k.shape[1]
    grouped = q.view(batch, groups, heads // groups, queries, width)  # (B, G, R, T, K)
    dots = grouped.float() @ k.float()[:, :, None].transpose(-1, -2)  # (B, G, R, T, S)
    scores = dots.view(batch, heads, queries, k.shape[2]) * scale
    return scores if bias is None else scores + bias


def weights_of(scores: Tensor, mask: Settled) -> Tensor:
    """Soft-maxed rows under the mask; a row with nothing allowed is all zeros."""
    allowed = mask.allowed
    if mask.causal:
        allowed = Mask(causal=True).dense(scores.shape[-2], scores.shape[-1], scores.device)
    if allowed is None:
        return scores.softmax(-1)
    lowest = torch.finfo(scores.dtype).min  # finite, so that an empty row makes no NaN on the way
    return scores.masked_fill(~allowed, lowest).softmax(-1).masked_fill(~allowed, 0.0)


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Settled,
    bias: Tensor | None,
    scale: float,
    dropout: float = 0.0,
    edit: Edit | None = None,
) -> Tensor:
    """The definition, step by step, in float32."""
    scores = scores_of(q, k, bias, scale)
    if edit is not None:
        scores = edit("scores", scores)
    weights = weights_of(scores, mask)
    if edit is not None:
        weights = edit("weights", weights)
    weights = drop(weights, dropout, training=True)
    batch, heads, queries, keys = weights.shape
    groups = v.shape[1]
    grouped = weights.view(batch, groups, heads // groups, queries, keys)  # (B, G, R, T, S)
    mixed = grouped.to(v.dtype) @ v[:, :, None]  # (B, G, R, T, V)
    return mixed.reshape(batch, heads, queries, v.shape[-1])  # (B, H, T, V)


def ready(mask: Settled, bias: Tensor | None, x: Tensor, keys: int, kernel: Kernel) -> Settled:
    """The mask with what the fused kernel needs, worked out once for all layers that see x (B, T, D)."""
    if choose(x, kernel) != "sdpa":
        return mask
    return _fused_form(mask, bias, x.dtype, x.device, x.shape[0], x.shape[1], keys)


def _fused_form(
    mask: Settled,
    bias: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
    batch: int,
    queries: int,
    keys: int,
) -> Settled:
    allowed, empty = mask.allowed, None
    if allowed is not None and device.type != "cpu":
        # CUDA's kernels differ on rows with nothing allowed: let such a row attend everywhere, and zero
        # its result afterwards, so that neither way makes a NaN. The CPU's kernel gives zeros itself.
        empty = ~allowed.any(-1, keepdim=True)
        allowed = allowed | empty
    if bias is None:
        extra = allowed
    else:
        if mask.causal:
            allowed = Mask(causal=True).dense(queries, keys, device)
        extra = bias.to(dtype)
        if allowed is not None:
            extra = extra.masked_fill(~allowed, float("-inf"))
    if extra is not None:
        extra = extra.expand(batch, -1, queries, -1)
    return mask._replace(extra=extra, empty=empty)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Settled,
    bias: Tensor | None,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """torch's fused attention."""
    if mask.extra is None and (mask.allowed is not None or bias is not None):
        mask = _fused_form(mask, bias, q.dtype, q.device, q.shape[0], q.shape[2], k.shape[2])
    heads = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask.extra,
        dropout_p=dropout,
        is_causal=mask.causal and mask.extra is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return heads if mask.empty is None else heads.masked_fill(mask.empty, 0.0)


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Settled,
    bias: Tensor | None,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    raise GlassformerError("the flex kernel is not built yet")
