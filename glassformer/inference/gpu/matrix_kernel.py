"""Up to 32 rows through a matrix by the tensor cores, the matrix read once.

    weight (OUTS, COLUMNS) @ x^T (COLUMNS, N)  summed over the columns ->  out^T (OUTS, N)

The matrix's rows stand where a tensor core wants at least 64; the few rows of x stand where 16 are enough.
Where the matrix has few rows, several programs share them, each with its part of the columns; the last of
them to finish adds the parts up, always in the same order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.inference.gpu.elementwise import activate
from glassformer.inference.gpu.launch import (
    counters,
    last_of,
    let_next_begin,
    overlaps,
    processors,
    wait_for_last,
)

MAX_ROWS = 32  # rows; with more, the arithmetic begins to count, and a library's product is the quicker
MAX_ROWS_INT8 = 128  # for which the library would need the weights at their full size


class _Shape(NamedTuple):
    """How a product is cut: a program's rows and columns of the matrix, and among how many a row is split."""

    outs: int
    columns: int
    splits: int
    stages: int
    warps: int


def _shape(rows: int, outs: int, width: int, halves: int, processors: int) -> _Shape:
    """A program or two on each processor, of at least two tiles."""
    columns = min(64 if halves > 1 else 128, max(16, triton.next_power_of_2(width)))
    blocks, tiles = triton.cdiv(outs, 64), triton.cdiv(width, columns)
    splits = max(1, min(halves * processors // blocks, tiles // 2, 32))
    return _Shape(outs=64, columns=columns, splits=splits, stages=4 if halves > 1 else 6, warps=4)


def matrix_product(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    gated: bool,
) -> Tensor:
    """x (N, D), weight (O, D), or (2 * O, D) when gated -> (N, O)."""
    halves = 2 if gated else 1
    rows, width = x.shape
    outs = weight.shape[0] // halves
    out = torch.empty(rows, outs, dtype=x.dtype, device=x.device)
    padded = max(16, triton.next_power_of_2(rows))
    shape = _shape(padded, outs, width, halves, processors(x))
    blocks, splits = triton.cdiv(outs, shape.outs), shape.splits
    partial = meeting = None
    if splits > 1:
        partial = torch.empty(
            blocks * splits * halves * shape.outs * padded, dtype=torch.float32, device=x.device
        )
        meeting = counters(x)
    overlap = overlaps(x)
    _matrix_kernel[(blocks, splits)](
        x,
        weight,
        scale,
        bias,
        residual,
        out,
        partial,
        meeting,
        rows,
        outs,
        WIDTH=width,
        ROWS=padded,
        OUTS=shape.outs,
        COLUMNS=shape.columns,
        SPLITS=splits,
        PER=triton.cdiv(triton.cdiv(width, shape.columns), splits) * shape.columns,
        EVEN=width % shape.columns == 0,
        ACTIVATION=activation,
        GATED=gated,
        STAGES=shape.stages,
        OVERLAP=overlap,
        num_warps=shape.warps,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


@triton.jit
def _finished(total, o, real, scale, bias):
    """Sums (OUTS, ROWS) of the matrix's rows o, scaled and shifted."""
    if scale is not None:
        total *= tl.load(scale + o, mask=real, other=0.0).to(tl.float32)[:, None]
    if bias is not None:
        total += tl.load(bias + o, mask=real, other=0.0).to(tl.float32)[:, None]
    return total


@triton.jit
def _matrix_kernel(
    x,
    weight,
    scale,
    bias,
    residual,
    out,
    partial,
    meeting,
    rows,
    outs,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    PER: tl.constexpr,
    EVEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    block, split = tl.program_id(0), tl.program_id(1)
    o = block * OUTS + tl.arange(0, OUTS)
    n = tl.arange(0, ROWS)
    d = tl.arange(0, COLUMNS)
    # past the last row the last is read again, and not stored
    lines = weight + tl.minimum(o, outs - 1).to(tl.int64)[:, None] * WIDTH
    upper = outs.to(tl.int64) * WIDTH
    begin = split * PER
    end = tl.minimum(begin + PER, WIDTH)
    wait_for_last(OVERLAP)
    total = tl.zeros((OUTS, ROWS), tl.float32)
    total_up = tl.zeros((OUTS, ROWS), tl.float32)
    for start in tl.range(begin, end, COLUMNS, num_stages=STAGES):
        at = start + d
        if EVEN:
            w = tl.load(lines + at[None, :])
            features = tl.load(x + n[:, None] * WIDTH + at[None, :], mask=(n < rows)[:, None], other=0.0)
            if GATED:
                w_up = tl.load(lines + upper + at[None, :])
        else:
            real = (at < WIDTH)[None, :]
            w = tl.load(lines + at[None, :], mask=real, other=0)
            features = tl.load(
                x + n[:, None] * WIDTH + at[None, :], mask=(n < rows)[:, None] & real, other=0.0
            )
            if GATED:
                w_up = tl.load(lines + upper + at[None, :], mask=real, other=0)
        turned = tl.trans(features)
        total = tl.dot(w.to(features.dtype), turned, total)
        if GATED:
            total_up = tl.dot(w_up.to(features.dtype), turned, total_up)
    done = True
    if SPLITS > 1:
        part: tl.constexpr = OUTS * ROWS * (2 if GATED else 1)
        inside = tl.arange(0, OUTS)[:, None] * ROWS + n[None, :]
        own = partial + (block * SPLITS + split) * part + inside
        tl.store(own, total)
        if GATED:
            tl.store(own + OUTS * ROWS, total_up)
        done = last_of(meeting + block, SPLITS)
        if done:
            total = tl.zeros((OUTS, ROWS), tl.float32)
            total_up = tl.zeros((OUTS, ROWS), tl.float32)
            for other in tl.static_range(SPLITS):  # unrolled: all parts are asked for at once
                theirs = partial + (block * SPLITS + other) * part + inside
                total += tl.load(theirs, cache_modifier=".cg")
                if GATED:
                    total_up += tl.load(theirs + OUTS * ROWS, cache_modifier=".cg")
            tl.store(meeting + block, 0)
    if done:
        written = o < outs
        total = activate(_finished(total, o, written, scale, bias), ACTIVATION)
        if GATED:
            total *= _finished(total_up, o + outs, written, scale, bias)
        to = n[None, :] * outs + o[:, None]
        kept = written[:, None] & (n < rows)[None, :]
        if residual is not None:
            total += tl.load(residual + to, mask=kept, other=0.0).to(tl.float32)
        tl.store(out + to, total.to(out.dtype.element_ty), mask=kept)
