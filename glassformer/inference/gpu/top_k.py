"""Top-k tokens and log-sum-exp of each row, in one pass over the logits.

Each lane keeps the maximum of its columns; the row maximum is the maximum over lanes. Then only the winning
lane rescans its columns for the next candidate, so each further token costs a few reads instead of a full
pass.

R rows, V tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.errors import InvalidValueError
from glassformer.inference.gpu.launch import num_sms, supports_pdl, trigger_and_wait

MAX_COUNT = 16


def top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` highest logits and their tokens (R, count), and log-sum-exp (R,), of logits (R, V).

    Values are float32, in descending order; tokens are int64. Of equal values, the lower token id comes
    first.
    """
    if logits.dim() != 2 or not 1 <= count <= min(MAX_COUNT, logits.shape[-1]):
        raise InvalidValueError(
            "count", count, f"1 to {MAX_COUNT}, for logits (R, V) with at least as many tokens"
        )
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, vocab_size = logits.shape
    values = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, count, dtype=torch.int64, device=logits.device)
    log_sum_exp = torch.empty(rows, dtype=torch.float32, device=logits.device)
    # few rows: many threads per row; many rows: small programs that hide each other's latency
    rows_per_sm = rows / num_sms(logits)
    warps = 16 if rows_per_sm < 1 else 8 if rows_per_sm < 4 else 4
    lanes = min(triton.next_power_of_2(vocab_size), warps * 256)
    depth = triton.next_power_of_2(triton.cdiv(vocab_size, lanes))
    pdl = supports_pdl(logits)
    if rows:
        _top_k_kernel[(rows,)](
            *(logits, values, tokens, log_sum_exp, vocab_size, logits.stride(0)),
            COUNT=count,
            LANES=lanes,
            DEPTH=depth,
            TILES=min(depth, 4),
            PDL=pdl,
            num_warps=warps,
            **({"launch_pdl": True} if pdl else {}),
        )
    return values, tokens, log_sum_exp


@triton.jit
def _sort_key(x, column):
    """Combine x (float32) and its column into an integer ordered by x, then by lower column."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)  # -0.0 is 0.0
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit
def _top_k_kernel(
    logits,
    values,
    tokens,
    log_sum_exp,
    vocab_size,
    stride,
    COUNT: tl.constexpr,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    TILES: tl.constexpr,
    PDL: tl.constexpr,
):
    trigger_and_wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * stride
    lane = tl.arange(0, LANES)
    tile = tl.arange(0, TILES)[:, None] * LANES + lane[None, :]
    lane_max = tl.full((LANES,), -1e30, tl.float32)  # finite, so that differences are not NaN
    lane_sum = tl.zeros((LANES,), tl.float32)
    best = tl.full((LANES,), float("-inf"), tl.float32)
    best_column = lane  # the first column of the lane's maximum
    for first_column in range(0, vocab_size, TILES * LANES):
        column = first_column + tile
        x = tl.load(row_logits + column, mask=column < vocab_size, other=float("-inf")).to(tl.float32)
        tile_max, depth = tl.max(x, 0, return_indices=True)
        best_column = tl.where(tile_max > best, first_column + depth * LANES + lane, best_column)
        best = tl.maximum(best, tile_max)
        new_max = tl.maximum(lane_max, tile_max)
        lane_sum = lane_sum * tl.exp(lane_max - new_max) + tl.sum(tl.exp(x - new_max[None, :]), 0)
        lane_max = new_max
    no_key: tl.constexpr = -9223372036854775807
    lane_keys = tl.where(lane < vocab_size, _sort_key(best, best_column), no_key)
    row_max = tl.max(lane_max, 0)
    tl.store(log_sum_exp + row, row_max + tl.log(tl.sum(lane_sum * tl.exp(lane_max - row_max), 0)))
    depths = tl.arange(0, DEPTH) * LANES
    for n in tl.static_range(COUNT):
        best_key = tl.max(lane_keys, 0)
        token = 0x7FFFFFFF - (best_key & 0x7FFFFFFF).to(tl.int32)
        tl.store(tokens + row * COUNT + n, token.to(tl.int64))
        tl.store(values + row * COUNT + n, tl.load(row_logits + token).to(tl.float32))
        if n + 1 < COUNT:
            column = depths + token % LANES
            x = tl.load(row_logits + column, mask=column < vocab_size, other=float("-inf")).to(tl.float32)
            keys = tl.where(column < vocab_size, _sort_key(x, column), no_key)
            next_key = tl.max(tl.where(keys < best_key, keys, no_key), 0)
            lane_keys = tl.where(lane == token % LANES, next_key, lane_keys)
