"""The cross-entropy of logits and its slope by one kernel, written over the logits. For a GPU, by Triton.

A row is read to find its log-sum, and read again to be replaced by its slope. The plain way goes over the
logits five times, and holds their slope beside them.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

ROWS, COLUMNS, WARPS = 2, 4096, 16  # of a tile: every thread has its own columns, whose maxima it finds alone


def replace_by_slopes(logits: Tensor, labels: Tensor, smoothing: float, ignored: int) -> Tensor:
    """logits (n, V), written over with the slope of the summed loss; labels (n,) -> losses (n,), float32."""
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
    words,
    smoothing,
    ignored,
    SMOOTHED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    scores = logits + row * words
    label = tl.load(labels + row)
    tile = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    if label == ignored:
        for begin in range(0, words, ROWS * COLUMNS):
            at = begin + tile
            tl.store(scores + at, tl.zeros((ROWS, COLUMNS), logits.dtype.element_ty), mask=at < words)
        tl.store(losses + row, 0.0)
    else:
        high = tl.full((COLUMNS,), -1e30, tl.float32)  # finite: the difference of two such is no NaN
        total = tl.zeros((COLUMNS,), tl.float32)
        plain = tl.zeros((COLUMNS,), tl.float32)
        for begin in range(0, words, ROWS * COLUMNS):
            at = begin + tile
            x = tl.load(scores + at, mask=at < words, other=-1e30).to(tl.float32)
            higher = tl.maximum(high, tl.max(x, 0))
            total = total * tl.exp(high - higher) + tl.sum(tl.exp(x - higher[None, :]), 0)
            if SMOOTHED:
                plain += tl.sum(tl.where(at < words, x, 0.0), 0)
            high = higher
        top = tl.max(high, 0)
        log_sum = top + tl.log(tl.sum(total * tl.exp(high - top), 0))
        right = tl.load(scores + label).to(tl.float32)
        mean = tl.sum(plain, 0) / words
        tl.store(losses + row, log_sum - (1.0 - smoothing) * right - smoothing * mean)
        tl.debug_barrier()  # every thread has read the label's score before it is written over
        for begin in range(0, words, ROWS * COLUMNS):
            at = begin + tile
            x = tl.load(scores + at, mask=at < words, other=0.0).to(tl.float32)
            slope = tl.exp(x - log_sum) - smoothing / words - tl.where(at == label, 1.0 - smoothing, 0.0)
            tl.store(scores + at, slope.to(logits.dtype.element_ty), mask=at < words)
