"""Attention within the windows of a 2-D grid of tokens, as one kernel.

A program loads the queries, keys and values of a window directly from the grid, shifted or not, so windows
are never copied, and adds the bias of a head while it is in registers.

B images, T = rows * columns tokens, H heads, K head width, D = H * K, W = size * size tokens of a window.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.core.vision.attention import WindowLayout

_WINDOWS = 4  # of a program, which loads the bias only once


def window_attention(qkv: Tensor, bias: Tensor, layout: WindowLayout, scale: float) -> Tensor:
    """Attend within windows: qkv (B, T, 3 * D), bias (H, W, W) -> (B, T, D).

    The windows of the layout must divide its grid without padding.
    """
    batch, tokens, width = qkv.shape
    heads, size = bias.shape[0], layout.size
    head_dim = width // (3 * heads)
    out = torch.empty(batch, tokens, width // 3, dtype=qkv.dtype, device=qkv.device)
    windows = batch * layout.num_windows
    _window_kernel[(heads, triton.cdiv(windows, _WINDOWS))](
        *(qkv.contiguous(), bias.contiguous(), out, windows, scale),
        ROWS=layout.grid[0],
        COLUMNS=layout.grid[1],
        SIZE=size,
        SHIFT=layout.shift,
        HEADS=heads,
        HEAD_DIM=head_dim,
        BLOCK_W=max(16, triton.next_power_of_2(size * size)),
        BLOCK_K=max(16, triton.next_power_of_2(head_dim)),
        WINDOWS=_WINDOWS,
        num_warps=4,
    )
    return out


@triton.jit
def _window_kernel(
    qkv,
    bias,
    out,
    windows,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    SHIFT: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WINDOWS: tl.constexpr,
):
    head = tl.program_id(0)
    token = tl.arange(0, BLOCK_W)
    feature = tl.arange(0, BLOCK_K)
    real = token < SIZE * SIZE
    pairs = head * SIZE * SIZE * SIZE * SIZE + token[:, None] * SIZE * SIZE + token[None, :]
    inside = real[:, None] & real[None, :]
    head_bias = tl.load(bias + pairs, mask=inside, other=float("-inf")).to(tl.float32)
    head_bias = tl.where(real[:, None], head_bias, 0.0)  # a row of -inf only would give NaN
    across: tl.constexpr = COLUMNS // SIZE
    for n in range(WINDOWS):
        window = tl.program_id(1) * WINDOWS + n
        exists = window < windows
        image = window // (ROWS // SIZE * across)
        index = window % (ROWS // SIZE * across)
        row = index // across * SIZE + token // SIZE
        column = index % across * SIZE + token % SIZE
        cell = (
            image.to(tl.int64) * ROWS * COLUMNS + (row + SHIFT) % ROWS * COLUMNS + (column + SHIFT) % COLUMNS
        )
        loaded = (real & exists)[:, None] & (feature < HEAD_DIM)[None, :]
        start = cell[:, None] * (3 * HEADS * HEAD_DIM) + head * HEAD_DIM + feature[None, :]
        q = tl.load(qkv + start, mask=loaded, other=0.0)
        k = tl.load(qkv + start + HEADS * HEAD_DIM, mask=loaded, other=0.0)
        v = tl.load(qkv + start + 2 * HEADS * HEAD_DIM, mask=loaded, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale + head_bias
        if SHIFT > 0:  # tokens of different regions are adjacent only by the cyclic shift
            region = 3 * ((row >= ROWS - SIZE).to(tl.int32) + (row >= ROWS - SHIFT).to(tl.int32))
            region += (column >= COLUMNS - SIZE).to(tl.int32) + (column >= COLUMNS - SHIFT).to(tl.int32)
            apart = (region[:, None] != region[None, :]) & inside
            scores = tl.where(apart, float("-inf"), scores)
        weights = tl.exp(scores - tl.max(scores, 1)[:, None])
        weights = weights / tl.sum(weights, 1)[:, None]
        heads = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        target = cell[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM + feature[None, :]
        tl.store(out + target, heads.to(v.dtype), mask=loaded)
