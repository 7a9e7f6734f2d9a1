"""Attention of one decode step, split over the keys (flash-decoding).

    k, v (B, W, G, K) of the step --rotate k--> written to the next W slots
                                                          |
      cache_k, cache_v (B, G, L, K)                       v
      +----------------+----------------+--------------+-----+
      |    split 0     |    split 1     |    split 2   | new |
      +----------------+----------------+--------------+-----+
              |                |                   |
      q --> program        program             program         one for each input, group of heads and split:
              |                |                   |            scores, mask, online softmax, weighted values
              +-------- max, sum, output ----------+
                               |
                  the last program to finish merges them --> out (B, W, H, K)

The beams of an input are queries of one attention over its slots. Every step writes W new keys to the next W
slots, and `ancestors` marks the slots that each beam descends from, so beams are reordered without moving
keys.

With few programs, latency dominates: cached keys are loaded while the previous kernel still computes the new
queries and keys, which are then inserted among them (PREFETCH). Many programs hide each other's latency, so
each is kept small: the new keys are stored and read back.

B inputs, W beams, H query heads, G key/value heads, K head width, L slots, R rotated features.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.inference.gpu.launch import (
    completion_counters,
    is_last_program,
    num_sms,
    supports_pdl,
    trigger_next,
    wait_on_prior,
)

_PREFETCH_ELEMENTS, _ELEMENTS = (
    8192,
    4096,
)  # elements of a tile of keys, for programs with eight and with four warps


def decode_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache_k: Tensor,
    cache_v: Tensor,
    length: Tensor | None,
    *,
    scale: float,
    softcap: float | None = None,
    mask: Tensor | None = None,
    ancestors: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    window: int | None = None,
    bias: Tensor | None = None,
    prompt_length: int = 0,
) -> Tensor:
    """Attend from q (B, W, H, K) to the cache (B, G, L, K) and to the new k, v (B, W, G, K) -> (B, W, H, K).

    length: the number of filled slots, an integer tensor on the device: one number, or one per input if W is
    1; the new keys are written to the next W slots. Without new keys and a length, as in cross-attention, all
    slots are visible.
    softcap: bound of the scaled scores, softcap * tanh(scores / softcap).
    mask (B, L): False masks a slot that was filled earlier (padding).
    ancestors (B, W, L): the slots that a beam attends to, including its new one; required if W > 1 beams
    append.
    rotary: cos and sin (..., R) of q and k: one row for all, B rows or B * W rows.
    window: maximum number of positions that a query attends to.
    bias: one slope per head (H,), multiplied by minus the distance, or one value per distance (H, N).
    prompt_length: the first `prompt_length` slots have one position each; later, W slots share a position.

    Only q, k and v may come from the kernel launched just before: everything else is read before that kernel
    has finished.
    """
    batch, beams, heads, width = q.shape
    groups, capacity = cache_k.shape[1:3]
    q = _contiguous_heads(q)
    k, v = (None if x is None else _contiguous_heads(x) for x in (k, v))
    heads_per_group = heads // groups
    block_q = max(16, triton.next_power_of_2(beams * heads_per_group))
    block_d = max(16, triton.next_power_of_2(width))
    out = torch.empty(batch, beams, heads, width, dtype=q.dtype, device=q.device)
    prefetch = batch * groups < 2 * num_sms(q)
    block_s = max(
        16, min((_PREFETCH_ELEMENTS if prefetch else _ELEMENTS) // block_d, triton.next_power_of_2(capacity))
    )
    splits = max(1, min(2 * num_sms(q) // (batch * groups), triton.cdiv(capacity, 2 * block_s), 32))
    partial = counter = None
    if splits > 1:
        size = batch * groups * splits * block_q * (block_d + 2)
        partial, counter = torch.empty(size, dtype=torch.float32, device=q.device), completion_counters(q)
    cos = sin = None
    rotary_rows = 0
    if rotary is not None:
        cos, sin = (table.reshape(-1, table.shape[-1]).contiguous() for table in rotary)
        rotary_rows = cos.shape[0]
    pdl = supports_pdl(q)
    mask, ancestors = (None if x is None else x.contiguous() for x in (mask, ancestors))
    tensors = (q, k, v, cache_k, cache_v, length, mask, ancestors, cos, sin, bias, out, partial, counter)
    strides = [n for x in (q, k, v) for n in ((0, 0) if x is None else x.stride()[:2])]
    _decode_attention_kernel[(batch * groups, splits)](
        *tensors,
        scale,
        capacity,
        0 if bias is None else bias.shape[-1],
        prompt_length,
        0 if length is None or length.numel() == 1 else length.stride(0),
        *strides,
        *cache_k.stride()[:3],
        *cache_v.stride()[:3],
        BEAMS=beams,
        GROUPS=groups,
        HEADS_PER_GROUP=heads_per_group,
        HEAD_DIM=width,
        ROTARY_DIM=0 if cos is None else cos.shape[-1],
        ROTARY_PER="all" if rotary_rows <= 1 else "input" if rotary_rows == batch else "beam",
        WINDOW=window or 0,
        SOFTCAP=softcap or 0.0,
        BLOCK_Q=block_q,
        BLOCK_NEW=triton.next_power_of_2(beams),
        BIAS=None if bias is None else "slope" if bias.dim() == 1 else "table",
        BLOCK_D=block_d,
        BLOCK_S=block_s,
        SPLITS=splits,
        PREFETCH=prefetch,
        PDL=pdl,
        num_warps=8 if prefetch else 4,
        **({"launch_pdl": True} if pdl else {}),
    )
    return out


def _contiguous_heads(x: Tensor) -> Tensor:
    """Return x (B, W, heads, K) with contiguous heads, as in the output of a fused projection."""
    return x if x.stride(3) == 1 and x.stride(2) == x.shape[3] else x.contiguous()


# ---- the kernel -----------------------------------------------------------------------------------------


@triton.jit
def _load_rotated(x, offset, i, mask, cos, sin, rotary_row, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr):
    """Load rows at `offset` (n, 1), features i (1, f), and rotate the first ROTARY_DIM features."""
    y = tl.load(x + offset + i, mask=mask & (i < HEAD_DIM), other=0.0)
    if ROTARY_DIM > 0:
        half: tl.constexpr = ROTARY_DIM // 2
        rotated = mask & (i < ROTARY_DIM)
        partner = tl.where(i < half, i + half, i - half)
        other = tl.load(x + offset + partner, mask=rotated, other=0.0).to(tl.float32)
        # cos and sin in the precision of x, as in the model
        c = tl.load(cos + rotary_row * ROTARY_DIM + i, mask=rotated, other=1.0).to(y.dtype).to(tl.float32)
        s = tl.load(sin + rotary_row * ROTARY_DIM + i, mask=rotated, other=0.0).to(y.dtype).to(tl.float32)
        y = (y.to(tl.float32) * c + tl.where(i < half, -other, other) * s).to(y.dtype)
    return y


@triton.jit
def _slot_position(slot, prompt_length, BEAMS: tl.constexpr):
    """Return the position of a slot: one per slot of the prompt, then one per BEAMS slots."""
    if BEAMS > 1:
        slot = tl.where(slot < prompt_length, slot, prompt_length + (slot - prompt_length) // BEAMS)
    return slot


@triton.jit
def _rotary_row(batch_index, beam, BEAMS: tl.constexpr, ROTARY_PER: tl.constexpr):
    """Return the row of cos and sin for a beam."""
    row = beam * 0
    if ROTARY_PER == "input":
        row = row + batch_index
    elif ROTARY_PER == "beam":
        row = beam + batch_index * BEAMS
    return row


@triton.jit
def _load_tile(keys, k_stride_s, values, v_stride_s, slot, i, cached_end, HEAD_DIM: tl.constexpr):
    """Load keys and values (s, f) of slots (s, 1) before `cached_end`; zeros for the others."""
    valid = (slot < cached_end) & (i < HEAD_DIM)
    key = tl.load(keys + slot * k_stride_s + i, mask=valid, other=0.0)
    return key, tl.load(values + slot * v_stride_s + i, mask=valid, other=0.0)


@triton.jit
def _select_row(rows, number, n: tl.constexpr):
    """Select row n of rows (r, f), whose indices are `number` (r, 1) -> (1, f)."""
    return tl.sum(tl.where(number == n, rows, 0.0), 0)[None, :].to(rows.dtype)


@triton.jit
def _load_partial(offset, mask, other: tl.constexpr):
    """Load a value that another program stored, bypassing the L1 cache."""
    return tl.load(offset, mask=mask, other=other, cache_modifier=".cg")


@triton.jit
def _decode_attention_kernel(
    q,
    k,
    v,
    cache_k,
    cache_v,
    length,
    mask,
    ancestors,
    cos,
    sin,
    bias,
    out,
    partial,
    counter,
    scale,
    capacity,
    max_distance,
    prompt_length,
    length_stride,
    q_stride_b,
    q_stride_w,
    k_stride_b,
    k_stride_w,
    v_stride_b,
    v_stride_w,
    cache_k_stride_b,
    cache_k_stride_g,
    cache_k_stride_s,
    cache_v_stride_b,
    cache_v_stride_g,
    cache_v_stride_s,
    BEAMS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    ROTARY_PER: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_NEW: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    SPLITS: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    trigger_next(PDL)
    program, split = tl.program_id(0), tl.program_id(1)
    batch_index, group = (program // GROUPS).to(tl.int64), program % GROUPS
    i = tl.arange(0, BLOCK_D)[None, :]
    keys = cache_k + batch_index * cache_k_stride_b + group * cache_k_stride_g
    values = cache_v + batch_index * cache_v_stride_b + group * cache_v_stride_g
    filled = capacity
    end_slot = capacity
    if length is not None:
        filled = tl.load(length + batch_index * length_stride).to(tl.int32)
        end_slot = tl.minimum(filled + BEAMS, capacity)  # including the new ones
    position = _slot_position(filled, prompt_length, BEAMS)
    first = 0
    if WINDOW > 0 and BEAMS == 1:
        first = tl.maximum(filled - WINDOW, 0) // BLOCK_S * BLOCK_S
    # at least two tiles per program, so that one program does all the work if there are few slots
    slots_per_split = tl.maximum(tl.cdiv(tl.cdiv(end_slot - first, BLOCK_S), SPLITS), 2) * BLOCK_S
    active_splits = tl.cdiv(end_slot - first, slots_per_split)
    first_slot = first + split * slots_per_split
    end = tl.minimum(first_slot + slots_per_split, end_slot)
    offsets = tl.arange(0, BLOCK_S)[:, None]
    cached_end = end
    if PREFETCH:
        cached_end = tl.minimum(end, filled)
        key, value = _load_tile(
            keys, cache_k_stride_s, values, cache_v_stride_s, first_slot + offsets, i, cached_end, HEAD_DIM
        )
        next_key, next_value = _load_tile(
            keys,
            cache_k_stride_s,
            values,
            cache_v_stride_s,
            first_slot + BLOCK_S + offsets,
            i,
            cached_end,
            HEAD_DIM,
        )
    wait_on_prior(PDL)
    if first_slot < end_slot:
        # a row is the query of one beam and one of the heads that share this group's keys
        row = tl.arange(0, BLOCK_Q)[:, None]
        beam, head = row // HEADS_PER_GROUP, group * HEADS_PER_GROUP + row % HEADS_PER_GROUP
        is_query = row < BEAMS * HEADS_PER_GROUP
        ancestors_row = batch_index * capacity * BEAMS + beam * capacity  # start of a row's ancestors
        rotary_row = _rotary_row(batch_index, beam, BEAMS, ROTARY_PER)
        offset = batch_index * q_stride_b + beam * q_stride_w + head * HEAD_DIM
        query = _load_rotated(q, offset, i, is_query, cos, sin, rotary_row, HEAD_DIM, ROTARY_DIM)
        if k is not None:
            # the first of the programs that share this group's slots stores the new keys
            new = tl.arange(0, BLOCK_NEW)[:, None]
            is_new = new < BEAMS
            new_rotary_row = _rotary_row(batch_index, new, BEAMS, ROTARY_PER)
            offset = batch_index * k_stride_b + new * k_stride_w + group * HEAD_DIM
            new_key = _load_rotated(k, offset, i, is_new, cos, sin, new_rotary_row, HEAD_DIM, ROTARY_DIM)
            offset = batch_index * v_stride_b + new * v_stride_w + group * HEAD_DIM + i
            new_value = tl.load(v + offset, mask=is_new & (i < HEAD_DIM), other=0.0)
            stored = is_new & (filled + new < capacity) & (i < HEAD_DIM) & (split == 0)
            tl.store(keys + (filled + new) * cache_k_stride_s + i, new_key, mask=stored)
            tl.store(values + (filled + new) * cache_v_stride_s + i, new_value, mask=stored)
            if not PREFETCH:
                tl.debug_barrier()  # all threads must have stored before any reads
        row_max = tl.full((BLOCK_Q,), -1e30, tl.float32)  # finite, so that differences are not NaN
        row_sum = tl.zeros((BLOCK_Q,), tl.float32)
        acc = tl.zeros((BLOCK_Q, BLOCK_D), tl.float32)
        for start in range(first_slot, end, BLOCK_S):
            if not PREFETCH:
                key, value = _load_tile(
                    keys, cache_k_stride_s, values, cache_v_stride_s, start + offsets, i, cached_end, HEAD_DIM
                )
            if k is not None and PREFETCH:  # noqa: SIM102 - a compile-time condition
                if start + BLOCK_S > filled:
                    for n in tl.static_range(BEAMS):
                        is_new_slot = start + offsets == filled + n
                        key = tl.where(is_new_slot, _select_row(new_key, new, n), key)
                        value = tl.where(is_new_slot, _select_row(new_value, new, n), value)
            slot = start + tl.arange(0, BLOCK_S)[None, :]
            visible = is_query & (slot < end)
            if mask is not None:
                cached = (slot < end) & (slot < filled)  # new tokens are not padding
                visible = visible & (tl.load(mask + batch_index * capacity + slot, mask=cached, other=1) != 0)
            if ancestors is not None:
                visible = visible & (tl.load(ancestors + ancestors_row + slot, mask=visible, other=0) != 0)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            if SOFTCAP > 0.0:  # tanh(u) = 2 sigmoid(2u) - 1
                scores = SOFTCAP * (2.0 * tl.sigmoid(scores * (2.0 / SOFTCAP)) - 1.0)
            if WINDOW > 0 or BIAS is not None:
                distance = position - _slot_position(slot, prompt_length, BEAMS)
                if WINDOW > 0:
                    visible = visible & (distance < WINDOW)
                if BIAS == "slope":
                    scores -= tl.load(bias + head).to(tl.float32) * distance.to(tl.float32)
                elif BIAS == "table":
                    clamped = tl.minimum(tl.maximum(distance, 0), max_distance - 1)
                    scores += tl.load(bias + head * max_distance + clamped, mask=visible, other=0.0).to(
                        tl.float32
                    )
            scores = tl.where(visible, scores, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, 1))
            weights = tl.exp(scores - new_max[:, None])
            rescale = tl.exp(row_max - new_max)
            row_sum = row_sum * rescale + tl.sum(weights, 1)
            acc = acc * rescale[:, None]
            acc = tl.dot(weights.to(value.dtype), value, acc, input_precision="ieee")
            row_max = new_max
            if PREFETCH:
                key, value = next_key, next_value
                next_key, next_value = _load_tile(
                    keys,
                    cache_k_stride_s,
                    values,
                    cache_v_stride_s,
                    start + 2 * BLOCK_S + offsets,
                    i,
                    cached_end,
                    HEAD_DIM,
                )
        is_last = True
        if SPLITS > 1:  # noqa: SIM102 - a compile-time condition
            if active_splits > 1:
                # the last program to finish merges the partial results
                partial_size: tl.constexpr = BLOCK_Q * (BLOCK_D + 2)
                row_offset = tl.arange(0, BLOCK_Q)
                acc_offset = row * BLOCK_D + i
                own_partial = partial + (program * SPLITS + split) * partial_size
                tl.store(own_partial + acc_offset, acc)
                tl.store(own_partial + BLOCK_Q * BLOCK_D + row_offset, row_max)
                tl.store(own_partial + BLOCK_Q * (BLOCK_D + 1) + row_offset, row_sum)
                is_last = is_last_program(counter + program, active_splits)
                if is_last:
                    row_max = tl.full((BLOCK_Q,), -1e30, tl.float32)
                    row_sum = tl.zeros((BLOCK_Q,), tl.float32)
                    acc = tl.zeros((BLOCK_Q, BLOCK_D), tl.float32)
                    for other in tl.static_range(SPLITS):  # unrolled, so that all loads are issued at once
                        other_partial = partial + (program * SPLITS + other) * partial_size
                        other_max = _load_partial(
                            other_partial + BLOCK_Q * BLOCK_D + row_offset, other < active_splits, -1e30
                        )
                        other_sum = _load_partial(
                            other_partial + BLOCK_Q * (BLOCK_D + 1) + row_offset, other < active_splits, 0.0
                        )
                        other_acc = _load_partial(other_partial + acc_offset, other < active_splits, 0.0)
                        new_max = tl.maximum(row_max, other_max)
                        rescale, other_rescale = tl.exp(row_max - new_max), tl.exp(other_max - new_max)
                        row_sum = row_sum * rescale + other_sum * other_rescale
                        acc = acc * rescale[:, None] + other_acc * other_rescale[:, None]
                        row_max = new_max
                    tl.store(counter + program, 0)
        if is_last:
            acc = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]  # fully masked rows give zeros
            out_offset = (
                (batch_index * BEAMS + beam) * (GROUPS * HEADS_PER_GROUP * HEAD_DIM) + head * HEAD_DIM + i
            )
            tl.store(out + out_offset, acc.to(out.dtype.element_ty), mask=is_query & (i < HEAD_DIM))
