"""Attention of unpadded rows, for prefill and encoders, and attention of decode steps.

Outside attention, only the real tokens are computed, as rows (N, D). `UnpaddedAttention` pads them again for
one kernel call. `VarlenAttention` runs each variable-length sequence separately, and supports chunked
prefill.

B sequences, S positions, N real tokens, T tokens of one chunk, H query heads, G key/value heads, K head
width, V value width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.backend import apply_softcap
from glassformer.core.block import LayerContext
from glassformer.core.kernels import Kernel, PreparedMask, attend
from glassformer.core.kv_cache import KVCache, LayerCache
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer
from glassformer.core.positions import PositionTerms
from glassformer.core.stack import Stack

StoreKV = Callable[[int, Tensor, Tensor], None]  # layer, k (B, G, S, K), v (B, G, S, V)


class UnpadIndex:
    """Index of the real tokens among the positions (B, S) of padded sequences.

    mask: (B, S), True at real tokens; None if there is no padding. shape: B, S.
    """

    def __init__(self, mask: Tensor | None, shape: torch.Size) -> None:
        self.shape = shape
        self.index = None if mask is None or bool(mask.all()) else mask.reshape(-1).nonzero()[:, 0]

    def unpad(self, x: Tensor) -> Tensor:
        """Select the real rows (N, ...) of x (B, S, ...)."""
        flat = x.flatten(0, 1)
        return flat if self.index is None else flat.index_select(0, self.index)

    def pad(self, rows: Tensor) -> Tensor:
        """Put the real rows (N, ...) back into (B, S, ...), with zeros at padding."""
        if self.index is not None:
            padded = rows.new_zeros(self.shape.numel(), *rows.shape[1:])
            rows = padded.index_copy_(0, self.index, rows)
        return rows.view(*self.shape, *rows.shape[1:])


class UnpaddedAttention:
    """Self-attention of one layer over full sequences; `store` is called with the keys and values."""

    def __init__(
        self, layer: int, rows: UnpadIndex, mask: PreparedMask, terms: PositionTerms, store: StoreKV | None
    ) -> None:
        self.layer, self.rows, self.mask, self.terms, self.store = layer, rows, mask, terms, store

    def __call__(self, attention: MultiHeadAttention, x: Tensor, obs: Observer | None = None) -> Tensor:
        q, k, v = (self.rows.pad(y).transpose(1, 2) for y in attention.queries_keys_values(x))  # (B, H, S, K)
        q, k = self.terms.rotate(q, k)
        if self.store is not None:
            self.store(self.layer, k, v)
        mask, bias = attention.add_bias(self.mask, self.terms, q, k)
        heads = attend(q, k, v, mask=mask, bias=bias, scale=attention.scale, softcap=attention.softcap)
        return self.rows.unpad(heads.transpose(1, 2))  # (N, H, V)


def _kernel(attention: MultiHeadAttention) -> Kernel:
    return "sdpa" if attention.softcap is None else "auto"


def run_unpadded(
    stack: Stack,
    x: Tensor,
    rows: UnpadIndex,
    mask: Mask,
    positions: Tensor | None,
    store: StoreKV | None = None,
) -> Tensor:
    """Run embeddings (B, S, D) through all layers; return hidden states (N, D) of the real tokens."""
    batch, length = rows.shape
    mask = replace(mask, causal=mask.causal or stack.causal)
    kinds: dict[object, tuple[PreparedMask, PositionTerms]] = {}
    layers = []
    for n, attention in enumerate(stack.attentions):
        kind = attention.kind
        if kind not in kinds:
            terms = stack.position_terms(
                positions, 0, length, length, mask, x.device, window=attention.window
            )
            sizes, kernel = (batch, length, length), _kernel(attention)
            kinds[kind] = attention.prepare_mask(mask, sizes, x, terms, kernel), terms
        layers.append(UnpaddedAttention(n, rows, *kinds[kind], store))
    return stack.finish(stack.run(rows.unpad(x), [LayerContext(attend) for attend in layers]))


class DynamicKVCache(KVCache):
    """KV cache of one sequence during chunked prefill; each layer grows by concatenation."""

    length: int

    def __init__(self) -> None:
        self.layers, self.length = [], 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's keys (1, G, T, K) and values (1, G, T, V) of the next chunk; return all so far."""
        if layer == len(self.layers):
            self.layers.append(LayerCache(k=k, v=v))
        else:
            cache = self.layers[layer]
            cache.k, cache.v = torch.cat((cache.k, k), 2), torch.cat((cache.v, v), 2)
        return self.layers[layer].k, self.layers[layer].v

    def advance(self, steps: int = 1) -> None:
        self.length += steps


