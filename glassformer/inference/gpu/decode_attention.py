"""One decode step of attention: a few queries of each input over all it has cached. Split over the keys.

    q (B, W, H, K) --rotate--> scores over slots of cache_k (B, G, L, K) --softmax--> mix of cache_v (B, G, L,
    K) k, v (B, W, G, K) of the step --rotate k--> written to the next W slots first

The beams of an input are queries of one attention over its slots. Every step writes W new keys to the next W
slots, and `ancestors` says which slots a beam descends from: beams are reordered without moving a key.

There is one program for each input, group of heads and part of the slots. With few programs, latency counts:
what was cached earlier is fetched while the previous kernel still computes the new queries and keys, which
then take their place among the fetched ones (EARLY). With many, they hide each other's latency and each is
kept small: the new keys are stored and read back.

B inputs, W beams, H query heads, G key/value heads, K head width, L slots.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.inference.gpu.launch import (
    counters,
    last_of,
    let_next_begin,
    overlaps,
    processors,
    wait_for_last,
)

_EARLY, _LATE = 8192, 4096  # elements of a tile of keys, of programs with eight warps and with four


def decode_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache_k: Tensor,
    cache_v: Tensor,
    length: Tensor | None,
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
    Without new ones and a length, as in cross-attention, all slots are seen.
    real (B, room): False hides a slot filled earlier (padding). ancestors (B, W, room): the slots a beam
    sees, its own new one among them; needed when W > 1 beams append, else all that are filled. rotary: cos
    and sin (..., R), of one row for all, or B rows, or B * W, by which q and k are turned.
    window and bias go by distance: the first `shared` slots hold a position each, the others W a position.
    bias (H,): a slope, times minus the distance; (H, reach): the bias of each distance. -> (B, W, H, K)
    Of these, q, k and v alone may come from the kernels just before: all else is read ahead of their end,
    and must have been there when torch last ran a kernel of its own.
    """
    batch, beams, heads, width = q.shape
    groups, room = cache_k.shape[1:3]
    q = _headed(q)
    k, v = (None if x is None else _headed(x) for x in (k, v))
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
    real, ancestors = (None if x is None else x.contiguous() for x in (real, ancestors))
    tensors = (q, k, v, cache_k, cache_v, length, real, ancestors, cos, sin, bias, out, partial, meeting)
    strides = [n for x in (q, k, v) for n in ((0, 0) if x is None else x.stride()[:2])]
    _decode_attention_kernel[(batch * groups, splits)](
        *tensors,
        scale,
        room,
        0 if bias is None else bias.shape[-1],
        shared,
        *strides,
        *cache_k.stride()[:3],
        *cache_v.stride()[:3],
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


# ---- the kernel -----------------------------------------------------------------------------------------


@triton.jit
def _turned(x, at, i, real, cos, sin, angle, WIDTH: tl.constexpr, TURNED: tl.constexpr):
    """Rows x + at (n, 1), features i (1, f), the first TURNED of them turned by their angle's row."""
    y = tl.load(x + at + i, mask=real & (i < WIDTH), other=0.0)
    if TURNED > 0:
        half: tl.constexpr = TURNED // 2
        turning = real & (i < TURNED)
        partner = tl.where(i < half, i + half, i - half)
        other = tl.load(x + at + partner, mask=turning, other=0.0).to(tl.float32)
        # the angles in the precision of what they turn, as in the model
        c = tl.load(cos + angle * TURNED + i, mask=turning, other=1.0).to(y.dtype).to(tl.float32)
        s = tl.load(sin + angle * TURNED + i, mask=turning, other=0.0).to(y.dtype).to(tl.float32)
        y = (y.to(tl.float32) * c + tl.where(i < half, -other, other) * s).to(y.dtype)
    return y


@triton.jit
def _position(slot, shared, BEAMS: tl.constexpr):
    """Where a slot stands: the shared ones hold a position each, the others BEAMS a position."""
    if BEAMS > 1:
        slot = tl.where(slot < shared, slot, shared + (slot - shared) // BEAMS)
    return slot


@triton.jit
def _angle(sentence, beam, BEAMS: tl.constexpr, ANGLES: tl.constexpr):
    """The row of cos and sin that belongs to a beam of the sentence."""
    row = beam * 0
    if ANGLES == "sentence":
        row = row + sentence
    elif ANGLES == "beam":
        row = beam + sentence * BEAMS
    return row


@triton.jit
def _kept(keys, key_slot, values, value_slot, slot, i, last, WIDTH: tl.constexpr):
    """Keys and values (s, f) of slots (s, 1) before `last`, zeros for the others."""
    there = (slot < last) & (i < WIDTH)
    key = tl.load(keys + slot * key_slot + i, mask=there, other=0.0)
    return key, tl.load(values + slot * value_slot + i, mask=there, other=0.0)


@triton.jit
def _row(rows, number, n: tl.constexpr):
    """Row n of a few rows (r, f), whose numbers are (r, 1) -> (1, f)."""
    return tl.sum(tl.where(number == n, rows, 0.0), 0)[None, :].to(rows.dtype)


@triton.jit
def _part(at, real, other: tl.constexpr):
    """What another program has stored, past this processor's own cache; `other` where none has."""
    return tl.load(at, mask=real, other=other, cache_modifier=".cg")


@triton.jit
def _decode_attention_kernel(
    q,
    k,
    v,
    cache_k,
    cache_v,
    length,
    real,
    ancestors,
    cos,
    sin,
    bias,
    out,
    partial,
    meeting,
    scale,
    room,
    reach,
    shared,
    q_sentence,
    q_beam,
    k_sentence,
    k_beam,
    v_sentence,
    v_beam,
    cache_k_sentence,
    cache_k_group,
    cache_k_slot,
    cache_v_sentence,
    cache_v_group,
    cache_v_slot,
    BEAMS: tl.constexpr,
    GROUPS: tl.constexpr,
    EACH: tl.constexpr,
    WIDTH: tl.constexpr,
    TURNED: tl.constexpr,
    ANGLES: tl.constexpr,
    WINDOW: tl.constexpr,
    ASKING: tl.constexpr,
    NEW: tl.constexpr,
    BIAS: tl.constexpr,
    FEATURES: tl.constexpr,
    SLOTS: tl.constexpr,
    SPLITS: tl.constexpr,
    EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    which, split = tl.program_id(0), tl.program_id(1)
    sentence, group = (which // GROUPS).to(tl.int64), which % GROUPS
    i = tl.arange(0, FEATURES)[None, :]
    keys = cache_k + sentence * cache_k_sentence + group * cache_k_group
    values = cache_v + sentence * cache_v_sentence + group * cache_v_group
    filled = room
    full = room
    if length is not None:
        filled = tl.load(length).to(tl.int32)
        full = tl.minimum(filled + BEAMS, room)  # with the new ones
    here = _position(filled, shared, BEAMS)
    first = 0
    if WINDOW > 0 and BEAMS == 1:
        first = tl.maximum(filled - WINDOW, 0) // SLOTS * SLOTS
    # two tiles or more for a program, which then works alone while there are few slots
    per = tl.maximum(tl.cdiv(tl.cdiv(full - first, SLOTS), SPLITS), 2) * SLOTS
    working = tl.cdiv(full - first, per)
    begin = first + split * per
    end = tl.minimum(begin + per, full)
    down = tl.arange(0, SLOTS)[:, None]
    last = end
    if EARLY:
        last = tl.minimum(end, filled)
        key, value = _kept(keys, cache_k_slot, values, cache_v_slot, begin + down, i, last, WIDTH)
        later_key, later_value = _kept(
            keys, cache_k_slot, values, cache_v_slot, begin + SLOTS + down, i, last, WIDTH
        )
    wait_for_last(OVERLAP)
    if begin < full:
        # a row asks for one beam and one of the heads that share this group's keys
        row = tl.arange(0, ASKING)[:, None]
        beam, head = row // EACH, group * EACH + row % EACH
        asks = row < BEAMS * EACH
        mine = sentence * room * BEAMS + beam * room  # where a row's ancestors begin
        angle = _angle(sentence, beam, BEAMS, ANGLES)
        at = sentence * q_sentence + beam * q_beam + head * WIDTH
        query = _turned(q, at, i, asks, cos, sin, angle, WIDTH, TURNED)
        if k is not None:
            # the first program of those that share this group's slots keeps the new keys for the next steps
            fresh = tl.arange(0, NEW)[:, None]
            exists = fresh < BEAMS
            bend = _angle(sentence, fresh, BEAMS, ANGLES)
            at = sentence * k_sentence + fresh * k_beam + group * WIDTH
            new_key = _turned(k, at, i, exists, cos, sin, bend, WIDTH, TURNED)
            at = sentence * v_sentence + fresh * v_beam + group * WIDTH + i
            new_value = tl.load(v + at, mask=exists & (i < WIDTH), other=0.0)
            fits = exists & (filled + fresh < room) & (i < WIDTH) & (split == 0)
            tl.store(keys + (filled + fresh) * cache_k_slot + i, new_key, mask=fits)
            tl.store(values + (filled + fresh) * cache_v_slot + i, new_value, mask=fits)
            if not EARLY:
                tl.debug_barrier()  # every thread has stored before one of them reads
        high = tl.full((ASKING,), -1e30, tl.float32)  # finite: the difference of two such is no NaN
        total = tl.zeros((ASKING,), tl.float32)
        mixed = tl.zeros((ASKING, FEATURES), tl.float32)
        for start in range(begin, end, SLOTS):
            if not EARLY:
                key, value = _kept(keys, cache_k_slot, values, cache_v_slot, start + down, i, last, WIDTH)
            if k is not None and EARLY:  # noqa: SIM102 - known when compiled, unlike the other
                if start + SLOTS > filled:
                    for n in tl.static_range(BEAMS):
                        here_n = start + down == filled + n
                        key = tl.where(here_n, _row(new_key, fresh, n), key)
                        value = tl.where(here_n, _row(new_value, fresh, n), value)
            slot = start + tl.arange(0, SLOTS)[None, :]
            seen = asks & (slot < end)
            if real is not None:
                told = (slot < end) & (slot < filled)  # what is new is real
                seen = seen & (tl.load(real + sentence * room + slot, mask=told, other=1) != 0)
            if ancestors is not None:
                seen = seen & (tl.load(ancestors + mine + slot, mask=seen, other=0) != 0)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            if WINDOW > 0 or BIAS is not None:
                distance = here - _position(slot, shared, BEAMS)
                if WINDOW > 0:
                    seen = seen & (distance < WINDOW)
                if BIAS == "slope":
                    scores -= tl.load(bias + head).to(tl.float32) * distance.to(tl.float32)
                elif BIAS == "table":
                    far = tl.minimum(tl.maximum(distance, 0), reach - 1)
                    scores += tl.load(bias + head * reach + far, mask=seen, other=0.0).to(tl.float32)
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(high, tl.max(scores, 1))
            weights = tl.exp(scores - higher[:, None])
            shrink = tl.exp(high - higher)
            total = total * shrink + tl.sum(weights, 1)
            mixed = mixed * shrink[:, None]
            mixed = tl.dot(weights.to(value.dtype), value, mixed, input_precision="ieee")
            high = higher
            if EARLY:
                key, value = later_key, later_value
                later_key, later_value = _kept(
                    keys, cache_k_slot, values, cache_v_slot, start + 2 * SLOTS + down, i, last, WIDTH
                )
        done = True
        if SPLITS > 1:  # noqa: SIM102 - known when compiled, unlike the other
            if working > 1:
                # the last program to finish brings every part to one scale and adds them up
                part: tl.constexpr = ASKING * (FEATURES + 2)
                flat = tl.arange(0, ASKING)
                inside = row * FEATURES + i
                own = partial + (which * SPLITS + split) * part
                tl.store(own + inside, mixed)
                tl.store(own + ASKING * FEATURES + flat, high)
                tl.store(own + ASKING * (FEATURES + 1) + flat, total)
                done = last_of(meeting + which, working)
                if done:
                    high = tl.full((ASKING,), -1e30, tl.float32)
                    total = tl.zeros((ASKING,), tl.float32)
                    mixed = tl.zeros((ASKING, FEATURES), tl.float32)
                    for other in tl.static_range(SPLITS):  # unrolled: all parts are asked for at once
                        theirs = partial + (which * SPLITS + other) * part
                        top = _part(theirs + ASKING * FEATURES + flat, other < working, -1e30)
                        sums = _part(theirs + ASKING * (FEATURES + 1) + flat, other < working, 0.0)
                        parts = _part(theirs + inside, other < working, 0.0)
                        higher = tl.maximum(high, top)
                        shrink, grow = tl.exp(high - higher), tl.exp(top - higher)
                        total = total * shrink + sums * grow
                        mixed = mixed * shrink[:, None] + parts * grow[:, None]
                        high = higher
                    tl.store(meeting + which, 0)
        if done:
            mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]  # who sees nothing gives zeros
            place = (sentence * BEAMS + beam) * (GROUPS * EACH * WIDTH) + head * WIDTH + i
            tl.store(out + place, mixed.to(out.dtype.element_ty), mask=asks & (i < WIDTH))
