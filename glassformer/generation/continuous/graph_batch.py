"""Decode steps of continuous batching on a GPU, captured as CUDA graphs for a few batch sizes.

A step of n rows runs as the graph of the next larger batch size; its other rows are ignored.

N rows of the batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from glassformer.generation.continuous.request import Request
from glassformer.generation.continuous.slot_batch import ByLayer, SlotBatch
from glassformer.generation.inference_model import InferenceModel, max_positions
from glassformer.generation.step_decoder import GRAPH_WARMUP_STEPS
from glassformer.inference.attention import DynamicKVCache
from glassformer.inference.gpu.kv_cache import TritonSlotCache
from glassformer.inference.gpu.launch import CudaGraph
from glassformer.inference.kv_cache import layer_contexts
from glassformer.inference.slot_cache import Slot

MIN_CAPACITY: Final = 512  # positions; the capacity doubles when a request needs more


class CUDAGraphBatch(SlotBatch):
    """Rows of a decoder-only model, greedy or sampled, whose steps run as CUDA graphs.

    The cache has the same capacity for all rows, so a request may have at most tokens // slots tokens.
    """

    def __init__(self, model: InferenceModel, slots: int, tokens: int) -> None:
        super().__init__(model)
        self.decoder, self.slots = model.decoder, slots
        self.max_capacity = tokens // slots
        self.table = max_positions(self.embed)
        self.ids = torch.zeros(slots, dtype=torch.long, device=self.parameter.device)
        self._allocate(min(MIN_CAPACITY, self.max_capacity))

    def _allocate(self, capacity: int) -> None:
        """Allocate a cache, and discard the graphs, which contain the addresses of the old one."""
        like = self.parameter.new_empty(0, dtype=self.model.dtype)
        self.static_cache = TritonSlotCache(self.model.decoder, self.slots, capacity, like)
        self.layers = layer_contexts(self.model.decoder, self.static_cache, None)
        self.graphs: dict[int, CudaGraph[Tensor]] = {}

    @property
    def rows(self) -> int:
        return self.static_cache.rows

    def fits(self, request: Request) -> bool:
        """Whether the request can run here."""
        shifted = request.shift != 0  # a graph counts positions by the filled rows
        return not request.searches and not shifted and self._needed(request) <= self.max_capacity

    @staticmethod
    def _needed(request: Request) -> int:
        return len(request.ids) + request.limit + GRAPH_WARMUP_STEPS

    def reserve(self, request: Request) -> None:
        """Enlarge the cache if the request needs more positions than it has."""
        needed, capacity = self._needed(request), self.static_cache.max_positions
        if needed <= capacity:
            return
        while capacity < needed:
            capacity *= 2
        old = self.static_cache
        self._allocate(min(capacity, self.max_capacity))
        new, count = self.static_cache, len(old.slots)
        for target, source in zip(new.layers, old.layers, strict=True):
            target.k[:count, :, : old.max_positions] = source.k[:count]
            target.v[:count, :, : old.max_positions] = source.v[:count]
        new.slots, new.filled, new.in_use = old.slots, old.filled, old.in_use

    def join(self, width: int, past: DynamicKVCache | tuple[ByLayer, ByLayer]) -> Slot:
        assert isinstance(past, DynamicKVCache) and width == 1
        layers = past.layers
        return self.static_cache.add([layer.k[0] for layer in layers], [layer.v[0] for layer in layers])

    def leave(self, slot: Slot) -> None:
        self.static_cache.remove(slot)

    def step(self, ids: Sequence[int]) -> Tensor:
        slots = self.static_cache.slots
        size = next((1 << n for n in range(16) if 1 << n >= len(slots)), self.slots)
        size = min(size, self.slots)
        tokens, rows = [0] * size, [slot.row for slot in slots]
        for row, token in zip(rows, ids, strict=True):
            tokens[row] = token
        self.ids[:size].copy_(torch.tensor(tokens))
        logits = self._graph(size)() if self.ids.is_cuda else self._step(size)
        for slot in slots:
            slot.filled += 1
            slot.position += 1
        if rows == list(range(len(rows))):
            return logits[: len(rows)]
        return logits.index_select(0, torch.tensor(rows, device=logits.device))

    def _graph(self, size: int) -> CudaGraph[Tensor]:
        if size not in self.graphs:
            before = self.static_cache.filled.clone()
            self.graphs[size] = CudaGraph(lambda: self._step(size), warmups=GRAPH_WARMUP_STEPS)
            self.static_cache.filled.copy_(before)  # the warm-up steps are undone
        return self.graphs[size]

    def _step(self, size: int) -> Tensor:
        """Take a step with the first `size` rows; return logits (size, V)."""
        cache, positions = self.static_cache, self.static_cache.filled[:size]
        if self.table is not None:  # warm-up steps may exceed it
            positions = positions.clamp(max=self.table - 1)
        x = self.model.embeddings(self.embed, self.ids[:size, None], positions[:, None])[:, 0]
        cache.prepare(size)
        x = self.model.decoder.finish(self.model.decoder.run(x, self.layers))
        cache.advance()
        return self.model.logits(x)
