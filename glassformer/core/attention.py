"""Multi-head attention: self and cross are one class; keys and values come from `memory` or from x.

B batch, T queries, S keys, D d_model, H query heads, G key/value heads, K head width, V value width.

    x (B, T, D) --q_proj--> q (B, H, T, K) -\\
    memory (B, S, D) --k_proj--> k (B, G, S, K) --attend--> heads (B, H, T, V) --join, out_proj--> (B, T, D)
    memory (B, S, D) --v_proj--> v (B, G, S, V) -/
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from glassformer.core.cache import LayerCache
from glassformer.core.errors import GlassformerError
from glassformer.core.kernels import Kernel, Settled, attend, settle
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, seen
from glassformer.core.positions import Place, rotate


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
        self.q_proj = nn.Linear(d_model, self.num_heads * self.head_dim, bias="q" in biases)
        self.k_proj = nn.Linear(source, self.num_kv_heads * self.head_dim, bias="k" in biases)
        self.v_proj = nn.Linear(source, self.num_kv_heads * self.value_dim, bias="v" in biases)
        self.out_proj = nn.Linear(self.num_heads * self.value_dim, d_model, bias="out" in biases)

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
        q = self._split(self.q_proj(x), self.num_heads)  # (B, H, T, K)
        if place.rotary is not None:
            q = rotate(q, place.rotary)
        k, v = self._keys_values(x, memory, place, cache, start)
        if not isinstance(mask, Settled):
            given = Mask.of(mask).with_window(self.window)
            given.check(batch=batch, heads=self.num_heads, queries=queries, keys=k.shape[2])
            mask = settle(
                given,
                batch=batch,
                queries=queries,
                keys=k.shape[2],
                device=x.device,
                dtype=q.dtype,
                bias=place.bias,
                dropout=self.dropout if self.training else 0.0,
                kernel=kernel,
            )
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

    def _keys_values(
        self,
        x: Tensor,
        memory: Tensor | None,
        place: Place,
        cache: LayerCache | None,
        start: int | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """k (B, G, S, K) and v (B, G, S, V): projected, or taken from the cache."""
        if memory is not None and cache is not None and cache.cross is not None:
            return cache.cross
        source = x if memory is None else memory
        k = self._split(self.k_proj(source), self.num_kv_heads)
        v = self._split(self.v_proj(source), self.num_kv_heads)
        if memory is not None:
            if cache is not None:
                cache.cross = (k, v)
            return k, v
        if place.rotary is not None:
            k = rotate(k, place.rotary)
        return (k, v) if cache is None else cache.append(k, v, start)

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, heads, width // heads).transpose(1, 2)  # (B, heads, T, K)
