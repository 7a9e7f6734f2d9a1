"""The likeliest tokens of each row and the log of the row's sum, in one pass over the logits.

R rows, V tokens.

Every lane keeps the best of the columns it reads. The best of the lanes is the best of the row; its lane then
looks at its columns again for its next, so that each further token costs a few reads and not a pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.errors import InvalidValueError
from glassformer.inference.gpu.launch import follow, overlaps, processors

MOST = 16


def top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """logits (R, V) -> the `count` highest, falling, and their tokens (R, count), and log(sum(exp)) (R,).

    Values are float32, tokens int64; of equals the first comes first.
    """
    if logits.dim() != 2 or not 1 <= count <= min(MOST, logits.shape[-1]):
        raise InvalidValueError(
            "count", count, f"1 to {MOST}, for logits (R, V) with at least as many tokens"
        )
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, words = logits.shape
    values = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, count, dtype=torch.int64, device=logits.device)
    sums = torch.empty(rows, dtype=torch.float32, device=logits.device)
    # few rows: many threads for each; many: small programs, that hide each other's waits
    crowd = rows / processors(logits)
    warps = 16 if crowd < 1 else 8 if crowd < 4 else 4
    lanes = min(triton.next_power_of_2(words), warps * 256)
    depth = triton.next_power_of_2(triton.cdiv(words, lanes))
    overlap = overlaps(logits)
    if rows:
        _top_k_kernel[(rows,)](
            *(logits, values, tokens, sums, words, logits.stride(0)),
            COUNT=count,
            LANES=lanes,
            DEPTH=depth,
            AT_ONCE=min(depth, 4),
            OVERLAP=overlap,
            num_warps=warps,
            **({"launch_pdl": True} if overlap else {}),
        )
    return values, tokens, sums


@triton.jit
def _ranked(x, at):
    """x (float32) and its column as one number that grows with x, and with equal x falls with the column."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)  # -0.0 is 0.0
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - at).to(tl.int64)


@triton.jit
def _top_k_kernel(
    logits,
    values,
    tokens,
    sums,
    words,
    stride,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    AT_ONCE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    scores = logits + row * stride
    lane = tl.arange(0, LANES)
    tile = tl.arange(0, AT_ONCE)[:, None] * LANES + lane[None, :]
    high = tl.full((LANES,), -1e30, tl.float32)  # finite: the difference of two such is no NaN
    total = tl.zeros((LANES,), tl.float32)
    most = tl.full((LANES,), float("-inf"), tl.float32)
    at_most = lane  # the column of a lane's best, the first of equals
    for begin in range(0, words, AT_ONCE * LANES):
        at = begin + tile
        x = tl.load(scores + at, mask=at < words, other=float("-inf")).to(tl.float32)
        found, depth = tl.max(x, 0, return_indices=True)
        at_most = tl.where(found > most, begin + depth * LANES + lane, at_most)
        most = tl.maximum(most, found)
        higher = tl.maximum(high, found)
        total = total * tl.exp(high - higher) + tl.sum(tl.exp(x - higher[None, :]), 0)
        high = higher
    none: tl.constexpr = -9223372036854775807
    leading = tl.where(lane < words, _ranked(most, at_most), none)
    top = tl.max(high, 0)
    tl.store(sums + row, top + tl.log(tl.sum(total * tl.exp(high - top), 0)))
    depths = tl.arange(0, DEPTH) * LANES
    for n in tl.static_range(COUNT):
        first = tl.max(leading, 0)
        token = 0x7FFFFFFF - (first & 0x7FFFFFFF).to(tl.int32)
        tl.store(tokens + row * COUNT + n, token.to(tl.int64))
        tl.store(values + row * COUNT + n, tl.load(scores + token).to(tl.float32))
        if n + 1 < COUNT:
            at = depths + token % LANES
            x = tl.load(scores + at, mask=at < words, other=float("-inf")).to(tl.float32)
            rank = tl.where(at < words, _ranked(x, at), none)
            second = tl.max(tl.where(rank < first, rank, none), 0)
            leading = tl.where(lane == token % LANES, second, leading)
