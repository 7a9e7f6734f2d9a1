"""One row through a matrix: each program multiplies a few of the matrix's rows, read once, with the row.

What bounds it is how fast the matrix comes from memory. Many small programs ask for it before they wait for
the row, so while one kernel ends, the next one's matrix is already on its way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.inference.gpu.elementwise import NormWeights, activate, statistics
from glassformer.inference.gpu.launch import let_next_begin, overlaps, processors, wait_for_last

_ELEMENTS = 8192  # of the matrix (of each half, when gated), that a program asks for at once
_WIDEST = 4096


def vector_product(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None,
    scale: Tensor | None,
    norm: NormWeights | None,
    residual: Tensor | None,
    activation: str | None,
    gated: bool,
) -> Tensor:
    """x (1, D), weight (O, D), or (2 * O, D) when gated -> (1, O)."""
    outs, width = weight.shape[0] // (2 if gated else 1), weight.shape[1]
    out = torch.empty(1, outs, dtype=x.dtype, device=x.device)
    rows, columns, warps = _shape(outs, width, 2 if gated else 1, processors(x))
    overlap = overlaps(x)
    _vector_kernel[(triton.cdiv(outs, rows),)](
        x,
        weight,
        scale,
        bias,
        None if norm is None else norm.weight,
        None if norm is None else norm.bias,
        residual,
        out,
        outs,
        0.0 if norm is None else norm.eps,
        WIDTH=width,
        WHOLE=triton.next_power_of_2(width),
        ROWS=rows,
        COLUMNS=columns,
        TILES=triton.cdiv(width, columns),
        EVEN=outs % rows == 0 and width % columns == 0,
        KIND=None if norm is None else norm.kind,
        ACTIVATION=activation,
        GATED=gated,
        OVERLAP=overlap,
        num_warps=warps,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


def _shape(outs: int, width: int, halves: int, processors: int) -> tuple[int, int, int]:
    """Rows and columns of a program's tile and the warps that read it: small, but enough to fill the GPU."""
    whole = triton.next_power_of_2(width)
    one = whole <= _WIDEST and whole < 1.3 * width
    columns = whole if one else min(whole, 2048)
    most = max(1, min(_ELEMENTS // columns, outs // ((4 if one else 2) * processors)))
    rows = 1 << (most.bit_length() - 1)
    return rows, columns, max(1, min(8, rows * columns // (2048 if one else 1024)))


@triton.jit
def _rows_at(weight, o, d, outs, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """Rows o, columns d of the matrix, as they lie; nothing keeps them in the cache: none is read twice."""
    at = weight + o.to(tl.int64)[:, None] * WIDTH + d[None, :]
    if EVEN:
        return tl.load(at, eviction_policy="evict_first")
    real = (o < outs)[:, None] & (d < WIDTH)[None, :]
    return tl.load(at, mask=real, other=0, eviction_policy="evict_first")


@triton.jit
def _features(norm_weight, norm_bias, at, WIDTH: tl.constexpr):
    """What a norm multiplies features `at` with, and adds to them: 0 beyond the last."""
    gain = tl.where(at < WIDTH, 1.0, 0.0)
    if norm_weight is not None:
        gain = tl.load(norm_weight + at, mask=at < WIDTH, other=0.0).to(tl.float32)
    shift = tl.zeros_like(gain)
    if norm_bias is not None:
        shift = tl.load(norm_bias + at, mask=at < WIDTH, other=0.0).to(tl.float32)
    return gain, shift


@triton.jit
def _as_float(w):
    """int8 by way of a float whose last bits they are, which is quicker than converting; others as usual."""
    if w.dtype == tl.int8:
        raised = (w.to(tl.uint8, bitcast=True) ^ 0x80).to(tl.int32) | 0x4B000000  # 2^23 + 128 + w
        return raised.to(tl.float32, bitcast=True) - 8388736.0
    return w.to(tl.float32)


@triton.jit
def _finished(total, o, real, scale, bias):
    if scale is not None:
        total *= tl.load(scale + o, mask=real, other=0.0).to(tl.float32)
    if bias is not None:
        total += tl.load(bias + o, mask=real, other=0.0).to(tl.float32)
    return total


@triton.jit
def _vector_kernel(
    x,
    weight,
    scale,
    bias,
    norm_weight,
    norm_bias,
    residual,
    out,
    outs,
    eps,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
    EVEN: tl.constexpr,
    KIND: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    o = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, COLUMNS)
    upper = weight + outs.to(tl.int64) * WIDTH  # the second half of a gated matrix
    coming = _rows_at(weight, o, d, outs, WIDTH, EVEN)
    if GATED:
        coming_up = _rows_at(upper, o, d, outs, WIDTH, EVEN)
    if KIND is not None and TILES == 1:
        gain, shift = _features(norm_weight, norm_bias, d, WIDTH)
    wait_for_last(OVERLAP)
    written = o < outs
    if residual is not None:
        more = tl.load(residual + o, mask=written, other=0.0).to(tl.float32)
    if KIND is not None:
        every = tl.arange(0, WHOLE)
        row = tl.load(x + every, mask=every < WIDTH, other=0.0).to(tl.float32)
        mean, inverse = statistics(row, every < WIDTH, WIDTH, KIND, eps)
    total = tl.zeros((ROWS,), tl.float32)
    total_up = tl.zeros((ROWS,), tl.float32)
    for tile in tl.static_range(TILES):
        at = tile * COLUMNS + d
        w = coming
        if GATED:
            w_up = coming_up
        if tile + 1 < TILES:
            coming = _rows_at(weight, o, at + COLUMNS, outs, WIDTH, EVEN)
            if GATED:
                coming_up = _rows_at(upper, o, at + COLUMNS, outs, WIDTH, EVEN)
        real = at < WIDTH
        features = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        if KIND is not None:
            if TILES > 1:
                gain, shift = _features(norm_weight, norm_bias, at, WIDTH)
            features = (features - mean) * inverse * gain + shift
            features = features.to(x.dtype.element_ty).to(tl.float32)  # as the norm alone would give it
        total += tl.sum(_as_float(w) * features[None, :], 1)
        if GATED:
            total_up += tl.sum(_as_float(w_up) * features[None, :], 1)
    total = activate(_finished(total, o, written, scale, bias), ACTIVATION)
    if GATED:
        total *= _finished(total_up, o + outs, written, scale, bias)
    if residual is not None:
        total += more
    tl.store(out + o, total.to(out.dtype.element_ty), mask=written)
