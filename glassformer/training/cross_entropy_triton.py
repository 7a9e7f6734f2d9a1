"""Compute cross-entropy and its gradient in one Triton kernel; the gradient overwrites the logits.

A row of logits is read once for its log-sum-exp and once more to compute the gradient. The eager
implementation makes five passes over the logits and stores the gradient separately.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, WARPS = 2, 4096, 16  # of a tile; each thread reduces its own columns


def cross_entropy_with_grad_(logits: Tensor, labels: Tensor, label_smoothing: float, ignored: int) -> Tensor:
    """Return the losses (n,) for logits (n, V) and labels (n,), and overwrite the logits with the gradient.

    ignored: the label of rows without loss.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        _kernel[(len(logits),)](
            logits,
            labels,
            losses,
            logits.shape[1],
            label_smoothing,
            ignored,
            SMOOTHED=label_smoothing > 0,
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
    label_smoothing,
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
        for start in range(0, vocab_size, ROWS * COLUMNS):
            columns = start + tile
            tl.store(
                row_logits + columns,
                tl.zeros((ROWS, COLUMNS), logits.dtype.element_ty),
                mask=columns < vocab_size,
            )
        tl.store(losses + row, 0.0)
    else:
        running_max = tl.full((COLUMNS,), -1e30, tl.float32)  # finite, so that a difference is not NaN
        total = tl.zeros((COLUMNS,), tl.float32)
        logit_sum = tl.zeros((COLUMNS,), tl.float32)
        for start in range(0, vocab_size, ROWS * COLUMNS):
            columns = start + tile
            x = tl.load(row_logits + columns, mask=columns < vocab_size, other=-1e30).to(tl.float32)
            new_max = tl.maximum(running_max, tl.max(x, 0))
            total = total * tl.exp(running_max - new_max) + tl.sum(tl.exp(x - new_max[None, :]), 0)
            if SMOOTHED:
                logit_sum += tl.sum(tl.where(columns < vocab_size, x, 0.0), 0)
            running_max = new_max
        top = tl.max(running_max, 0)
        log_sum = top + tl.log(tl.sum(total * tl.exp(running_max - top), 0))
        label_logit = tl.load(row_logits + label).to(tl.float32)
        mean = tl.sum(logit_sum, 0) / vocab_size
        tl.store(losses + row, log_sum - (1.0 - label_smoothing) * label_logit - label_smoothing * mean)
        tl.debug_barrier()  # every thread has read the label's logit before it is overwritten
        for start in range(0, vocab_size, ROWS * COLUMNS):
            columns = start + tile
            x = tl.load(row_logits + columns, mask=columns < vocab_size, other=0.0).to(tl.float32)
            grad = (
                tl.exp(x - log_sum)
                - label_smoothing / vocab_size
                - tl.where(columns == label, 1.0 - label_smoothing, 0.0)
            )
            tl.store(row_logits + columns, grad.to(logits.dtype.element_ty), mask=columns < vocab_size)
