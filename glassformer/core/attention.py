"""Multi-head attention. Keys and values come from x (self-attention) or from `memory` (cross-attention).

    x (B, T, D) --q_proj--> q (B, H, T, K) -\\
    memory (B, S, D) --k_proj--> k (B, G, S, K) --attend--> heads (B, H, T, V) --join, out_proj--> (B, T, D)
    memory (B, S, D) --v_proj--> v (B, G, S, V) -/

`MultiHeadAttention` fixes the order of operations: project, split into heads, normalize, attend, join,
project out. An `AttentionBackend` handles position terms, KV cache, mask and kernel. `DenseAttention` is the
one in this file; `inference` has backends for unpadded rows, beams and continuous batching.

B batch, T queries, S keys, D d_model, H query heads, G key/value heads, K head width, V value width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from glassformer.core import backend, spec
from glassformer.core.backend import Fused, Linear, Norm
from glassformer.core.kernels import GridBias, Kernel, PreparedMask, prepare_mask, with_bias
from glassformer.core.kernels import attend as run_kernel
from glassformer.core.kv_cache import KVCache
from glassformer.core.masks import Mask
from glassformer.core.norms import RMSNorm, UnitNorm
from glassformer.core.observe import AttentionContext, Observer, tap
from glassformer.core.positions import PositionTerms
from glassformer.core.spatial import Grid, LogBias2d, PositionBias, QueryBias2d, RelativeBias2d, WindowLayout
from glassformer.errors import InvalidValueError, MissingValueError, ShapeError


class AttentionBackend(Protocol):
    """Protocol that computes one layer's attention: position terms, KV cache, mask and kernel."""

    @property
    def keys_cached(self) -> bool:
        """Whether keys and values are already cached, so that only queries are projected."""
        ...

    def __call__(
        self,
        attention: MultiHeadAttention,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        obs: Observer | None = None,
    ) -> Tensor:
        """Attend from q (..., H, K) to k (..., G, K) and v (..., G, V) -> head outputs (..., H, V)."""
        ...


# qkv (B, T, 3 * D), bias (H, W, W), layout of the windows, scale of the scores -> (B, T, D)
WindowKernel = Callable[[Tensor, Tensor, WindowLayout, float], Tensor]


