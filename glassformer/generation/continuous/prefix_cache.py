"""Automatic prefix caching: prompts with the same beginning share its keys and values.

The keys and values of a prefilled prompt are stored in blocks of tokens. A block is found by its tokens (or
what the prompt holds in their place) and the block before it, so a prompt reuses the longest stored prefix of
whole blocks. The least recently used blocks are dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from glassformer.core.kv_cache import LayerCache
from glassformer.inference.attention import DynamicKVCache

BLOCK: Final = 32  # tokens


class _Key(NamedTuple):
    parent: int  # number of the block before it; 0 for the first
    tokens: tuple[Hashable, ...]


class _Block(NamedTuple):
    number: int
    layers: list[tuple[Tensor, Tensor]]  # keys (1, G, BLOCK, K) and values (1, G, BLOCK, V)


class PrefixCache:
    """Keys and values of prompt prefixes. max_tokens: maximum number of stored tokens."""

    def __init__(self, max_tokens: int) -> None:
        self._max_blocks = max_tokens // BLOCK
        self._blocks: OrderedDict[_Key, _Block] = OrderedDict()  # a block is used later than those after it
        self._count = 0

    def __len__(self) -> int:
        """Return the number of stored tokens."""
        return BLOCK * len(self._blocks)

    def find(self, ids: Sequence[Hashable]) -> DynamicKVCache:
        """Return the keys and values of the longest stored prefix, without the last token of the prompt."""
        keys = self._stored(ids[:-1])
        blocks = [self._blocks[key] for key in keys]
        past = DynamicKVCache()
        if blocks:
            for parts in zip(*(block.layers for block in blocks), strict=True):
                k, v = (torch.cat(tensors, 2) for tensors in zip(*parts, strict=True))
                past.layers.append(LayerCache(k=k, v=v))
            past.advance(BLOCK * len(blocks))
        return past

    def store(self, ids: Sequence[Hashable], past: DynamicKVCache) -> None:
        """Store the whole blocks of a prefilled prompt."""
        keys = self._stored(ids)
        parent = self._blocks[keys[-1]].number if keys else 0
        new = range(len(keys) * BLOCK, min(len(ids) // BLOCK, self._max_blocks) * BLOCK, BLOCK)
        for start in new:
            self._count += 1
            layers = [
                (layer.k[:, :, start : start + BLOCK].clone(), layer.v[:, :, start : start + BLOCK].clone())
                for layer in past.layers
            ]
            keys.append(_Key(parent, tuple(ids[start : start + BLOCK])))
            self._blocks[keys[-1]] = _Block(self._count, layers)
            parent = self._count
        self._use(keys)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def _stored(self, ids: Sequence[Hashable]) -> list[_Key]:
        """Return the keys of the stored blocks that the prompt begins with, and mark them as used."""
        keys: list[_Key] = []
        parent = 0
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            key = _Key(parent, tuple(ids[start : start + BLOCK]))
            if key not in self._blocks:
                break
            keys.append(key)
            parent = self._blocks[key].number
        self._use(keys)
        return keys

    def _use(self, keys: Sequence[_Key]) -> None:
        for key in reversed(keys):  # the first block last, so that it is dropped after those that need it
            self._blocks.move_to_end(key)