class VarlenAttention:
    """Self-attention of one layer within each of several chunks of different lengths."""

    def __init__(
        self,
        layer: int,
        lengths: list[int],
        chunks: list[tuple[PreparedMask, PositionTerms]],
        caches: Sequence[DynamicKVCache] | None,
    ) -> None:
        self.layer, self.lengths, self.chunks, self.caches = layer, lengths, chunks, caches

    def __call__(self, attention: MultiHeadAttention, x: Tensor, obs: Observer | None = None) -> Tensor:
        parts = zip(*(y.split(self.lengths) for y in attention.queries_keys_values(x)), strict=True)
        return torch.cat([self._attend_chunk(attention, n, *part) for n, part in enumerate(parts)])

    def _attend_chunk(
        self, attention: MultiHeadAttention, chunk: int, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        mask, terms = self.chunks[chunk]
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # (1, H, T, K)
        q, k = terms.rotate(q, k)
        if self.caches is not None:
            k, v = self.caches[chunk].append(self.layer, k, v)
        heads = attend(q, k, v, mask=mask, scale=attention.scale, softcap=attention.softcap)
        return heads[0].transpose(0, 1)  # (T, H, V)


def run_varlen(
    stack: Stack,
    x: Tensor,
    lengths: Sequence[int],
    caches: Sequence[DynamicKVCache] | None = None,
    positions: Mapping[int, Tensor] = MappingProxyType({}),
) -> Tensor:
    """Run embeddings (N, D) of concatenated chunks of these lengths through all layers -> (N, D).

    caches: KV caches with the earlier chunks of each sequence; the new chunks are appended.
    positions: position ids (T,) of chunks, if they are not counted from the start of the sequence.
    """
    starts = [0] * len(lengths) if caches is None else [int(cache.length) for cache in caches]
    own_terms = [n if n in positions else None for n in range(len(lengths))]
    shapes = list(zip(lengths, starts, own_terms, strict=True))
    mask = Mask(causal=stack.causal)
    kinds: dict[object, dict[tuple[int, int, int | None], tuple[PreparedMask, PositionTerms]]] = {}
    layers = []
    for n, attention in enumerate(stack.attentions):
        prepared = kinds.setdefault(attention.kind, {})
        for length, past, chunk in set(shapes) - set(prepared):
            keys, ids = past + length, None if chunk is None else positions[chunk][None]
            terms = stack.position_terms(ids, past, length, keys, mask, x.device, window=attention.window)
            sizes, kernel = (1, length, keys), _kernel(attention)
            prepared[length, past, chunk] = attention.prepare_mask(mask, sizes, x, terms, kernel), terms
        layers.append(VarlenAttention(n, list(lengths), [prepared[shape] for shape in shapes], caches))
    x = stack.finish(stack.run(x, [LayerContext(attend) for attend in layers]))
    for cache, length in zip(caches or (), lengths, strict=False):
        cache.advance(length)
    return x


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float | None = None
) -> Tensor:
    """Compute softmax(softcap(Q K^T * scale) + bias) V for a few queries and many keys, as in a decode step.

    q (B, H, W, K), k (B, G, L, K), v (B, G, L, V), bias (B|1, 1|H, W|1, L) -> (B, H, W, V). On a CPU, two
    plain matrix multiplications, with the heads that share keys as rows of one matrix, are faster than
    torch's fused attention for a few queries. On other devices, this calls torch's fused attention, which
    does not support a softcap.

    >>> q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)
    >>> decode_attention(q, k, v, None, 0.5).shape
    torch.Size([2, 4, 1, 6])
    """
    batch, heads, queries, width = q.shape
    groups, keys = k.shape[1:3]
    if softcap is None and (not q.is_cpu or torch.is_autocast_enabled("cpu")):
        mask = None if bias is None else bias.expand(batch, -1, queries, -1)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, enable_gqa=heads != groups
        )
    rows = (q * scale).reshape(batch * groups, heads // groups * queries, width)  # (B * G, H / G * W, K)
    scores = torch.bmm(rows, k.flatten(0, 1).transpose(1, 2))  # (B * G, H / G * W, L)
    if softcap is not None:
        scores = apply_softcap(scores.float(), softcap)
    if bias is not None:
        scores.view(batch, heads, queries, keys).add_(bias)
    out = torch.bmm(scores.softmax(-1).to(v.dtype), v.flatten(0, 1))  # (B * G, H / G * W, V)
    return out.view(batch, heads, queries, v.shape[-1])