class MultiHeadAttention(nn.Module):
    """Multi-head attention: project, split into heads, attend, join, project out.

    num_kv_heads: number of key/value heads (grouped-query attention; 1 is multi-query); None: num_heads
    head_dim: width of a query and key head; None: d_model / num_heads
    value_dim: width of a value head; None: head_dim
    scale: factor on the scores; 1/sqrt(head_dim) if None
    biases: which of the projections q, k, v and out have a bias
    window: each query attends to at most this many keys, including its own; None: all
    dropout: dropout rate of the attention weights
    qk_norm: normalizes queries and keys of each head; `CosineSpec` for cosine attention
    softcap: bound of the scaled scores, softcap * tanh(scores / softcap); None: no bound
    memory_dim: width of the memory in cross-attention; None: d_model
    spatial_window: windows of a 2-D grid of tokens, within which they attend; None: all tokens
    position_bias: bias on the scores of tokens of a 2-D grid

    >>> import torch
    >>> attention = MultiHeadAttention(16, num_heads=4)
    >>> attention(torch.randn(2, 5, 16), mask=Mask(causal=True)).shape            # self
    torch.Size([2, 5, 16])
    >>> attention(torch.randn(2, 5, 16), memory=torch.randn(2, 7, 16)).shape      # cross
    torch.Size([2, 5, 16])
    """

    # set on copies that are prepared for inference
    fused: Fused | None = None
    window_kernel: WindowKernel | None = None

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        scale: float | None = None,
        biases: Sequence[str] = ("q", "k", "v", "out"),
        window: int | None = None,
        dropout: float = 0.0,
        qk_norm: spec.RMSNormSpec | spec.CosineSpec | None = None,
        softcap: float | None = None,
        memory_dim: int | None = None,
        spatial_window: spec.WindowSpec | None = None,
        position_bias: spec.PositionBiasSpec | None = None,
    ) -> None:
        super().__init__()
        spec.AttentionSpec(  # validates names and sizes
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            window=window,
            dropout=dropout,
            softcap=softcap,
        )
        if head_dim is None and d_model % num_heads:
            raise InvalidValueError(
                "d_model", d_model, f"a multiple of num_heads {num_heads}", hint="or set head_dim"
            )
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_dim = head_dim or d_model // num_heads
        self.value_dim = value_dim or self.head_dim
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.window, self.dropout, self.softcap = window, dropout, softcap
        self.spatial_window = spatial_window
        source = memory_dim or d_model
        self.q_proj = Linear(d_model, self.num_heads * self.head_dim, bias="q" in biases)
        self.k_proj = Linear(source, self.num_kv_heads * self.head_dim, bias="k" in biases)
        self.v_proj = Linear(source, self.num_kv_heads * self.value_dim, bias="v" in biases)
        self.out_proj = Linear(self.num_heads * self.value_dim, d_model, bias="out" in biases)
        self.q_norm: nn.Module | None = None
        self.k_norm: nn.Module | None = None
        match qk_norm:
            case spec.RMSNormSpec():
                self.q_norm, self.k_norm = (RMSNorm(self.head_dim, **vars(qk_norm)) for _ in range(2))
            case spec.CosineSpec():
                self.q_norm, self.k_norm = UnitNorm(self.num_heads, qk_norm.max_scale), UnitNorm()
                self.scale = 1.0 if scale is None else scale
        self.position_bias = self._make_position_bias(position_bias)

    def _make_position_bias(self, bias: spec.PositionBiasSpec | None) -> PositionBias | None:
        match bias:
            case None:
                return None
            case spec.RelativeBias2dSpec(grid=grid, signed=signed):
                return RelativeBias2d(self.num_heads, grid=grid, signed=signed)
            case spec.QueryBias2dSpec(grid=grid):
                return QueryBias2d(self.head_dim, grid=grid)
            case spec.LogBias2dSpec():
                return LogBias2d(self.num_heads, **vars(bias))

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | PreparedMask | Tensor | None = None,
        terms: PositionTerms | None = None,
        kernel: Kernel = "auto",
        attend: AttentionBackend | None = None,
        norm: Norm | None = None,
        residual: Tensor | None = None,
        position_embeddings: Tensor | None = None,
        memory_position_embeddings: Tensor | None = None,
        obs: Observer | None = None,
    ) -> Tensor:
        """x (B, T, D), memory (B, S, D) for cross-attention -> attention(norm(x)) + residual, (B, T, D).

        attend: attention backend that replaces `mask`, `terms` and `kernel`; a stack prepares one for all
        layers with the same mask and terms. If it takes packed (unpadded) tokens, x is (N, D).
        position_embeddings, memory_position_embeddings: (B|1, T, D) and (B|1, S, D), added to the inputs of
        queries and keys, but not of values.
        """
        if attend is None:
            attend = self._dense(x, memory, mask, terms, kernel)
        windows = attend.windows if isinstance(attend, DenseAttention) else None
        if windows is not None and self.window_kernel is not None and windows.padded == windows.grid:
            assert self.fused is not None and isinstance(self.position_bias, RelativeBias2d)
            qkv = self.fused["qkv"](x, norm=norm)
            joined = self.window_kernel(qkv, self.position_bias(x, windows.grid)[0], windows, self.scale)
            return self.fused["out"](joined, residual=residual)
        if windows is not None:
            if norm is not None and not self.pads_before_norm:
                x, norm = norm(x), None
            x = windows.partition(x)  # (B * windows, T, D)
        if position_embeddings is not None or memory_position_embeddings is not None:
            heads = attend(
                self,
                *self._positioned(
                    x if norm is None else norm(x), memory, position_embeddings, memory_position_embeddings
                ),
                obs,
            )
        elif attend.keys_cached:
            heads = attend(self, self.queries(x, norm), None, None, obs)
        elif memory is None:
            heads = attend(self, *self.queries_keys_values(x, norm), obs)
        else:
            if memory.shape[0] != x.shape[0]:
                raise ShapeError("memory", memory.shape, f"{x.shape[0]} rows, one for each row of the input")
            heads = attend(self, self.queries(x, norm), *self.keys_values(memory), obs)
        joined = heads.flatten(-2)  # (..., H * V)
        if windows is not None:
            joined = windows.merge(joined)
        if self.fused is not None:
            return self.fused["out"](joined, residual=residual)
        out = tap(obs, "out", self.out_proj(joined))
        return out if residual is None else residual + out

    @property
    def pads_before_norm(self) -> bool:
        """Whether tokens that fill up windows are added before the norm, as zeros, rather than after it."""
        return self.spatial_window is not None and self.spatial_window.pad_before_norm

    def queries_keys_values(self, x: Tensor, norm: Norm | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project x (..., D) to q (..., H, K), k (..., G, K) and v (..., G, V) for self-attention."""
        if self.fused is not None:
            q, k, v = self.fused["qkv"](x, norm=norm).split_with_sizes(self._widths, -1)
        else:
            x = x if norm is None else norm(x)
            q, k, v = backend.project(x, self.q_proj, self.k_proj, self.v_proj)
        return self._split_queries(q), *self._split_keys_values(k, v)

    def queries(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        """Project x (..., D) to queries (..., H, K)."""
        if self.fused is not None:
            return self._split_queries(self.fused["q"](x, norm=norm))
        return self._split_queries(self.q_proj(x if norm is None else norm(x)))

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project memory (..., D) to k (..., G, K) and v (..., G, V)."""
        if self.fused is not None:
            k, v = self.fused["kv"](memory).split_with_sizes(self._widths[1:], -1)
        else:
            k, v = backend.project(memory, self.k_proj, self.v_proj)
        return self._split_keys_values(k, v)

    def _positioned(
        self, x: Tensor, memory: Tensor | None, position: Tensor | None, memory_position: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project q, k and v with position embeddings added to the inputs of q and k."""
        query = x if position is None else x + position.to(x.dtype)
        if memory is None:
            key, value = query, x
        else:
            key = memory if memory_position is None else memory + memory_position.to(memory.dtype)
            value = memory
        k, v = self._split_keys_values(self.k_proj(key), self.v_proj(value))
        return self._split_queries(self.q_proj(query)), k, v

    def _split_queries(self, q: Tensor) -> Tensor:
        q = q.view(*q.shape[:-1], self.num_heads, self.head_dim)
        return q if self.q_norm is None else self.q_norm(q)

    def _split_keys_values(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        groups = self.num_kv_heads
        k = k.view(*k.shape[:-1], groups, self.head_dim)
        v = v.view(*v.shape[:-1], groups, self.value_dim)
        return k if self.k_norm is None else self.k_norm(k), v

    @property
    def _widths(self) -> list[int]:
        groups = self.num_kv_heads
        return [self.num_heads * self.head_dim, groups * self.head_dim, groups * self.value_dim]

    def prepare_mask(
        self,
        mask: Mask,
        *,
        batch: int,
        queries: int,
        keys: int,
        like: Tensor,
        terms: PositionTerms | None = None,
        kernel: Kernel = "auto",
        name: str = "mask",
    ) -> PreparedMask:
        """Prepare the mask, with this layer's window, for the kernel. like: has the dtype and device."""
        mask.check(batch=batch, heads=self.num_heads, queries=queries, keys=keys, name=name)
        return prepare_mask(
            mask.with_window(self.window),
            batch=batch,
            queries=queries,
            keys=keys,
            device=like.device,
            dtype=like.dtype,
            bias=None if terms is None else terms.bias,
            biased=self.position_bias is not None or (terms is not None and terms.biased),
            dropout=self.dropout if self.training else 0.0,
            softcap=self.softcap,
            kernel=kernel,
        )

    def _dense(
        self,
        x: Tensor,
        memory: Tensor | None,
        mask: Mask | PreparedMask | Tensor | None,
        terms: PositionTerms | None,
        kernel: Kernel,
    ) -> DenseAttention:
        terms = terms or PositionTerms()
        if self.spatial_window is not None:
            return self.prepare_windows(terms.grid, x, kernel)
        if not isinstance(mask, PreparedMask):
            keys = x.shape[1] if memory is None else memory.shape[1]
            mask = self.prepare_mask(
                Mask.of(mask),
                batch=x.shape[0],
                queries=x.shape[1],
                keys=keys,
                like=x,
                terms=terms,
                kernel=kernel,
            )
        return DenseAttention(mask, terms)

    def prepare_windows(self, grid: Grid | None, like: Tensor, kernel: Kernel = "auto") -> DenseAttention:
        """Prepare attention within the windows of a grid. like: the input (B, T, D)."""
        assert self.spatial_window is not None
        if grid is None:
            raise MissingValueError("the grid of the tokens", "by window attention")
        windows = WindowLayout.of(grid, self.spatial_window)
        size, tokens = windows.size, windows.size**2
        mask = self.prepare_mask(
            Mask(allowed=windows.allowed(like.shape[0], like.device)),
            batch=like.shape[0] * windows.num_windows,
            queries=tokens,
            keys=tokens,
            like=like,
            kernel=kernel,
        )
        return DenseAttention(mask, PositionTerms(grid=(size, size)), windows=windows)

    def add_bias(
        self, mask: PreparedMask, terms: PositionTerms, q: Tensor, k: Tensor
    ) -> tuple[PreparedMask, Tensor | GridBias | None]:
        """Return mask and bias of this layer, for q (B, H, T, K) and k (B, H, S, K).

        A bias that this layer owns, or that depends on q and k, is computed here. The latter consists of the
        products of q and of k with the embeddings of their relative positions, which the projections of k and
        q map to heads.
        """
        if self.position_bias is not None:
            if terms.grid is None:
                raise MissingValueError("the grid of the tokens", "by a 2-D position bias")
            own: Tensor | GridBias = self.position_bias(q, terms.grid)
            return mask if isinstance(own, GridBias) else with_bias(mask, own, batch=q.shape[0]), own
        if terms.relative is None:
            return mask, terms.bias
        embedding, rows, kinds, dropout = terms.relative
        embedding = backend.dropout(embedding, dropout, training=self.training).to(q.dtype)
        by_kind = []
        for kind, x, projection, index in (("c2p", q, self.k_proj, rows), ("p2c", k, self.q_proj, rows.t())):
            if kind in kinds:
                heads = projection(embedding).unflatten(-1, (self.num_heads, -1)).transpose(0, 1)  # (H, P, K)
                products = x @ heads.transpose(-1, -2)  # (B, H, T, P), or (B, H, S, P)
                found = products.gather(-1, index.expand(*products.shape[:2], -1, -1))
                by_kind.append(found if kind == "c2p" else found.transpose(-1, -2))  # (B, H, T, S)
        bias = sum(by_kind[1:], by_kind[0]) * self.scale
        return with_bias(mask, bias, batch=q.shape[0]), bias


class DenseAttention(NamedTuple):
    """Reference backend: attention over padded rows (B, T), with an optional contiguous KV cache.

    cross: use the cached keys and values of the encoder output, which are projected only once.
    windows: attention within windows of a 2-D grid; each window is a row of the batch.
    """

    mask: PreparedMask
    terms: PositionTerms = PositionTerms()
    cache: KVCache | None = None
    layer: int = 0  # of the cache
    cross: bool = False
    windows: WindowLayout | None = None

    @property
    def grid(self) -> Grid | None:
        """Rows and columns of the input, if its tokens form a 2-D grid."""
        return self.terms.grid if self.windows is None else self.windows.grid

    @property
    def keys_cached(self) -> bool:
        return self.cross and self.cache is not None and self.cache.layers[self.layer].cross is not None

    def __call__(
        self,
        attention: MultiHeadAttention,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        obs: Observer | None = None,
    ) -> Tensor:
        q = q.transpose(1, 2)  # (B, H, T, K)
        if k is not None and v is not None:
            q, k, v = self._update(q, k.transpose(1, 2), v.transpose(1, 2))
        else:
            assert self.cache is not None
            cached = self.cache.layers[self.layer].cross
            assert cached is not None
            k, v = cached
        edit = None
        if obs is not None:
            q, k, v = obs("q", q), obs("k", k), obs("v", v)
        mask, bias = attention.add_bias(self.mask, self.terms, q, k)
        if obs is not None:
            dense = bias.dense() if isinstance(bias, GridBias) else bias
            obs.record_attention(
                AttentionContext(mask, dense, attention.scale, attention.softcap, self.windows)
            )
            edit = obs if obs.edits("scores", "weights") else None
        heads = run_kernel(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            scale=attention.scale,
            softcap=attention.softcap,
            dropout=attention.dropout if attention.training else 0.0,
            edit=edit,
        )
        return tap(obs, "heads", heads).transpose(1, 2)  # (B, T, H, V)

    def _update(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate queries and keys; append keys and values to the cache."""
        q, k = self.terms.rotate(q, k)
        if self.cache is not None and self.cross:
            self.cache.layers[self.layer].cross = (k, v)
        elif self.cache is not None:
            k, v = self.cache.append(self.layer, k, v)
        return q, k, v
