"""Kernels of linear layers: norms, activations, and matrix multiplications of one or a few rows.

`vector_product` multiplies one row and is bound by memory bandwidth. Each program reads a few rows of the
weight once. Many small programs request them before they wait for x, so the weight of the next kernel is
already loading while the previous kernel finishes.

`matrix_product` multiplies up to 32 rows on the tensor cores and reads the weight once:

    weight (BLOCK_O, BLOCK_D) @ x^T (BLOCK_D, BLOCK_N)  summed over D ->  out^T (BLOCK_O, BLOCK_N)

A tensor core needs at least 64 rows of its first operand and 16 columns of the second, so the weight comes
first. If the weight has few rows, several programs share them and split the columns; the last of them to
finish adds the partial sums, always in the same order.

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
    completion_counters,
    is_last_program,
    num_sms,
    supports_pdl,
    trigger_and_wait,
    trigger_next,
    wait_on_prior,
)

FUSED_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh")
_TILE_ELEMENTS = 8192  # elements of the weight (of each half if gated) that a program loads at once
_MAX_SINGLE_TILE = 4096
MAX_ROWS = 32  # with more rows, compute dominates and torch is faster
MAX_ROWS_INT8 = 128  # for which torch would have to dequantize the weights


@triton.jit
def activate(x, NAME: tl.constexpr):
    """Apply an activation to x (float32); None is the identity."""
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
    """Return the parameters of a norm module."""
    if isinstance(module, RMSNorm):
        return NormWeights(kind="rms", weight=module.scale.detach(), eps=module.eps)
    weight = module.weight.detach()
    bias = None if module.bias is None else module.bias.detach()
    return NormWeights(kind="layer", weight=weight, bias=bias, eps=module.eps)


def normalize(x: Tensor, norm: NormWeights) -> Tensor:
    """Normalize each row of x (N, D), with statistics in float32."""
    x = x.contiguous()
    out = torch.empty_like(x)
    rows, width = x.shape
    columns = triton.next_power_of_2(width)
    pdl = supports_pdl(x)
    if rows:
        _normalize[(rows,)](
            *(x, norm.weight, norm.bias, out, norm.eps),
            WIDTH=width,
            BLOCK_D=columns,
            NORM=norm.kind,
            PDL=pdl,
            num_warps=min(8, max(1, columns // 512)),
            **({"launch_pdl": True} if pdl else {}),
        )
    return out


@triton.jit
def norm_statistics(x, valid, WIDTH: tl.constexpr, NORM: tl.constexpr, eps):
    """Return mean (0 for "rms") and 1 / std (1 / rms) of a row x (float32), which is 0 outside `valid`."""
    mean = 0.0
    if NORM == "layer":
        mean = tl.sum(x, 0) / WIDTH
    centered = tl.where(valid, x - mean, 0.0)
    return mean, 1.0 / tl.sqrt(tl.sum(centered * centered, 0) / WIDTH + eps)


@triton.jit
def _normalize(
    x,
    weight,
    bias,
    out,
    eps,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    trigger_and_wait(PDL)
    start = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK_D)
    valid = column < WIDTH
    row = tl.load(x + start + column, mask=valid, other=0.0).to(tl.float32)
    mean, inv_std = norm_statistics(row, valid, WIDTH, NORM, eps)
    y = (row - mean) * inv_std
    if weight is not None:
        y *= tl.load(weight + column, mask=valid, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + column, mask=valid, other=0.0).to(tl.float32)
    tl.store(out + start + column, y.to(out.dtype.element_ty), mask=valid)


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
    """Multiply one row: x (1, D), weight (O, D), or (2 * O, D) if gated -> (1, O)."""
    out_features, width = weight.shape[0] // (2 if gated else 1), weight.shape[1]
    out = torch.empty(1, out_features, dtype=x.dtype, device=x.device)
    rows, columns, warps = _vector_shape(out_features, width, 2 if gated else 1, num_sms(x))
    pdl = supports_pdl(x)
    norm_gain = norm_shift = norm_kind = None
    eps = 0.0
    if norm is not None:
        norm_gain, norm_shift, eps, norm_kind = norm.weight, norm.bias, norm.eps, norm.kind
    _vector_kernel[(triton.cdiv(out_features, rows),)](
        *(x, weight, scale, bias, norm_gain, norm_shift, residual, out, out_features, eps),
        WIDTH=width,
        WIDTH_PADDED=triton.next_power_of_2(width),
        BLOCK_O=rows,
        BLOCK_D=columns,
        TILES=triton.cdiv(width, columns),
        EVEN=out_features % rows == 0 and width % columns == 0,
        NORM=norm_kind,
        ACTIVATION=activation,
        GATED=gated,
        PDL=pdl,
        num_warps=warps,
        **({"launch_pdl": True} if pdl else {}),
    )
    return out


def _vector_shape(out_features: int, width: int, num_halves: int, num_sms: int) -> tuple[int, int, int]:
    """Choose the tile of a program (rows, columns) and its warps: small tiles, enough to fill the GPU."""
    padded_width = triton.next_power_of_2(width)
    single_tile = padded_width <= _MAX_SINGLE_TILE and padded_width < 1.3 * width
    columns = padded_width if single_tile else min(padded_width, 2048)
    max_rows = max(1, min(_TILE_ELEMENTS // columns, out_features // ((4 if single_tile else 2) * num_sms)))
    rows = 1 << (max_rows.bit_length() - 1)
    return rows, columns, max(1, min(8, rows * columns // (2048 if single_tile else 1024)))


@triton.jit
def _load_weight(weight, o, d, out_features, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """Load rows o, columns d of the weight, without caching: nothing is read twice."""
    pointers = weight + o.to(tl.int64)[:, None] * WIDTH + d[None, :]
    if EVEN:
        return tl.load(pointers, eviction_policy="evict_first")
    valid = (o < out_features)[:, None] & (d < WIDTH)[None, :]
    return tl.load(pointers, mask=valid, other=0, eviction_policy="evict_first")


@triton.jit
def _load_norm(norm_weight, norm_bias, column, WIDTH: tl.constexpr):
    """Load weight and bias of a norm; 0 beyond the last column."""
    norm_gain = tl.where(column < WIDTH, 1.0, 0.0)
    if norm_weight is not None:
        norm_gain = tl.load(norm_weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    norm_shift = tl.zeros_like(norm_gain)
    if norm_bias is not None:
        norm_shift = tl.load(norm_bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    return norm_gain, norm_shift


@triton.jit
def _dequantize(w):
    """Convert to float32; for int8, by a bit trick that is faster than the conversion instruction."""
    if w.dtype == tl.int8:
        biased = (w.to(tl.uint8, bitcast=True) ^ 0x80).to(tl.int32) | 0x4B000000  # 2^23 + 128 + w
        return biased.to(tl.float32, bitcast=True) - 8388736.0
    return w.to(tl.float32)


@triton.jit
def _scale_and_bias(total, o, valid, scale, bias):
    if scale is not None:
        total *= tl.load(scale + o, mask=valid, other=0.0).to(tl.float32)
    if bias is not None:
        total += tl.load(bias + o, mask=valid, other=0.0).to(tl.float32)
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
    out_features,
    eps,
    WIDTH: tl.constexpr,
    WIDTH_PADDED: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILES: tl.constexpr,
    EVEN: tl.constexpr,
    NORM: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    PDL: tl.constexpr,
):
    trigger_next(PDL)
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    d = tl.arange(0, BLOCK_D)
    up_rows = weight + out_features.to(tl.int64) * WIDTH  # the second half of a gated weight
    next_w = _load_weight(weight, o, d, out_features, WIDTH, EVEN)
    if GATED:
        next_w_up = _load_weight(up_rows, o, d, out_features, WIDTH, EVEN)
    if NORM is not None and TILES == 1:
        norm_gain, norm_shift = _load_norm(norm_weight, norm_bias, d, WIDTH)
    wait_on_prior(PDL)
    is_output = o < out_features
    if residual is not None:
        residual_row = tl.load(residual + o, mask=is_output, other=0.0).to(tl.float32)
    if NORM is not None:
        all_columns = tl.arange(0, WIDTH_PADDED)
        row = tl.load(x + all_columns, mask=all_columns < WIDTH, other=0.0).to(tl.float32)
        mean, inv_std = norm_statistics(row, all_columns < WIDTH, WIDTH, NORM, eps)
    total = tl.zeros((BLOCK_O,), tl.float32)
    total_up = tl.zeros((BLOCK_O,), tl.float32)
    for tile in tl.static_range(TILES):
        column = tile * BLOCK_D + d
        w = next_w
        if GATED:
            w_up = next_w_up
        if tile + 1 < TILES:
            next_w = _load_weight(weight, o, column + BLOCK_D, out_features, WIDTH, EVEN)
            if GATED:
                next_w_up = _load_weight(up_rows, o, column + BLOCK_D, out_features, WIDTH, EVEN)
        valid = column < WIDTH
        features = tl.load(x + column, mask=valid, other=0.0).to(tl.float32)
        if NORM is not None:
            if TILES > 1:
                norm_gain, norm_shift = _load_norm(norm_weight, norm_bias, column, WIDTH)
            features = (features - mean) * inv_std * norm_gain + norm_shift
            features = features.to(x.dtype.element_ty).to(tl.float32)  # rounded like a norm's output
        total += tl.sum(_dequantize(w) * features[None, :], 1)
        if GATED:
            total_up += tl.sum(_dequantize(w_up) * features[None, :], 1)
    total = activate(_scale_and_bias(total, o, is_output, scale, bias), ACTIVATION)
    if GATED:
        total *= _scale_and_bias(total_up, o + out_features, is_output, scale, bias)
    if residual is not None:
        total += residual_row
    tl.store(out + o, total.to(out.dtype.element_ty), mask=is_output)


# ---- a few rows ---------------------------------------------------------------------------------------


class _TileShape(NamedTuple):
    """Tile of a program: rows and columns of the weight, and the number of programs that share a row."""

    out_features: int
    columns: int
    splits: int
    stages: int
    warps: int


def _matrix_shape(rows: int, out_features: int, width: int, num_halves: int, num_sms: int) -> _TileShape:
    """Choose the tile so that each multiprocessor has one or two programs, each with at least two tiles."""
    columns = min(64 if num_halves > 1 else 128, max(16, triton.next_power_of_2(width)))
    blocks, tiles = triton.cdiv(out_features, 64), triton.cdiv(width, columns)
    splits = max(1, min(num_halves * num_sms // blocks, tiles // 2, 32))
    stages = 4 if num_halves > 1 or rows > 64 else 6  # with more, 128 rows do not fit into shared memory
    return _TileShape(out_features=64, columns=columns, splits=splits, stages=stages, warps=4)


def matrix_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    gated: bool,
) -> Tensor:
    """Multiply a few rows: x (N, D), weight (O, D), or (2 * O, D) if gated -> (N, O)."""
    num_halves = 2 if gated else 1
    rows, width = x.shape
    out_features = weight.shape[0] // num_halves
    out = torch.empty(rows, out_features, dtype=x.dtype, device=x.device)
    padded = max(16, triton.next_power_of_2(rows))
    shape = _matrix_shape(padded, out_features, width, num_halves, num_sms(x))
    blocks, splits = triton.cdiv(out_features, shape.out_features), shape.splits
    partial = counter = None
    if splits > 1:
        partial = torch.empty(
            blocks * splits * num_halves * shape.out_features * padded, dtype=torch.float32, device=x.device
        )
        counter = completion_counters(x)
    pdl = supports_pdl(x)
    _matrix_kernel[(blocks, splits)](
        *(x, weight, scale, bias, residual, out, partial, counter, rows, out_features),
        WIDTH=width,
        BLOCK_N=padded,
        BLOCK_O=shape.out_features,
        BLOCK_D=shape.columns,
        SPLITS=splits,
        COLUMNS_PER_SPLIT=triton.cdiv(triton.cdiv(width, shape.columns), splits) * shape.columns,
        EVEN=width % shape.columns == 0,
        ACTIVATION=activation,
        GATED=gated,
        STAGES=shape.stages,
        PDL=pdl,
        num_warps=shape.warps,
        **({"launch_pdl": True} if pdl else {}),
    )
    return out


@triton.jit
def _scale_and_bias_rows(total, o, valid, scale, bias):
    """Multiply the sums (BLOCK_O, BLOCK_N) of rows o by their scale, and add the bias."""
    if scale is not None:
        total *= tl.load(scale + o, mask=valid, other=0.0).to(tl.float32)[:, None]
    if bias is not None:
        total += tl.load(bias + o, mask=valid, other=0.0).to(tl.float32)[:, None]
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
    counter,
    rows,
    out_features,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    COLUMNS_PER_SPLIT: tl.constexpr,
    EVEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    trigger_next(PDL)
    block, split = tl.program_id(0), tl.program_id(1)
    o = block * BLOCK_O + tl.arange(0, BLOCK_O)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    # beyond the last row, the last is read again but not stored
    weight_rows = weight + tl.minimum(o, out_features - 1).to(tl.int64)[:, None] * WIDTH
    up_rows = out_features.to(tl.int64) * WIDTH
    first_column = split * COLUMNS_PER_SPLIT
    end = tl.minimum(first_column + COLUMNS_PER_SPLIT, WIDTH)
    wait_on_prior(PDL)
    total = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    total_up = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    for start in tl.range(first_column, end, BLOCK_D, num_stages=STAGES):
        column = start + d
        if EVEN:
            w = tl.load(weight_rows + column[None, :])
            features = tl.load(x + n[:, None] * WIDTH + column[None, :], mask=(n < rows)[:, None], other=0.0)
            if GATED:
                w_up = tl.load(weight_rows + up_rows + column[None, :])
        else:
            valid = (column < WIDTH)[None, :]
            w = tl.load(weight_rows + column[None, :], mask=valid, other=0)
            features = tl.load(
                x + n[:, None] * WIDTH + column[None, :], mask=(n < rows)[:, None] & valid, other=0.0
            )
            if GATED:
                w_up = tl.load(weight_rows + up_rows + column[None, :], mask=valid, other=0)
        x_t = tl.trans(features)
        total = tl.dot(w.to(features.dtype), x_t, total)
        if GATED:
            total_up = tl.dot(w_up.to(features.dtype), x_t, total_up)
    is_last = True
    if SPLITS > 1:
        partial_size: tl.constexpr = BLOCK_O * BLOCK_N * (2 if GATED else 1)
        tile_offset = tl.arange(0, BLOCK_O)[:, None] * BLOCK_N + n[None, :]
        own_partial = partial + (block * SPLITS + split) * partial_size + tile_offset
        tl.store(own_partial, total)
        if GATED:
            tl.store(own_partial + BLOCK_O * BLOCK_N, total_up)
        is_last = is_last_program(counter + block, SPLITS)
        if is_last:
            total = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
            total_up = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
            for other in tl.static_range(SPLITS):  # unrolled, so that all loads are issued at once
                other_partial = partial + (block * SPLITS + other) * partial_size + tile_offset
                total += tl.load(other_partial, cache_modifier=".cg")
                if GATED:
                    total_up += tl.load(other_partial + BLOCK_O * BLOCK_N, cache_modifier=".cg")
            tl.store(counter + block, 0)
    if is_last:
        is_output = o < out_features
        total = activate(_scale_and_bias_rows(total, o, is_output, scale, bias), ACTIVATION)
        if GATED:
            total *= _scale_and_bias_rows(total_up, o + out_features, is_output, scale, bias)
        out_offset = n[None, :] * out_features + o[:, None]
        stored = is_output[:, None] & (n < rows)[None, :]
        if residual is not None:
            total += tl.load(residual + out_offset, mask=stored, other=0.0).to(tl.float32)
        tl.store(out + out_offset, total.to(out.dtype.element_ty), mask=stored)
