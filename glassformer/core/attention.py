"""Multi-head attention: self and cross are one class; keys and values come from `memory` or from x.

B batch, T queries, S keys, D d_model, H query heads, G key/value heads, K head width, V value width.

    x (B, T, D) --q_proj--> q (B, H, T, K) -\\
    memory (B, S, D) --k_proj--> k (B, G, S, K) --attend--> heads (B, H, T, V) --join, out_proj--> (B, T, D)
    memory (B, S, D) --v_proj--> v (B, G, S, V) -/
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec
from glassformer.core.cache import LayerCache
from glassformer.core.kernels import Kernel, Settled, attend, settle
from glassformer.core.linear import Linear
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, seen
from glassformer.core.positions import Place, rotate
from glassformer.errors import GlassformerError


class MultiHeadAttention(nn.Module):
    """Project, split into heads, place positions, attend, join, project out.

    >>> import torch
    >>> attention = MultiHeadAttention(16, num_heads=4)
    >>> attention(torch.randn(2, 5, 16), mask=Mask(causal=True)).shape            # self
    torch.Size([2, 5, 16])
    >>> attention(torch.randn(2, 5, 16), memory=torch.randn(2, 7, 16)).shape      # cross
    torch.Size([2, 5, 16])
    """

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
        memory_dim: int | None = None,
    ) -> None:
        super().__init__()
        spec.Attention(  # checks the words and sizes
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            window=window,
            dropout=dropout,
        )
        if head_dim is None and d_model % num_heads:
            raise GlassformerError(
                f"d_model {d_model} is not divisible by num_heads {num_heads}; "
                "choose a divisor or give head_dim"
            )
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_dim = head_dim or d_model // num_heads
        self.value_dim = value_dim or self.head_dim
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.window, self.dropout = window, dropout
        source = memory_dim or d_model
        self.q_proj = Linear(d_model, self.num_heads * self.head_dim, bias="q" in biases)
        self.k_proj = Linear(source, self.num_kv_heads * self.head_dim, bias="k" in biases)
        self.v_proj = Linear(source, self.num_kv_heads * self.value_dim, bias="v" in biases)
        self.out_proj = Linear(self.num_heads * self.value_dim, d_model, bias="out" in biases)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | Settled | Tensor | None = None,
        place: Place | None = None,
        cache: LayerCache | None = None,
        start: int | Tensor = 0,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Tensor:
        """x (B, T, D), memory (B, S, D) for cross-attention -> (B, T, D).

        `start` is where x stands in the cache. A `Settled` mask is taken as it is (a stack settles one
        for all its layers); any other form gets this attention's window as well.
        """
        place = place or Place()
        batch, queries, _ = x.shape
        q, k, v = self._queries_keys_values(x, memory, place, cache, start)
        if not isinstance(mask, Settled):
            given = Mask.of(mask)
            given.check(batch=batch, heads=self.num_heads, queries=queries, keys=k.shape[2])
            mask = self.settle(given, x, k.shape[2], dtype=q.dtype, bias=place.bias, kernel=kernel)
        edit = None
        if obs is not None:
            q, k, v = obs("q", q), obs("k", k), obs("v", v)
            obs.attention(mask, place.bias, self.scale)
            edit = obs if obs.edits("scores", "weights") else None
        heads = attend(
            q,
            k,
            v,
            mask=mask,
            bias=place.bias,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            edit=edit,
        )
        heads = seen(obs, "heads", heads)  # (B, H, T, V)
        joined = heads.transpose(1, 2).reshape(batch, queries, self.num_heads * self.value_dim)
        return seen(obs, "out", self.out_proj(joined))  # (B, T, D)

    def settle(
        self,
        mask: Mask,
        x: Tensor,
        keys: int,
        *,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        kernel: Kernel = "auto",
    ) -> Settled:
        """The mask worked out for queries from x (B, T, D), with this attention's window and dropout."""
        return settle(
            mask.with_window(self.window),
            batch=x.shape[0],
            queries=x.shape[1],
            keys=keys,
            device=x.device,
            dtype=dtype,
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
            kernel=kernel,
        )

    def _queries_keys_values(
        self,
        x: Tensor,
        memory: Tensor | None,
        place: Place,
        cache: LayerCache | None,
        start: int | Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, T, K), k (B, G, S, K), v (B, G, S, V): projected, placed, or taken from the cache."""
        if memory is not None:
            q = self._split(self.q_proj(x), self.num_heads)
            if cache is not None and cache.cross is not None:
                return q, *cache.cross
            if memory.shape[0] != x.shape[0]:
                raise GlassformerError(
                    f"the memory has {memory.shape[0]} rows and the input {x.shape[0]}; "
                    "give each row a memory of its own"
                )
            k, v = _project(memory, self.k_proj, self.v_proj)
            k, v = self._split(k, self.num_kv_heads), self._split(v, self.num_kv_heads)
            if cache is not None:
                cache.cross = (k, v)
            return q, k, v
        q, k, v = _project(x, self.q_proj, self.k_proj, self.v_proj)
        q, k = self._split(q, self.num_heads), self._split(k, self.num_kv_heads)
        v = self._split(v, self.num_kv_heads)
        if place.rotary is not None:
            q, k = rotate(q, place.rotary), rotate(k, place.rotary)
        return (q, k, v) if cache is None else (q, *cache.append(k, v, start))

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, heads, width // heads).transpose(1, 2)  # (B, heads, T, K)


def _project(x: Tensor, *parts: nn.Linear) -> tuple[Tensor, ...]:
    """x through each matrix; on a GPU by one product, the matrices laid side by side."""
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    few = x.shape[1] == 1  # one token's products cost less than laying the matrices side by side
    if not x.is_cuda or few or len(biases) not in (0, len(parts)):
        return tuple(part(x) for part in parts)
    weight = torch.cat([part.weight for part in parts])
    bias = torch.cat(biases) if biases else None
    widths = [part.out_features for part in parts]
    return F.linear(x, weight, bias).split_with_sizes(widths, -1)
