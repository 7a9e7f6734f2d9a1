"""Attention kernels: softmax(softcap(Q K^T * scale) + bias) V under a mask.

`explicit` is the reference: it computes every step, and the other kernels are tested against it. `sdpa` is
torch's scaled_dot_product_attention, `flex` is FlexAttention (block-sparse). `prepare_mask` chooses a kernel
and converts the mask, once for all layers, to the form that the kernel needs. In every kernel, the output and
the gradients of a fully masked query are zero.

B batch, H query heads, G key/value heads, R = H / G, T queries, S keys, K head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.backend import apply_softcap
from glassformer.core.backend import dropout as drop
from glassformer.core.masks import Mask
from glassformer.core.precision import upcast
from glassformer.errors import InvalidValueError, ShapeError, UnknownNameError, UnsupportedError

Kernel = Literal["auto", "explicit", "sdpa", "flex"]
KERNELS: tuple[Kernel, ...] = ("auto", "explicit", "sdpa", "flex")
AttentionEdit = Callable[[str, Tensor], Tensor]

# from here on, skipping the empty blocks of a sparse mask is faster (2x at 1024 keys, 7x at 4096, on an H200)
FLEX_MIN_KEYS = 1024


class PreparedMask(NamedTuple):
    """A mask in the form that one kernel needs for T queries and S keys, prepared once per forward."""

    kernel: Kernel
    mask: Mask
    causal: bool = False
    allowed: Tensor | None = None  # (B|1, 1|H, T|1, S); None if everything is allowed or `causal` is set
    attn_mask: Tensor | None = None  # for sdpa, (B, 1|H, T, S): bool, or the bias with -inf
    fully_masked: Tensor | None = None  # (B|1, 1|H, T|1, 1), queries that may attend to nothing
    block_mask: Any = None  # for flex: its BlockMask

    def to_dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Return the mask as a bool tensor (B|1, 1|H, T|1, S), whatever form the kernel uses."""
        if self.allowed is not None:
            return self.allowed
        if self.causal:
            return Mask(causal=True).dense(queries, keys, device)
        return None if self.block_mask is None else self.mask.dense(queries, keys, device)


def choose_kernel(
    kernel: Kernel = "auto",
    *,
    mask: Mask | None = None,
    queries: int = 1,
    keys: int = 1,
    device: torch.device | str = "cpu",
    dropout: float = 0.0,
    biased: bool = False,
    softcap: float | None = None,
) -> Kernel:
    """Return the requested kernel; for "auto", the fastest one for this mask and size.

    Softcapped scores need `flex`, which is fast only if compiled for a GPU, or `explicit`.

    >>> choose_kernel(mask=Mask(causal=True, window=256), queries=4096, keys=4096, device="cuda")
    'flex'
    """
    if kernel not in KERNELS:
        raise UnknownNameError("kernel", kernel, KERNELS)
    mask = mask or Mask()
    device_type, plain = torch.device(device).type, _flex_supports(mask) and not biased
    if kernel == "flex" and dropout:
        raise UnsupportedError(
            "the flex kernel", "dropout on weights", hint="use kernel='sdpa', or dropout 0"
        )
    if kernel == "flex" and device_type == "cuda" and not plain:
        raise UnsupportedError(
            "the flex kernel on a GPU",
            "a bias, or masks other than causal, window and document masks",
            hint="use kernel='sdpa'",
        )
    if kernel == "sdpa" and softcap is not None:
        raise UnsupportedError(
            "the sdpa kernel", "softcapped scores", hint="use kernel='auto', 'explicit' or 'flex'"
        )
    if kernel != "auto":
        return kernel
    dense: Kernel = "sdpa" if softcap is None else "explicit"
    if dropout:
        return "explicit" if device_type == "cpu" else dense  # torch's CPU kernel is not fused with dropout
    sparse = mask.segments is not None or (mask.window is not None and 4 * mask.window <= keys)
    faster = plain and (sparse or softcap is not None) and queries == keys >= FLEX_MIN_KEYS
    return "flex" if device_type == "cuda" and faster else dense


def _flex_supports(mask: Mask) -> bool:
    """Whether every query attends at least to itself; on a GPU, `flex` is tested only with such masks."""
    return mask.padding is None and mask.allowed is None and mask.query_segments is None


class GridBias(NamedTuple):
    """A bias on the scores of tokens of a 2-D grid: a term per row plus a term per column of the key.

    down (B, H, T, rows) and across (B, H, T, columns) are far smaller than the bias (B, H, T, T) itself.
    """

    down: Tensor
    across: Tensor

    def dense(self) -> Tensor:
        """Return the bias (B, H, T, rows * columns)."""
        return (self.down[..., :, None] + self.across[..., None, :]).flatten(-2)


