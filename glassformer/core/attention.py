"""Multi-head attention. Keys and values come from x (self-attention) or from a memory (cross-attention).

    x (B, T, D) --q_proj--> q (B, H, T, K) --------\\
    memory (B, S, D) --k_proj--> k (B, G, S, K) --attend--> heads (B, H, T, V) --join, out_proj--> (B, T, D)
    memory (B, S, D) --v_proj--> v (B, G, S, V) ---/

`MultiHeadAttention` projects, splits into heads, joins the heads and projects out. What happens in between is
the task of an `AttentionBackend`, which is prepared once per pass: it knows the memory, the mask, the
positions, the KV cache and the kernel. `DenseAttention` is the definition; `vision.attention` has attention
within windows, and `inference` has backends for unpadded rows, beams and continuous batching.

B batch, T queries, S keys, D d_model, H query heads, G key/value heads, K head width, V value width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from glassformer.core import backend, spec
from glassformer.core.backend import Linear
from glassformer.core.embeddings import check_vectors
from glassformer.core.kernels import GridBias, Kernel, PreparedMask, prepare_mask, with_bias
from glassformer.core.kernels import attend as run_kernel
from glassformer.core.kv_cache import KVCache
from glassformer.core.masks import Mask
from glassformer.core.norms import RMSNorm, UnitNorm
from glassformer.core.observe import AttentionContext, Observer, run_with_weights, tap
from glassformer.core.positions import NO_TERMS, PositionTerms
from glassformer.errors import InvalidValueError, ShapeError, explain_torch_names


class AttentionBackend(Protocol):
    """Protocol that computes the heads of one attention layer, from what was prepared for this pass."""

    def __call__(self, attention: MultiHeadAttention, x: Tensor, obs: Observer | None = None) -> Tensor:
        """Attend from x (..., D) -> heads (..., H, V)."""
        ...


class PreparedAttention(AttentionBackend, Protocol):
    """Protocol of backends that are prepared for all layers of a kind, such as `DenseAttention`."""

    def at_layer(self, layer: int, norm: nn.Module | None, cache: KVCache | None) -> AttentionBackend:
        """Return the backend of one layer. norm: the norm before its attention."""
        ...


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
    memory_dim: width of `k_v` in cross-attention; None: d_model

    >>> import torch
    >>> attention = MultiHeadAttention(16, 4)
    >>> attention(torch.randn(2, 5, 16), Mask(causal=True)).shape             # self-attention
    torch.Size([2, 5, 16])
    >>> attention(torch.randn(2, 5, 16), k_v=torch.randn(2, 7, 16)).shape     # cross-attention
    torch.Size([2, 5, 16])
    >>> out, weights = attention(torch.randn(2, 5, 16), return_weights=True)
    >>> weights.shape                                                         # (B, H, T, S)
    torch.Size([2, 4, 5, 5])
    """

    on_grid = False  # whether the tokens have to form a 2-D grid
    has_position_bias = False  # whether each layer adds a bias of its own to the scores

    @explain_torch_names
    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
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
        if head_dim is None:
            spec.check_divisible(d_model, num_heads)
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_dim = head_dim or d_model // num_heads
        self.value_dim = value_dim or self.head_dim
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.window, self.dropout, self.softcap = window, dropout, softcap
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

    @explain_torch_names
    def forward(
        self,
        x: Tensor,
        mask: Mask | Tensor | AttentionBackend | None = None,
        k_v: Tensor | None = None,
        *,
        return_weights: bool = False,
        obs: Observer | None = None,
    ) -> Any:
        """x (B, T, D) -> (B, T, D).

        mask: true or 1 = may attend: (T, S), (B, 1|T, S) or (B, 1|H, 1|T, S), or a `Mask`. A stack passes a
        prepared `AttentionBackend` instead, which also knows the memory.
        k_v: memory (B, S, D) of cross-attention.
        return_weights: return (output, weights (B, H, T, S)), computed as `Record.weights` does.
        """
        if return_weights:
            out, weights = run_with_weights(self, x, mask, k_v)
            return out, weights[0]
        attend = mask if callable(mask) else self.prepare(x, mask, k_v)
        heads = attend(self, x, obs)  # (B, T, H, V)
        return tap(obs, "out", self.out_proj(heads.flatten(-2)))

    def queries_keys_values(self, x: Tensor, position: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project x (..., D) to q (..., H, K), k (..., G, K) and v (..., G, V) for self-attention.

        position: embeddings (1|B, T, D) that are added to the inputs of q and k, but not of v
        """
        if position is None:
            q, k, v = backend.project(x, self.q_proj, self.k_proj, self.v_proj)
        else:
            q, k, v = *backend.project(x + position.to(x.dtype), self.q_proj, self.k_proj), self.v_proj(x)
        return self._split_queries(q), *self._split_keys_values(k, v)

    def queries(self, x: Tensor, position: Tensor | None = None) -> Tensor:
        """Project x (..., D), plus position embeddings, to queries (..., H, K)."""
        return self._split_queries(self.q_proj(x if position is None else x + position.to(x.dtype)))

    def keys_values(self, memory: Tensor, position: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Project memory (..., D) to k (..., G, K) and v (..., G, V); only k gets position embeddings."""
        if position is None:
            return self._split_keys_values(*backend.project(memory, self.k_proj, self.v_proj))
        return self._split_keys_values(self.k_proj(memory + position.to(memory.dtype)), self.v_proj(memory))

    def _split_queries(self, q: Tensor) -> Tensor:
        q = q.view(*q.shape[:-1], self.num_heads, self.head_dim)
        return q if self.q_norm is None else self.q_norm(q)

    def _split_keys_values(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        groups = self.num_kv_heads
        k = k.view(*k.shape[:-1], groups, self.head_dim)
        v = v.view(*v.shape[:-1], groups, self.value_dim)
        return k if self.k_norm is None else self.k_norm(k), v

    def prepare(
        self,
        x: Tensor,
        mask: Mask | Tensor | None = None,
        memory: Tensor | None = None,
        *,
        terms: PositionTerms = NO_TERMS,
        keys: int | None = None,
        kernel: Kernel = "auto",
    ) -> PreparedAttention:
        """Prepare the backend of layers like this one, for x (B, T, D).

        keys: number of keys, if a cache holds more than those of x
        """
        check_vectors("x", x, self.q_proj.in_features)
        if memory is not None:
            check_vectors("k_v", memory, self.k_proj.in_features)
            if memory.shape[0] != x.shape[0]:
                hint = "in a decoder, k_v is the output of the encoder"
                raise ShapeError("k_v", memory.shape, f"the batch size of x, {x.shape[0]}", hint)
            keys = memory.shape[1]
        if mask is not None and (mask is x or mask is memory or _is_vectors(mask, memory)):
            hint = "for attention(q, k, v, mask) write attention(q, mask, k_v=k)"
            raise InvalidValueError("mask", "the vectors", "a mask", hint)
        mask = Mask.of(mask)
        terms = terms.with_bias(mask.bias)
        sizes = (*x.shape[:2], x.shape[1] if keys is None else keys)
        return DenseAttention(self.prepare_mask(mask, sizes, x, terms, kernel), terms, memory)

    def prepare_mask(
        self,
        mask: Mask,
        sizes: tuple[int, int, int],
        like: Tensor,
        terms: PositionTerms,
        kernel: Kernel = "auto",
    ) -> PreparedMask:
        """Prepare the mask, with this layer's window, for the kernel.

        sizes: B, T and S. like: has the dtype and device.
        """
        batch, queries, keys = sizes
        mask.check(batch=batch, heads=self.num_heads, queries=queries, keys=keys)
        return prepare_mask(
            mask.with_window(self.window),
            batch=batch,
            queries=queries,
            keys=keys,
            device=like.device,
            dtype=like.dtype,
            bias=terms.bias,
            biased=terms.biased or self.has_position_bias,
            dropout=self.dropout if self.training else 0.0,
            softcap=self.softcap,
            kernel=kernel,
        )

    @property
    def output_layer(self) -> nn.Module:
        """The module that computes the output."""
        return self.out_proj

    @property
    def kind(self) -> tuple[object, ...]:
        """Key that is equal for layers that can share what `prepare` returns."""
        return self.num_heads, self.window, self.dropout, self.softcap

    def add_bias(
        self, mask: PreparedMask, terms: PositionTerms, q: Tensor, k: Tensor
    ) -> tuple[PreparedMask, Tensor | GridBias | None]:
        """Return mask and bias of this layer, for q (B, H, T, K) and k (B, H, S, K).

        A bias that depends on q and k is computed here: the products of q and of k with the embeddings of
        their relative positions, which the projections of k and q map to heads.
        """
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
        bias = bias if terms.bias is None else bias + terms.bias
        return with_bias(mask, bias, batch=q.shape[0]), bias


def _is_vectors(mask: Mask | Tensor, memory: Tensor | None) -> bool:
    """Whether `mask` can only be vectors (B, S, D), like the memory."""
    if not isinstance(mask, Tensor) or memory is None:
        return False
    return mask.shape == memory.shape and mask.shape[1] != mask.shape[2]


def make_attention(
    d_model: int, attention: spec.AttentionSpec, *, memory_dim: int | None = None
) -> MultiHeadAttention:
    """Build an attention layer. memory_dim: width of the memory of cross-attention; None: d_model."""
    options = {**vars(attention), "memory_dim": memory_dim}
    if attention.spatial_window is None and attention.position_bias is None:
        del options["spatial_window"], options["position_bias"]
        return MultiHeadAttention(d_model, **options)
    from glassformer.core.vision.attention import GridAttention  # here: text models need no vision

    return GridAttention(d_model, **options)


class DenseAttention(NamedTuple):
    """The definition: attention over padded rows (B, T), with an optional contiguous KV cache.

    memory: keys and values of cross-attention come from it (B, S, D), and are cached after the first step.
    position, memory_position: embeddings (1|B, T, D) and (1|B, S, D), added to the inputs of q and k.
    """

    mask: PreparedMask
    terms: PositionTerms
    memory: Tensor | None = None
    position: Tensor | None = None
    memory_position: Tensor | None = None
    cache: KVCache | None = None
    layer: int = 0  # of the cache

    def at_layer(self, layer: int, norm: nn.Module | None, cache: KVCache | None) -> DenseAttention:
        return self if cache is None else self._replace(cache=cache, layer=layer)

    def __call__(self, attention: MultiHeadAttention, x: Tensor, obs: Observer | None = None) -> Tensor:
        if self.memory is None:
            q, k, v = map(_heads_first, attention.queries_keys_values(x, self.position))
            q, k = self.terms.rotate(q, k)
            if self.cache is not None:
                k, v = self.cache.append(self.layer, k, v)
        else:
            q = _heads_first(attention.queries(x, self.position))
            k, v = self._memory_keys_values(attention, self.memory)
        if obs is not None:
            q, k, v = obs("q", q), obs("k", k), obs("v", v)
        mask, bias = attention.add_bias(self.mask, self.terms, q, k)
        edit = None
        if obs is not None:
            dense = bias.dense() if isinstance(bias, GridBias) else bias
            obs.record_attention(AttentionContext(mask, dense, attention.scale, attention.softcap))
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

    def _memory_keys_values(self, attention: MultiHeadAttention, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return k (B, G, S, K) and v (B, G, S, V) of the memory."""
        cached = None if self.cache is None else self.cache.layers[self.layer].cross
        if cached is None:
            k, v = attention.keys_values(memory, self.memory_position)
            cached = _heads_first(k), _heads_first(v)
            if self.cache is not None:
                self.cache.layers[self.layer].cross = cached
        return cached


def _heads_first(x: Tensor) -> Tensor:
    """(B, T, H, K) -> (B, H, T, K)."""
    return x.transpose(1, 2)
