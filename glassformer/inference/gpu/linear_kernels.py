"""Kernels of linear layers: norms, activations, and products of one row or of a few with a matrix.

`vector_product` multiplies one row: each program takes a few of the matrix's rows, read once. What bounds it
is how fast the matrix comes from memory. Many small programs ask for it before they wait for the row, so
while one kernel ends, the next one's matrix is already on its way.

`matrix_product` multiplies up to 32 rows by the tensor cores, the matrix read once:

    weight (OUTS, COLUMNS) @ x^T (COLUMNS, N)  summed over the columns ->  out^T (OUTS, N)

The matrix's rows are where a tensor core needs at least 64; the few rows of x are where 16 are enough. If the
matrix has few rows, several programs share them, each with its part of the columns; the last of them to
finish adds the parts up, always in the same order.

N rows, D features in, O features out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.core.norms import LayerNorm, RMSNorm
from glassformer.inference.gpu.launch import (
    counters,
    follow,
    last_of,
    let_next_begin,
    overlaps,
    processors,
    wait_for_last,
)

FUSED_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh")
_ELEMENTS = 8192  # of the matrix (of each half, when gated), that a program asks for at once
_WIDEST = 4096
MAX_ROWS = 32  # rows; with more, the arithmetic begins to count, and a library's product is the quicker
MAX_ROWS_INT8 = 128  # for which the library would need the weights at their full size


@triton.jit
def activate(x, NAME: tl.constexpr):
    """The activation of x (float32); None is the identity."""
    if NAME == "relu":
        x = tl.maximum(x, 0.0)
    elif NAME == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif NAME == "gelu_tanh":
        # (1 + tanh u) / 2 = sigmoid(2u)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif NAME == "silu":
        x = x * tl.sigmoid(x)
    elif NAME == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    elif NAME == "tanh":
        x = 2.0 * tl.sigmoid(2.0 * x) - 1.0
    return x


@dataclass(frozen=True, kw_only=True)
class NormWeights:
    """The parameters of a norm; weight and bias are (D,)."""

    kind: Literal["rms", "layer"]
    weight: Tensor | None
    bias: Tensor | None = None
    eps: float = 1e-5


def norm_weights(module: RMSNorm | LayerNorm) -> NormWeights:
    """A model's norm as the kernels take it."""
    weight = module.weight.detach()
    if isinstance(module, RMSNorm):
        return NormWeights(kind="rms", weight=weight, eps=module.eps)
    bias = None if module.bias is None else module.bias.detach()
    return NormWeights(kind="layer", weight=weight, bias=bias, eps=module.eps)


def normalize(x: Tensor, norm: NormWeights) -> Tensor:
    """The norm of each row of x: (N, D) -> (N, D), the statistics in float32."""
    x = x.contiguous()
    out = torch.empty_like(x)
    rows, width = x.shape
    columns = triton.next_power_of_2(width)
    overlap = overlaps(x)
    if rows:
        _normalize[(rows,)](
            *(x, norm.weight, norm.bias, out, norm.eps),
            WIDTH=width,
            COLUMNS=columns,
            KIND=norm.kind,
            OVERLAP=overlap,
            num_warps=min(8, max(1, columns // 512)),
            **({"launch_pdl": True} if overlap else {}),
        )
    return out


@triton.jit
def statistics(x, real, WIDTH: tl.constexpr, KIND: tl.constexpr, eps):
    """Mean (0 for "rms") and 1 / deviation of a row x (float32), whose features outside `real` are 0."""
    mean = 0.0
    if KIND == "layer":
        mean = tl.sum(x, 0) / WIDTH
    apart = tl.where(real, x - mean, 0.0)
    return mean, 1.0 / tl.sqrt(tl.sum(apart * apart, 0) / WIDTH + eps)


@triton.jit
def _normalize(
    x,
    weight,
    bias,
    out,
    eps,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    follow(OVERLAP)
    start = tl.program_id(0).to(tl.int64) * WIDTH
    at = tl.arange(0, COLUMNS)
    real = at < WIDTH
    row = tl.load(x + start + at, mask=real, other=0.0).to(tl.float32)
    mean, inverse = statistics(row, real, WIDTH, KIND, eps)
    y = (row - mean) * inverse
    if weight is not None:
        y *= tl.load(weight + at, mask=real, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + start + at, y.to(out.dtype.element_ty), mask=real)


# ---- one row ------------------------------------------------------------------------------------------


def vector_product(
    x: Tensor,
    weight: Tensor,
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
    rows, columns, warps = _vector_shape(outs, width, 2 if gated else 1, processors(x))
    overlap = overlaps(x)
    gain = shift = kind = None
    eps = 0.0
    if norm is not None:
        gain, shift, eps, kind = norm.weight, norm.bias, norm.eps, norm.kind
    _vector_kernel[(triton.cdiv(outs, rows),)](
        *(x, weight, scale, bias, gain, shift, residual, out, outs, eps),
        WIDTH=width,
        WHOLE=triton.next_power_of_2(width),
        ROWS=rows,
        COLUMNS=columns,
        TILES=triton.cdiv(width, columns),
        EVEN=outs % rows == 0 and width % columns == 0,
        KIND=kind,
        ACTIVATION=activation,
        GATED=gated,
        OVERLAP=overlap,
        num_warps=warps,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


def _vector_shape(outs: int, width: int, halves: int, processors: int) -> tuple[int, int, int]:
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
def _finish_vector(total, o, real, scale, bias):
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
    total = activate(_finish_vector(total, o, written, scale, bias), ACTIVATION)
    if GATED:
        total *= _finish_vector(total_up, o + outs, written, scale, bias)
    if residual is not None:
        total += more
    tl.store(out + o, total.to(out.dtype.element_ty), mask=written)


# ---- a few rows ---------------------------------------------------------------------------------------


class _Shape(NamedTuple):
    """How a product is cut: a program's rows and columns of the matrix, and among how many a row is split."""

    outs: int
    columns: int
    splits: int
    stages: int
    warps: int


def _matrix_shape(rows: int, outs: int, width: int, halves: int, processors: int) -> _Shape:
    """A program or two on each processor, of at least two tiles."""
    columns = min(64 if halves > 1 else 128, max(16, triton.next_power_of_2(width)))
    blocks, tiles = triton.cdiv(outs, 64), triton.cdiv(width, columns)
    splits = max(1, min(halves * processors // blocks, tiles // 2, 32))
    return _Shape(outs=64, columns=columns, splits=splits, stages=4 if halves > 1 else 6, warps=4)


def matrix_product(
    x: Tensor,
    weight: Tensor,
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
    shape = _matrix_shape(padded, outs, width, halves, processors(x))
    blocks, splits = triton.cdiv(outs, shape.outs), shape.splits
    partial = meeting = None
    if splits > 1:
        partial = torch.empty(
            blocks * splits * halves * shape.outs * padded, dtype=torch.float32, device=x.device
        )
        meeting = counters(x)
    overlap = overlaps(x)
    _matrix_kernel[(blocks, splits)](
        *(x, weight, scale, bias, residual, out, partial, meeting, rows, outs),
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
def _finish_matrix(total, o, real, scale, bias):
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
        total = activate(_finish_matrix(total, o, written, scale, bias), ACTIVATION)
        if GATED:
            total *= _finish_matrix(total_up, o + outs, written, scale, bias)
        to = n[None, :] * outs + o[:, None]
        kept = written[:, None] & (n < rows)[None, :]
        if residual is not None:
            total += tl.load(residual + to, mask=kept, other=0.0).to(tl.float32)
        tl.store(out + to, total.to(out.dtype.element_ty), mask=kept)