def prepare_mask(
    mask: Mask,
    *,
    batch: int,
    queries: int,
    keys: int,
    device: torch.device,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    biased: bool = False,
    dropout: float = 0.0,
    softcap: float | None = None,
    kernel: Kernel = "auto",
) -> PreparedMask:
    """Choose the kernel and convert the mask to the cheapest equivalent form for it.

    biased: each layer has its own bias, to be added by `with_bias`.
    """
    simple = mask.simplify(queries, keys)
    chosen = choose_kernel(
        kernel,
        mask=simple,
        queries=queries,
        keys=keys,
        device=device,
        dropout=dropout,
        biased=biased or bias is not None,
        softcap=softcap,
    )
    if chosen == "flex":
        return PreparedMask(
            kernel=chosen, mask=simple, block_mask=_block_mask(simple, batch, queries, keys, device)
        )
    causal = simple.only_causal and queries == keys
    allowed = None if causal else simple.dense(queries, keys, device)
    prepared = PreparedMask(kernel=chosen, mask=simple, causal=causal, allowed=allowed)
    return (
        _prepare_sdpa(prepared, bias, batch, queries, keys, device, dtype) if chosen == "sdpa" else prepared
    )


def with_bias(mask: PreparedMask, bias: Tensor, *, batch: int) -> PreparedMask:
    """Return a mask that was prepared without a bias, with the bias (B|1, H, T, S) of one layer."""
    if mask.kernel != "sdpa":
        return mask  # the other kernels take the bias as an argument
    _, _, queries, keys = bias.shape
    return _prepare_sdpa(mask, bias, batch, queries, keys, bias.device, bias.dtype)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | PreparedMask | Tensor | None = None,
    bias: Tensor | GridBias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    kernel: Kernel = "auto",
    edit: AttentionEdit | None = None,
) -> Tensor:
    """Compute scaled dot-product attention: q (B, H, T, K), k (B, G, S, K), v (B, G, S, V) -> (B, H, T, V).

    `dropout` is applied to the attention weights. If `mask` is a `PreparedMask`, it determines the kernel.

    q: queries (B, H, T, K)
    k: keys (B, G, S, K); G divides H
    v: values (B, G, S, V)
    scale: factor on the scores; 1/sqrt(K) if None
    softcap: bound of the scaled scores, softcap * tanh(scores / softcap); None: no bound
    bias: added to the scaled and softcapped scores (B|1, H|1, T, S)
    edit: function (name, tensor) -> tensor that may replace "scores" and "weights"; explicit kernel only

    >>> q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)
    >>> attend(q, k, v, mask=Mask(causal=True)).shape
    torch.Size([2, 4, 3, 6])
    """
    if not isinstance(mask, PreparedMask):
        bias = bias.dense() if isinstance(bias, GridBias) else bias
        _check_shapes(q, k, v)
        unprepared = Mask.of(mask)
        batch, heads, queries, _ = q.shape
        unprepared.check(batch=batch, heads=heads, queries=queries, keys=k.shape[2])
        if unprepared.bias is not None:
            bias = unprepared.bias if bias is None else bias + unprepared.bias
        mask = prepare_mask(
            unprepared,
            batch=batch,
            queries=queries,
            keys=k.shape[2],
            device=q.device,
            dtype=q.dtype,
            bias=bias,
            dropout=dropout,
            softcap=softcap,
            kernel=kernel,
        )
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if isinstance(bias, GridBias):
        unmasked = mask.kernel == "sdpa" and mask.allowed is None
        for_inference = unmasked and edit is None and not torch.is_grad_enabled()
        if for_inference and q.is_cpu:
            return _sdpa_in_blocks(q, k, v, bias, scale)
        if for_inference and q.is_cuda:
            return sdpa(*_with_grid_features(q, k, bias, scale), v, mask, scale)
        bias = bias.dense()
        mask = with_bias(mask, bias, batch=q.shape[0])
    if edit is not None or mask.kernel == "explicit":
        return explicit(q, k, v, mask, bias, scale, softcap, dropout, edit)
    if mask.kernel == "flex":
        return flex(q, k, v, mask, bias, scale, softcap)
    return sdpa(q, k, v, mask, scale, dropout)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise if the shapes do not match; the fused kernel would silently ignore keys without a value."""
    if not q.is_floating_point():
        raise InvalidValueError("q.dtype", str(q.dtype), "floats", hint="q.float()")
    fits = q.dim() == k.dim() == v.dim() == 4 and k.shape[:3] == v.shape[:3]
    if not fits or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % max(1, k.shape[1]):
        raise ShapeError(
            "q",
            q.shape,
            f"(B, H, T, K) for k (B, G, S, K) {tuple(k.shape)} and v (B, G, S, V) {tuple(v.shape)}",
            hint="H must be a multiple of G",
        )


# ---- the reference ------------------------------------------------------------------------------------


def attention_scores(
    q: Tensor, k: Tensor, bias: Tensor | None, scale: float, softcap: float | None = None
) -> Tensor:
    """Return softcap(Q K^T * scale) + bias in at least float32: (B, H, T, S)."""
    dots = apply_softcap(_grouped_matmul(upcast(q) * scale, upcast(k).transpose(-1, -2)), softcap)
    return dots if bias is None else dots + bias


def _grouped_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Multiply left (B, H, T, M) by right (B, G, M, N) -> (B, H, T, N); heads of a group share a matrix."""
    batch, heads, rows, inner = left.shape
    groups = right.shape[1]
    if heads == groups:
        return left @ right
    grouped = left.reshape(batch, groups, heads // groups * rows, inner)  # (B, G, R*T, M)
    return (grouped @ right).view(batch, heads, rows, right.shape[-1])


def attention_weights(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Apply the softmax over the allowed keys; fully masked rows are 0."""
    if allowed is None:
        return scores.softmax(-1)
    lowest = torch.finfo(scores.dtype).min  # finite, so that a fully masked row gives no NaN
    return scores.masked_fill(~allowed, lowest).softmax(-1).masked_fill(~allowed, 0.0)


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: PreparedMask,
    bias: Tensor | None,
    scale: float,
    softcap: float | None = None,
    dropout: float = 0.0,
    edit: AttentionEdit | None = None,
) -> Tensor:
    """Reference kernel: compute scores and softmax in at least float32, then the weighted sum."""
    scores = attention_scores(q, k, bias, scale, softcap)
    if edit is not None:
        scores = edit("scores", scores)
    weights = attention_weights(scores, mask.to_dense(q.shape[2], k.shape[2], q.device))
    if edit is not None:
        weights = edit("weights", weights)
    weights = drop(weights, dropout, training=True)
    return _grouped_matmul(weights.to(v.dtype), v)  # (B, H, T, V)


# ---- torch's fused attention ----------------------------------------------------------------------------


def _prepare_sdpa(
    mask: PreparedMask,
    bias: Tensor | None,
    batch: int,
    queries: int,
    keys: int,
    device: torch.device,
    dtype: torch.dtype,
) -> PreparedMask:
    """Combine mask and bias into the one tensor that torch's kernel takes."""
    allowed, fully_masked = mask.allowed, None
    if allowed is not None and device.type != "cpu":
        # CUDA's kernels differ on fully masked rows: let such a row attend to all keys, and zero its result
        # afterwards, so that neither pass gives a NaN. The CPU's kernel gives zeros itself.
        fully_masked = ~allowed.any(-1, keepdim=True)
        allowed = allowed | fully_masked
    attn_mask = allowed
    if bias is not None:
        if mask.causal:
            allowed = Mask(causal=True).dense(queries, keys, device)
        attn_mask = bias.to(dtype)
        if allowed is not None:
            attn_mask = attn_mask.masked_fill(~allowed, float("-inf"))
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, -1, queries, -1)
    return mask._replace(attn_mask=attn_mask, fully_masked=fully_masked)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: PreparedMask, scale: float, dropout: float = 0.0) -> Tensor:
    """Call torch's scaled_dot_product_attention; `prepare_mask` has combined mask and bias."""
    heads = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask.attn_mask,
        dropout_p=dropout,
        is_causal=mask.causal and mask.attn_mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return heads if mask.fully_masked is None else heads.masked_fill(mask.fully_masked, 0.0)


