"""Cross-entropy of logits and its gradient in one Triton kernel, written over the logits.

A row is read once for its log-sum-exp, and again to be replaced by its gradient. The plain implementation
passes over the logits five times and stores the gradient separately.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, WARPS = 2, 4096, 16  # of a tile: every thread reduces its own columns


def cross_entropy_with_grad_(logits: Tensor, labels: Tensor, smoothing: float, ignored: int) -> Tensor:
    """Losses (n,) of logits (n, V), which are overwritten with their gradient, and labels (n,)."""
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        _kernel[(len(logits),)](
            logits,
            labels,
            losses,
            logits.shape[1],
            smoothing,
            ignored,
            SMOOTHED=smoothing > 0,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            num_warps=WARPS,
        )
    return losses


@triton.jit
def _kernel(
    logits,
    labels,
    losses,
    vocab_size,
    smoothing,
    ignored,
    SMOOTHED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * vocab_size
    label = tl.load(labels + row)
    tile = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    if label == ignored:
        for begin in range(0, vocab_size, ROWS * COLUMNS):
            at = begin + tile
            tl.store(
                row_logits + at, tl.zeros((ROWS, COLUMNS), logits.dtype.element_ty), mask=at < vocab_size
            )
        tl.store(losses + row, 0.0)
    else:
        high = tl.full((COLUMNS,), -1e30, tl.float32)  # finite, so that a difference is not NaN
        total = tl.zeros((COLUMNS,), tl.float32)
        plain = tl.zeros((COLUMNS,), tl.float32)
        for begin in range(0, vocab_size, ROWS * COLUMNS):
            at = begin + tile
            x = tl.load(row_logits + at, mask=at < vocab_size, other=-1e30).to(tl.float32)
            higher = tl.maximum(high, tl.max(x, 0))
            total = total * tl.exp(high - higher) + tl.sum(tl.exp(x - higher[None, :]), 0)
            if SMOOTHED:
                plain += tl.sum(tl.where(at < vocab_size, x, 0.0), 0)
            high = higher
        top = tl.max(high, 0)
        log_sum = top + tl.log(tl.sum(total * tl.exp(high - top), 0))
        right = tl.load(row_logits + label).to(tl.float32)
        mean = tl.sum(plain, 0) / vocab_size
        tl.store(losses + row, log_sum - (1.0 - smoothing) * right - smoothing * mean)
        tl.debug_barrier()  # every thread has read the label's logit before it is overwritten
        for begin in range(0, vocab_size, ROWS * COLUMNS):
            at = begin + tile
            x = tl.load(row_logits + at, mask=at < vocab_size, other=0.0).to(tl.float32)
            grad = tl.exp(x - log_sum) - smoothing / vocab_size - tl.where(at == label, 1.0 - smoothing, 0.0)
            tl.store(row_logits + at, grad.to(logits.dtype.element_ty), mask=at < vocab_size)
