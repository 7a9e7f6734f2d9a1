"""One step of attention: a few queries of each sentence over all it has cached. Split over the keys.

B sentences, W beams, H query heads, G key/value heads, K head width, S slots.

The beams of a sentence are queries of one attention over the sentence's slots. Every step writes W new keys
to the next W slots, and `ancestors` says which slots a beam descends from: so beams part and die without
a key being moved.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.inference.gpu.launching import counters, overlaps, processors
from glassformer.inference.gpu.look_kernel import look_kernel

_EARLY, _LATE = 8192, 4096  # elements of a tile of keys, of programs with eight warps and with four


def look(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache_k: Tensor,
    cache_v: Tensor,
    length: Tensor,
    *,
    scale: float,
    real: Tensor | None = None,
    ancestors: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    window: int | None = None,
    bias: Tensor | None = None,
    shared: int = 0,
) -> Tensor:
    """q (B, W, H, K) over the slots of cache_k, cache_v (B, G, room, K) and the new k, v (B, W, G, K).

    The new keys are written to slots length to length + W - 1, `length` being an integer (0-d) on the device.
    real (B, room): False hides a slot filled earlier (padding). ancestors (B, W, room): the slots a beam
    sees, its own new one among them; needed when W > 1, else all that are filled. rotary: cos and sin
    (..., R), of one row for all, or B rows, or B * W, by which q and k are turned.
    window and bias go by distance: the first `shared` slots hold a position each, the others W a position.
    bias (H,): a slope, times minus the distance; (H, reach): the bias of each distance. -> (B, W, H, K)
    Of these, q, k and v alone may come from the kernels just before: all else is read ahead of their end,
    and must have been there when torch last ran a kernel of its own.
    """
    batch, beams, heads, width = q.shape
    groups = cache_k.shape[1]
    if k.shape != (batch, beams, groups, width) or cache_v.shape != cache_k.shape or heads % groups:
        raise GlassformerError(
            f"keys {tuple(k.shape)} and a cache {tuple(cache_k.shape)} do not suit queries {tuple(q.shape)}"
        )
    if beams > 1 and ancestors is None:
        raise GlassformerError(f"{beams} beams need `ancestors` to say which slots each of them sees")
    return _looked(
        q,
        (k, v),
        cache_k,
        cache_v,
        length,
        scale=scale,
        real=real,
        ancestors=ancestors,
        rotary=rotary,
        window=window,
        bias=bias,
        shared=shared,
    )


def look_across(q: Tensor, k: Tensor, v: Tensor, *, scale: float, real: Tensor | None = None) -> Tensor:
    """q (B, W, H, K) over what was read, k and v (B, G, S, K), where real (B, S) says so -> (B, W, H, K)."""
    return _looked(q, None, k, v, None, scale=scale, real=real)


def _looked(
    q: Tensor,
    new: tuple[Tensor, Tensor] | None,
    cache_k: Tensor,
    cache_v: Tensor,
    length: Tensor | None,
    *,
    scale: float,
    real: Tensor | None,
    ancestors: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    window: int | None = None,
    bias: Tensor | None = None,
    shared: int = 0,
) -> Tensor:
    batch, beams, heads, width = q.shape
    groups, room = cache_k.shape[1:3]
    q = _headed(q)
    k, v = (None, None) if new is None else (_headed(new[0]), _headed(new[1]))
    each = heads // groups
    asking = max(16, triton.next_power_of_2(beams * each))
    features = max(16, triton.next_power_of_2(width))
    out = torch.empty(batch, beams, heads, width, dtype=q.dtype, device=q.device)
    early = batch * groups < 2 * processors(q)
    slots = max(16, min((_EARLY if early else _LATE) // features, triton.next_power_of_2(room)))
    splits = max(1, min(2 * processors(q) // (batch * groups), triton.cdiv(room, 2 * slots), 32))
    partial = meeting = None
    if splits > 1:
        size = batch * groups * splits * asking * (features + 2)
        partial, meeting = torch.empty(size, dtype=torch.float32, device=q.device), counters(q)
    cos = sin = None
    angles = 0
    if rotary is not None:
        cos, sin = (table.reshape(-1, table.shape[-1]).contiguous() for table in rotary)
        angles = cos.shape[0]
    overlap = overlaps(q)
    look_kernel[(batch * groups, splits)](
        q,
        k,
        v,
        cache_k,
        cache_v,
        length,
        None if real is None else real.contiguous(),
        None if ancestors is None else ancestors.contiguous(),
        cos,
        sin,
        bias,
        out,
        partial,
        meeting,
        scale,
        room,
        0 if bias is None else bias.shape[-1],
        shared,
        q.stride(0),
        q.stride(1),
        0 if k is None else k.stride(0),
        0 if k is None else k.stride(1),
        0 if v is None else v.stride(0),
        0 if v is None else v.stride(1),
        cache_k.stride(0),
        cache_k.stride(1),
        cache_k.stride(2),
        cache_v.stride(0),
        cache_v.stride(1),
        cache_v.stride(2),
        BEAMS=beams,
        GROUPS=groups,
        EACH=each,
        WIDTH=width,
        TURNED=0 if cos is None else cos.shape[-1],
        ANGLES="all" if angles <= 1 else "sentence" if angles == batch else "beam",
        WINDOW=window or 0,
        ASKING=asking,
        NEW=triton.next_power_of_2(beams),
        BIAS=None if bias is None else "slope" if bias.dim() == 1 else "table",
        FEATURES=features,
        SLOTS=slots,
        SPLITS=splits,
        EARLY=early,
        OVERLAP=overlap,
        num_warps=8 if early else 4,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


def _headed(x: Tensor) -> Tensor:
    """x (B, W, heads, K) whose heads lie side by side, as they do in the output of one fused product."""
    return x if x.stride(3) == 1 and x.stride(2) == x.shape[3] else x.contiguous()