_BLOCK = 1 << 20  # scores of a block, whose bias should stay in the cache of the processor


def _sdpa_in_blocks(q: Tensor, k: Tensor, v: Tensor, bias: GridBias, scale: float) -> Tensor:
    """Attend with blocks of queries, so that the bias of a block never leaves the cache."""
    batch, heads, queries, _ = q.shape
    size = max(1, _BLOCK // k.shape[2])
    if size >= queries:
        rows = max(1, size // queries)  # sequences whose bias fits
        parts = zip(*(x.split(rows) for x in (q, k, v, *bias)), strict=True)
        out = [
            F.scaled_dot_product_attention(q, k, v, GridBias(down, across).dense(), scale=scale)
            for q, k, v, down, across in parts
        ]
        return out[0] if len(out) == 1 else torch.cat(out)
    result = q.new_empty(batch, heads, queries, v.shape[-1])
    for b in range(batch):
        for h in range(heads):
            for start in range(0, queries, size):
                block = (slice(b, b + 1), slice(h, h + 1), slice(start, start + size))
                result[block] = F.scaled_dot_product_attention(
                    q[block],
                    k[b : b + 1, h : h + 1],
                    v[b : b + 1, h : h + 1],
                    GridBias(bias.down[block], bias.across[block]).dense(),
                    scale=scale,
                )
    return result


def _with_grid_features(q: Tensor, k: Tensor, bias: GridBias, scale: float) -> tuple[Tensor, Tensor]:
    """Append features to q and k whose products, times the scale, are the bias.

    Those of a key are 1 for its row and for its column. The bias (B, H, T, T) then never exists, and the
    fastest kernels apply, which take none.
    """
    down, across = bias
    rows, columns = down.shape[-1], across.shape[-1]
    row = torch.eye(rows, dtype=k.dtype, device=k.device).repeat_interleave(columns, 0)
    column = torch.eye(columns, dtype=k.dtype, device=k.device).repeat(rows, 1)
    padding = -(q.shape[-1] + rows + columns) % 8  # kernels need a multiple of 8
    indicators = F.pad(torch.cat((row, column), -1), (0, padding)).expand(*k.shape[:2], -1, -1)
    terms = F.pad(torch.cat((down, across), -1) / scale, (0, padding))
    return torch.cat((q, terms), -1), torch.cat((k, indicators), -1)


# ---- torch's block-sparse attention ---------------------------------------------------------------------


@cache
def _flex_functions(compiled: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return flex_attention and create_block_mask; on a GPU they are fast only if compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if not compiled:
        return flex_attention, create_block_mask
    return torch.compile(flex_attention), torch.compile(create_block_mask)


def _functions_for(device: torch.device) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return _flex_functions(device.type == "cuda" and not torch.compiler.is_compiling())


def _block_mask(mask: Mask, batch: int, queries: int, keys: int, device: torch.device) -> Any:
    """Create FlexAttention's BlockMask: the non-empty blocks of (T, S), and the mask function inside them."""
    first = keys - queries if mask.offset is None else mask.offset
    query_segments = mask.segments if mask.query_segments is None else mask.query_segments
    shift = first if mask.query_segments is None else 0  # queries are keys too, from `first` on
    everything = torch.ones((), dtype=torch.bool, device=device)
    by_query = None if mask.allowed is None else mask.allowed.expand(-1, -1, queries, -1)

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, s: Tensor) -> Tensor:
        allowed = everything
        distance = q + first - s
        if mask.causal:
            allowed = allowed & (distance >= 0)
        if mask.window is not None:
            allowed = allowed & (distance < mask.window) & (distance > -mask.window)
        if mask.padding is not None:
            allowed = allowed & mask.padding[b, s]
        if mask.segments is not None and query_segments is not None:
            allowed = allowed & (query_segments[b, q + shift] == mask.segments[b, s])
        if by_query is not None:
            rows, heads = by_query.shape[:2]
            allowed = allowed & by_query[b if rows > 1 else 0, h if heads > 1 else 0, q, s]
        return allowed

    by_row = mask.padding is not None or mask.segments is not None
    by_row = by_row or (mask.allowed is not None and mask.allowed.shape[0] > 1)
    by_head = mask.allowed is not None and mask.allowed.shape[1] > 1
    rows = batch if by_row else None
    heads = mask.allowed.shape[1] if by_head and mask.allowed is not None else None
    _, create = _functions_for(device)
    return create(mask_mod, rows, heads, queries, keys, device=device)


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: PreparedMask,
    bias: Tensor | None,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """Call PyTorch's FlexAttention (block-sparse), which skips fully masked blocks."""
    if q.is_cpu:
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            raise UnsupportedError(
                "the flex kernel on a CPU", "gradients", hint="use kernel='sdpa', or torch.no_grad()"
            )
        q, k, v = q.detach(), k.detach(), v.detach()  # it rejects tensors that require gradients

    bias = None if bias is None else bias.expand(-1, *q.shape[1:3], -1)

    def modify_score(score: Tensor, b: Tensor, h: Tensor, i: Tensor, s: Tensor) -> Tensor:
        score = apply_softcap(score, softcap)
        return score if bias is None else score + bias[b if bias.shape[0] > 1 else 0, h, i, s]

    # the default blocks of a float32 head exceed the shared memory of a multiprocessor
    small = dict.fromkeys(("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2"), 32)
    options = small if q.is_cuda and q.dtype == torch.float32 else None
    run, _ = _functions_for(q.device)
    heads: Tensor = run(
        q,
        k,
        v,
        score_mod=None if bias is None and softcap is None else modify_score,
        block_mask=mask.block_mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        kernel_options=options,
    )
    return heads
